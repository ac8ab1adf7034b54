"""What a task keeps of its records, without Spark: maxima, minima and sets, whatever the order."""

from __future__ import annotations

from random import Random
from typing import Any

from rigs.receipt_lines import EPOCH_MS, line_of, signed
from rigs.remp_world import FULL_NODE
from stagepost.pipeline.schemas import STATE
from stagepost.pipeline.sources.dumps import Record, read_line
from stagepost.pipeline.steps.partial_state import OF_MESSAGES, PROOF, QUARANTINE, VALIDATORS, PartialState
from stagepost.pipeline.steps.record_checks import Checked, RecordChecks
from stagepost.remp.receipts.message_status import New, SentToValidators, Timeout
from stagepost.remp.receipts.receipt_fields import TIMESTAMP_MAX
from stagepost.remp.validator_sets import parse_validator_sets
from tests.worlds.pipeline.pipeline_world import FAULTS, a_dump, sets_bytes, written

SETS = parse_validator_sets(sets_bytes(), "sets")
KEYS = 6
"""Columns of the state that say whose row it is."""
HASHES = STATE.fieldNames().index("signed_hashes") - KEYS


def checked(lines: list[bytes]) -> list[tuple[Record, Checked]]:
    checks, found = RecordChecks(SETS), []
    for number, line in enumerate(lines):
        record = read_line(line, number)
        outcome = checks.check(record.key, record.value, record.arrived_ms, is_fault=record.is_fault)
        found.append((record, outcome))
    return found


def state_of(given: list[tuple[Record, Checked]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    state = PartialState()
    for record, outcome in given:
        state.add(record, outcome)
    rows = {row[:KEYS]: row[KEYS:] for row in state.rows()}
    assert len(rows) == len(state)
    return rows


def test_order_and_repetition_change_nothing(run_seed: int) -> None:
    given = checked(a_dump(15, run_seed, bad=0.2))
    mixed = given + given[::3]
    Random(run_seed).shuffle(mixed)

    assert state_of(mixed) == state_of(given)


def test_the_last_word_is_the_greatest_time_level_and_rank_and_the_first_time_the_least() -> None:
    lines = [
        written(line_of(signed(1, 0, status, time)))
        for status, time in ((New(), 7), (Timeout(), 7), (New(), TIMESTAMP_MAX), (New(), 3))
    ]
    rows = {key[2]: row for key, row in state_of(checked(lines)).items()}
    assert set(rows) == {"validator", VALIDATORS}

    last, last_ms, first_ms, has_finalized, sent_ms, queued_ms, *others = rows["validator"]
    assert (last, last_ms, first_ms) == (64 * TIMESTAMP_MAX + 8 + 1, TIMESTAMP_MAX, 3)
    assert (has_finalized, sent_ms, queued_ms) == (False, None, 3)
    assert set(others) == {None}, "what does not depend on who said it stands in the other row"
    *said, _, queued_ms, _, _, _, _, timeout_ms = rows[VALIDATORS][:11]
    assert (set(said), queued_ms, timeout_ms) == ({None}, 3, 7)
    assert len(rows[VALIDATORS][HASHES]) == 4


def test_rows_of_a_validator_are_kept_apart_by_hint_and_those_of_full_nodes_are_one() -> None:
    hints = [{"session": digit * 64} for digit in "ab"]
    sent = SentToValidators(2, 4)
    lines = [
        written(line_of(signed(1, who, status, EPOCH_MS), headers=hint))
        for who, status in ((0, New()), (FULL_NODE, sent))
        for hint in hints
    ]

    found = {(key[1] is None, key[2], key[3]) for key in state_of(checked(lines))}

    assert found == {
        (False, "validator", "a" * 64),
        (False, "validator", "b" * 64),
        (True, VALIDATORS, None),
        (True, "full_node", None),
    }


def test_rows_of_validators_and_of_messages_are_parts_of_their_own() -> None:
    state = PartialState()
    assert list(state.parts()) == []
    for record, outcome in checked(a_dump(3, 1, bad=0.2)):
        state.add(record, outcome)
    members, messages = state.parts()
    assert set(members[2]) == {"validator"}
    assert set(messages[2]) == set(OF_MESSAGES) - {PROOF}, "a proof comes by its own way"
    assert len(members) == len(messages) == len(STATE.fieldNames())
    assert len(members[0]) + len(messages[0]) == len(state)


def test_of_quarantined_records_a_message_keeps_the_hashes_alone() -> None:
    line = line_of(signed(1, 0, New(), EPOCH_MS))
    bad = written(FAULTS["a flipped bit"][1](line))

    rows = state_of(checked([bad, bad, b"no JSON"]))

    assert list(rows) == [(line["key"], None, QUARANTINE, None, None, None)]
    (row,) = rows.values()
    assert len(row[HASHES]) == 1
    assert {*row[:HASHES], *row[HASHES + 1 :]} == {None}
