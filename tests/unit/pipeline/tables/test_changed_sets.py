"""A change of the validator sets checks again what it touches and nothing else, and gives what a backfill gives."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rigs.receipt_lines import EPOCH_MS
from rigs.remp_world import session
from stagepost.errors import DecodeError
from stagepost.pipeline.sources.dumps import survey
from stagepost.pipeline.tables.delta import day_begin_ms
from stagepost.pipeline.tables.manifest import RECORDS, STATE, OfDump, counts
from stagepost.pipeline.tables.reader import Reader
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.sets_change import sets_change
from stagepost.remp.validator_sets import parse_validator_sets
from tests.worlds.pipeline.pipeline_oracle import Row, named_message, read_row, recompute
from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_world import SESSIONS, a_dump, sets_bytes, world_sets

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

PARTS = 3
Sets = dict[str, Any]


def without(sets: Sets, place: int) -> Sets:
    return {**sets, "sessions": [one for number, one in enumerate(sets["sessions"]) if number != place]}


def with_window(sets: Sets, place: int, **bounds: int | None) -> Sets:
    changed = copy.deepcopy(sets)
    changed["sessions"][place].update(bounds)
    return changed


def steps(sets: Sets, choices: Random) -> list[Sets]:
    """Return contents of the file, one after another, as switches and corrections give them."""
    middle = EPOCH_MS + choices.randrange(20_000, 60_000)
    switched = with_window(sets, 3, to_ms=middle)
    switched["sessions"].append(
        session(6, range(205, 225), seqno=101, shard=SESSIONS[3]["shard"], from_ms=middle)
    )
    return [
        switched,
        with_window(switched, 0, from_ms=middle, to_ms=middle + 5_000),
        without(switched, 1),
        {**without(switched, 4), "message_timeout_ms": sets["message_timeout_ms"]},
        sets,
    ]


def touched_messages(lines: list[bytes], before: Sets, after: Sets) -> set[str]:
    """Return the messages with a validator whose times, taken together, meet what changed; by a walk over all records."""
    change = sets_change(
        parse_validator_sets(sets_bytes(before), "before"), parse_validator_sets(sets_bytes(after), "after")
    )
    times: dict[tuple[str, str], list[int]] = {}
    for number, line in enumerate(lines):
        row = read_row(line, number)
        message = row_fields(row)
        if message is not None:
            times.setdefault(message[:2], []).append(message[2])
    return {
        message_id
        for (message_id, source), given in times.items()
        if change.touches(bytes.fromhex(source), min(given), max(given))
    }


def row_fields(row: Row) -> tuple[str, str, int] | None:
    """Return message, source and time of a record that can be read."""
    try:
        receipt = Receipt.from_json(b"" if row.is_fault else row.value or b"", record_key=row.key)
    except DecodeError:
        return None
    return receipt.message_id.hex(), receipt.source_id.hex(), receipt.timestamp_ms


def test_only_what_a_change_touches_is_checked_again(tmp_path: Path, run_seed: int) -> None:
    spark = small_spark()
    from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
    from stagepost.pipeline.tables.sets_touch import touched_by_sets
    from stagepost.pipeline.tables.tables import Tables

    print(f"seed {run_seed}")
    lines = a_dump(25, run_seed)
    ordered = [line for part in range(PARTS) for line in lines[part::PARTS]]
    sets = world_sets()
    tables = Tables(tmp_path / "tables")
    seen: list[int] = []

    class CountedDriver(Driver):
        """Counts the records that are checked again."""

        def _records(self, some: Any) -> Any:
            found = super()._records(some)
            seen.append(found.count())
            return found

    try:
        driver = CountedDriver(spark, tables, sets_bytes(sets))
        for part in range(PARTS):
            path = tmp_path / f"{part}.jsonl"
            path.write_bytes(b"".join(line + b"\n" for line in lines[part::PARTS]))
            dump = survey(path)
            driver.take_dump(dump, Evaluation(what=Evaluated.MESSAGES), OfDump(dump.digest))
        driver.report(Evaluation())
        for following in steps(sets, Random(run_seed)):
            change = sets_change(driver.sets, parse_validator_sets(sets_bytes(following), "sets"))
            found = touched_by_sets(
                tables.store, tables.table(RECORDS).require(), tables.table(STATE).require(), change
            )
            assert found is not None
            wanted = touched_messages(lines, sets, following)
            assert set(found.message_ids) <= wanted
            seen.clear()
            driver.use_sets(sets_bytes(following))
            assert driver.follow_sets()
            of_touched = sum(
                1 for number, line in enumerate(ordered) if _named(line, number) in set(found.message_ids)
            )
            assert sum(seen) == of_touched < len(lines)
            sets = following
            expected = recompute(ordered, sets)
            reader = Reader(tmp_path / "tables")
            shown = {row["message_id"]: row for row in reader.table("messages")}
            receipts = len(reader.table("receipts"))
            reader.close()
            assert shown == expected.messages
            assert receipts == expected.counted
            told = counts(tables.manifest)
            assert (told["counted"], told["repeated"]) == (expected.counted, expected.repeated)
            assert told["reasons"] == Counter(reason for reason, *_ in expected.quarantine.elements())
            assert not driver.follow_sets()
    finally:
        tables.close()


def _named(line: bytes, number: int) -> str | None:
    row = read_row(line, number)
    fields = row_fields(row)
    return named_message(row) if fields is None else fields[0]


def test_a_change_that_touches_too_much_checks_everything(
    tmp_path: Path, run_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = small_spark()
    from stagepost.pipeline.driver import Driver, Evaluation
    from stagepost.pipeline.tables import sets_touch
    from stagepost.pipeline.tables.tables import Tables

    monkeypatch.setattr(sets_touch, "TOUCHED_BY_SETS_MAX", 0)
    today = ["2026-01-31"]
    lines = a_dump(6, run_seed)
    # It says nothing of when it arrived, so it is of the day on which it is checked, and midnight is in between.
    undated = b'{"topic": "stagepost.dmq.messages", "key": "ab", "value": "not a message"}'
    (tmp_path / "dump.jsonl").write_bytes(b"".join(line + b"\n" for line in (*lines, undated)))
    dump = survey(tmp_path / "dump.jsonl")
    sets = without(world_sets(), 0)
    tables = Tables(tmp_path / "tables", now=lambda: day_begin_ms(today[0]) / 1_000)
    try:
        driver = Driver(spark, tables, sets_bytes())
        driver.take_dump(dump, Evaluation(), OfDump(dump.digest))
        driver.use_sets(sets_bytes(sets))
        today[0] = "2026-02-01"
        assert driver.follow_sets()
        driver.report(Evaluation())
    finally:
        tables.close()
    reader = Reader(tmp_path / "tables")
    assert {row["message_id"]: row for row in reader.table("messages")} == recompute(lines, sets).messages
    assert [str(row["day"]) for row in reader.table("dmq_messages")] == ["2026-02-01"]
    reader.close()
