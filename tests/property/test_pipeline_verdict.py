"""The verdict as a query, by both engines, and as plain Python: the same for anything that may be said."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rigs.remp_world import FULL_NODE, session, session_name, sets_file, source_of
from stagepost.remp.hex_text import read_hash
from stagepost.remp.receipts.receipt import Counting, ExternalMessageId, Receipt
from stagepost.remp.receipts.receipt_fields import TIMESTAMP_MAX
from stagepost.remp.receipts.status import KINDS, Level
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import Role, ValidatorSets, parse_validator_sets
from stagepost.remp.verdict.state import MessageState
from stagepost.remp.verdict.verdict import evaluate
from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_world import any_status

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

MESSAGES = 1_500
TIMEOUT_MS = 40
EARLY, LATE = "2026-01-30", "2026-01-31"
SHARDS = ("4000000000000000", "c000000000000000")
OF_VALIDATORS = [kind.name for kind in KINDS if kind.level is not Level.FULLNODE]
OF_FULL_NODES = [kind.name for kind in KINDS if kind.level is Level.FULLNODE] + ["Finalized"]


def some_sets(choices: Random) -> ValidatorSets:
    """Small sessions of few people, so that members of several, ties and thirds come about all the time."""
    found = []
    for number in range(6):
        start, end = choices.choice([(None, None), (None, 60), (30, None), (10, 70)])
        members = choices.sample(range(9), choices.choice([1, 2, 3, 4, 5, 7]))
        seqno = choices.randrange(100, 103)
        shard = choices.choice(SHARDS)
        found.append(session(number, members, seqno=seqno, shard=shard, from_ms=start, to_ms=end))
    return parse_validator_sets(json.dumps(sets_file(*found, timeout_ms=TIMEOUT_MS)).encode(), "sets")


def a_time(choices: Random) -> int:
    return choices.randrange(0, 100) if choices.random() < 0.98 else TIMESTAMP_MAX


def a_block(choices: Random) -> BlockId:
    return BlockId(0, int(choices.choice(SHARDS), 16), choices.choice([0, 1, 2]))


def some_receipts(number: int, sets: ValidatorSets, choices: Random) -> list[tuple[Counting, str | None]]:
    """Receipts that count, each with a hint or none. Few kinds at a time, or rejections by all would never happen."""
    message_id = ExternalMessageId(sha256(b"%d" % number).digest())
    kinds = choices.sample(OF_VALIDATORS, choices.choice([1, 1, 2, 4, len(OF_VALIDATORS)]))
    hints = [
        None,
        "zz",
        session_name(99).hex(),
        *(session_name(one).hex() for one in choices.sample(range(6), 2)),
    ]
    found: list[tuple[Counting, str | None]] = []
    for _ in range(choices.choice([0, 1, 3, 8, 20])):
        time_ms = a_time(choices)
        who = choices.randrange(9)
        if isinstance(sets.source(source_of(who), time_ms), str):
            continue
        receipt = Receipt(
            message_id, any_status(choices.choice(kinds), a_block(choices)), time_ms, source_of(who)
        )
        found.append((Counting(receipt, Role.VALIDATOR), choices.choice(hints)))
    for _ in range(choices.choice([0, 1, 2])):
        kind = choices.choice([*OF_FULL_NODES, *["SentToValidators"] * 6])
        receipt = Receipt(
            message_id, any_status(kind, a_block(choices)), a_time(choices), source_of(FULL_NODE)
        )
        found.append((Counting(receipt, Role.FULL_NODE), choices.choice(hints)))
    return found


def state_rows(said: list[tuple[Counting, str | None]]) -> list[tuple[Any, ...]]:
    from stagepost.pipeline.sources.dumps import Record
    from stagepost.pipeline.steps.partial_state import PartialState
    from stagepost.pipeline.steps.record_checks import ROLES, described
    from stagepost.topics.topic import STATUSES

    state = PartialState()
    for counting, hint in said:
        receipt = counting.receipt
        digest = sha256(receipt.signed_bytes).digest()
        known = read_hash(hint)
        raw = Record(STATUSES, 0, 0, None, None, b"", session_hint=None if known is None else known.hex())
        state.add(raw, described(receipt, digest, None, ROLES[counting.role], b""))
    return state.rows()


OF_PROOFS = frozenset({"proof", "proof_block", "executed_as"})
"""Fields of a verdict that come from proofs and not from receipts."""


@pytest.mark.parametrize("name", ["DuckEngine", "SparkEngine"])
def test_the_query_and_plain_python_reach_the_same_verdicts(
    run_seed: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = small_spark()
    from stagepost.pipeline.schemas import LIVES, MESSAGE_ROWS, STATE, arrays_of, arrow_schema, with_day
    from stagepost.pipeline.steps import sql_engines
    from stagepost.pipeline.steps.messages import LIVES_QUERY, Moment, at_moment, show_state
    from stagepost.pipeline.tables.tables import DayWriter, Tables

    choices = Random(run_seed)
    sets = some_sets(choices)
    said = {number: some_receipts(number, sets, choices) for number in range(MESSAGES)}
    as_of_ms = choices.choice([None, 50, 90, 120])
    expected = {}
    for receipts in said.values():
        state = MessageState()
        for counting, hint in receipts:
            state.add(counting, hint)
        found = evaluate(state, sets, as_of_ms)
        if found is not None:
            expected[receipts[0][0].receipt.message_id.hex()] = found

    heard = [one for receipts in said.values() for one in receipts]
    choices.shuffle(heard)
    # In two batches, the second small: it evaluates only the messages that it touches, with what was known of them.
    schema = arrow_schema(with_day(STATE))
    early, late = (
        pa.Table.from_arrays(arrays_of([(*row, day) for row in state_rows(part)], schema), schema=schema)
        for part, day in ((heard[len(heard) // 5 :], EARLY), (heard[: len(heard) // 5], LATE))
    )
    known = early.filter(pc.is_in(early["message_id"], late["message_id"].combine_chunks()))
    moment = Moment(as_of_ms, sets.message_timeout_ms)
    # So few at once that the messages are evaluated in several shares.
    monkeypatch.setattr(sql_engines, "RECEIPTS_AT_ONCE", len(heard) // 3)
    tables = Tables(tmp_path)

    def lives(fresh: pa.Table, known: pa.Table | None) -> pa.Table:
        writer = DayWriter(tables.store, "state", tables.mark)
        writer.take(fresh)
        with getattr(sql_engines, name)(spark, tables, 0) as engine:
            given = show_state(engine, [file.path for file in writer.close()], known, sets)
            shares = engine.divided("given", given, len(heard))
            return pa.concat_tables([engine.rows(LIVES_QUERY, LIVES) for _ in shares])

    before, after = lives(early, None), lives(late, known)
    tables.close()
    evaluated = [*before.to_pylist(), *after.to_pylist()]
    assert sum(row["receipts"] - row["receipts_before"] for row in evaluated) == sum(
        verdict.receipts for verdict in expected.values()
    )
    for row in after.to_pylist():
        is_known = row["receipts_before"] > 0
        assert row["days"] == ([EARLY, LATE] if is_known else [LATE])
        assert (row["day"], row["day_before"]) == ((EARLY, EARLY) if is_known else (LATE, None))

    table = at_moment(before, moment)
    assert table.schema.names == [*MESSAGE_ROWS.fieldNames(), "day"]
    answers = {row["message_id"]: row for row in (*table.to_pylist(), *at_moment(after, moment).to_pylist())}
    assert answers.keys() == expected.keys()
    for message_id, verdict in expected.items():
        row = answers[message_id]
        for column in (one for one in verdict.__struct_fields__ if one not in OF_PROOFS):
            wanted = getattr(verdict, column)
            assert row[column] == (list(wanted) if isinstance(wanted, tuple) else wanted), (
                run_seed,
                message_id,
                column,
            )
    assert len({verdict.verdict for verdict in expected.values()}) >= 5
