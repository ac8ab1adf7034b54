"""Lines of a dump and the checks of a record, without Spark: every kind of bad input gets its reason."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.errors import StorageError
from stagepost.pipeline.sources.dumps import lines_of, read_line, survey
from stagepost.pipeline.sources.topic_ranges import Range
from stagepost.pipeline.sources.topic_source import records_of
from stagepost.pipeline.steps import record_checks
from stagepost.pipeline.steps.record_checks import Checked, RecordChecks
from stagepost.remp.receipts.receipt import FUTURE_MS_MAX, RECEIPT_BYTES_MAX
from stagepost.remp.validator_sets import parse_validator_sets
from stagepost.topics.batch import Read
from stagepost.topics.topic import STATUSES
from tests.worlds.pipeline.pipeline_oracle import read_row, recompute
from tests.worlds.pipeline.pipeline_world import FAULTS, a_dump, a_life, sets_bytes, world_sets, written

SETS = parse_validator_sets(sets_bytes(), "sets")
LINE = a_life(1, Random(3))[1]


def checked(line: bytes, checks: RecordChecks | None = None) -> Checked:
    record = read_line(line, 0)
    found = checks or RecordChecks(SETS)
    return found.check(record.key, record.value, record.arrived_ms, is_fault=record.is_fault)


def altered(**changes: Any) -> bytes:
    value = {**json.loads(LINE["value"]), **changes}
    return written({**LINE, "value": json.dumps(value)})


def test_a_good_record_passes() -> None:
    found = checked(written(LINE))

    assert found.reason is None
    assert found.message_id == LINE["key"]
    assert found.role == "validator"


@pytest.mark.parametrize("name", FAULTS)
def test_every_kind_of_bad_record_has_its_reason(name: str) -> None:
    reason, make = FAULTS[name]
    line = written(make(dict(LINE)))

    assert checked(line).reason == reason
    assert [key[0] for key in recompute([line], world_sets()).quarantine] == [reason]


def test_records_are_judged_as_plain_recomputation_judges_them(run_seed: int) -> None:
    lines = a_dump(20, run_seed, bad=0.3)
    checks, found = RecordChecks(SETS), []
    for number, line in enumerate(lines):
        record, row = read_line(line, number), read_row(line, number)
        assert (record.key, record.value, record.arrived_ms, record.is_fault) == row[3:4] + row[4:5] + row[
            2:3
        ] + row[5:6]
        assert (record.session_hint, record.delivery_id, record.dmq_id) == row[6:]
        outcome = checks.check(record.key, record.value, record.arrived_ms, is_fault=record.is_fault)
        if outcome.reason is not None:
            found.append((outcome.reason, record.offset, outcome.message_id))

    assert sorted(found, key=str) == sorted(recompute(lines, world_sets()).quarantine.elements(), key=str)


@pytest.mark.parametrize(("extra", "reason"), [(0, None), (1, "RECEIPT_FORMAT")])
def test_a_value_may_have_so_many_bytes_and_no_more(extra: int, reason: str | None) -> None:
    value = LINE["value"].ljust(RECEIPT_BYTES_MAX + extra)

    assert checked(written({**LINE, "value": value})).reason == reason


@pytest.mark.parametrize(
    ("ahead_ms", "reason"), [(FUTURE_MS_MAX, None), (FUTURE_MS_MAX + 1, "RECEIPT_FUTURE")]
)
def test_a_receipt_may_be_so_far_ahead_of_its_arrival_and_no_further(
    ahead_ms: int, reason: str | None
) -> None:
    arrived_ms = json.loads(LINE["value"])["timestamp"] - ahead_ms

    assert checked(written({**LINE, "timestamp_ms": arrived_ms})).reason == reason


@pytest.mark.parametrize("arrived", [-1, 1 << 63, 1.5, "1", True, None, [1]])
def test_an_arrival_that_is_no_time_counts_as_unknown(arrived: object) -> None:
    line = written({**LINE, "timestamp_ms": arrived})

    assert read_line(line, 0).arrived_ms is None
    assert checked(line).reason is None


def test_a_bare_receipt_is_a_record_without_a_key() -> None:
    record = read_line(LINE["value"].replace("\n", "").encode(), 7)

    assert (record.key, record.offset, record.is_fault) == (None, 7, False)
    assert checked(LINE["value"].replace("\n", "").encode()).reason is None


def test_a_line_with_a_key_and_no_value_is_a_record_without_a_value() -> None:
    record = read_line(b'{"key": "ab", "offset": 5}', 7)

    assert (record.key, record.value, record.offset) == ("ab", None, 5)


def test_a_position_out_of_range_counts_as_not_given() -> None:
    record = read_line(written({**LINE, "partition": 1 << 31, "offset": 1 << 63}), 7)

    assert (record.partition, record.offset) == (None, 7)


def test_an_empty_header_names_no_message_of_another_layer() -> None:
    headers = {"delivery_id": "", "dmq_id": ""}
    record = read_line(written({**LINE, "headers": headers}), 7)
    (read,) = records_of(Range(STATUSES, 0, 0, 1), [Read(0, None, b"", headers, 1)])

    assert (record.delivery_id, record.dmq_id, read.delivery_id, read.dmq_id) == (None,) * 4


def test_the_bad_row_of_a_key_is_counted_with_that_key() -> None:
    line = written({**LINE, "key": "AB" * 32})

    assert checked(line).message_id == "ab" * 32


def test_the_bad_row_without_a_key_is_counted_with_the_id_in_its_value() -> None:
    without_key = {"value": json.dumps({**json.loads(LINE["value"]), "kind": "Lost"})}

    assert checked(written(without_key)).message_id == LINE["key"]
    assert checked(written({"value": without_key["value"] + "x"})).message_id is None


def test_a_signature_is_looked_at_once_for_all_copies() -> None:
    checks = RecordChecks(SETS)
    copies = [LINE, LINE, {**LINE, "headers": {}}, {**LINE, "timestamp_ms": LINE["timestamp_ms"] + 9}]

    assert {checked(written(copy), checks).reason for copy in copies} == {None}
    assert checks.signatures_looked_at == 1


def test_another_signature_under_the_same_words_is_looked_at_for_itself() -> None:
    checks = RecordChecks(SETS)

    assert checked(written(LINE), checks).reason is None
    assert checked(altered(signature="00" * 64), checks).reason == "RECEIPT_SIGNATURE"


def test_only_so_many_outcomes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_checks, "OUTCOMES_REMEMBERED_MAX", 2)
    checks, lines = RecordChecks(SETS), [written(line) for line in a_life(4, Random(1))[:3]]

    for line in [*lines, lines[2], lines[0]]:
        checked(line, checks)

    assert checks.signatures_looked_at == 4
    assert len(checks._outcomes) == 2


@given(
    lines=st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    data=st.data(),
)
def test_pieces_of_a_dump_hold_every_line_once_with_its_number(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], data: st.DataObject
) -> None:
    ends = data.draw(st.sampled_from([b"", b"\n"])) if lines and lines[-1] else b"\n" if lines else b""
    path = tmp_path_factory.mktemp("dump") / "dump.jsonl"
    path.write_bytes(b"\n".join(lines) + ends)

    dump = survey(path, data.draw(st.integers(1, 30)))

    found = [(piece.line + n, line) for piece in dump.pieces for n, line in enumerate(lines_of(piece))]
    assert found == list(enumerate(lines))
    assert dump.lines == len(lines)


def test_a_dump_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read the dump .*missing\.jsonl: no such file"):
        survey(tmp_path / "missing.jsonl")
