"""Batches that come one after another, each evaluating what it touches: on read the same as everything at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.pipeline.sources.dumps import survey
from stagepost.pipeline.tables.account import counts
from stagepost.pipeline.tables.folding import joined
from stagepost.pipeline.tables.manifest import LIVES, Batch
from stagepost.pipeline.tables.reader import Reader
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.pipeline.pipeline_spark import need_packages, small_spark
from tests.worlds.pipeline.pipeline_world import TIMEOUT_MS, a_dump, sets_bytes, world_sets

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

if TYPE_CHECKING:
    from stagepost.pipeline.driver import Driver

PARTS = 3


@pytest.fixture
def lines(run_seed: int) -> list[bytes]:
    return a_dump(8, run_seed)


def test_batches_that_are_folded_while_others_come_give_what_everything_at_once_gives(
    tmp_path: Path, lines: list[bytes]
) -> None:
    spark = small_spark()
    from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
    from stagepost.pipeline.tables.manifest import OfDump
    from stagepost.pipeline.tables.tables import Tables

    now_ms = 0
    folded: list[int] = []

    def at_point(name: str) -> None:
        """A batch comes in while the ones before it are being folded."""
        if name == "during compaction" and not folded:
            folded.append(len(tables.manifest.batches))
            take(driver, 2)

    def take(driver: Driver, part: int) -> None:
        path = tmp_path / f"{part}.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in lines[part::PARTS]))
        dump = survey(path)
        assert driver.take_dump(dump, Evaluation(now_ms, what=Evaluated.MESSAGES), OfDump(dump.digest))

    tables = Tables(tmp_path / "tables", at_point=at_point)
    try:
        driver = Driver(spark, tables, sets_bytes())
        take(driver, 0)
        take(driver, 1)
        assert driver.fold(0)
        manifest = tables.manifest
    finally:
        tables.close()

    assert folded == [2]
    assert len(manifest.batches) == 2
    ordered = [line for part in range(PARTS) for line in lines[part::PARTS]]
    expected = recompute(ordered, world_sets())
    assert (counts(manifest)["counted"], counts(manifest)["repeated"]) == (
        expected.counted,
        expected.repeated,
    )
    # Nothing is evaluated again for another moment: it is chosen when the table is read.
    assert expected.as_of_ms is not None
    for as_of_ms in (0, expected.as_of_ms, expected.as_of_ms + TIMEOUT_MS):
        reader = Reader(tmp_path / "tables", as_of_ms=as_of_ms)
        shown = {row["message_id"]: row for row in reader.table("messages")}
        reader.close()
        assert shown == recompute(ordered, world_sets(), as_of_ms=as_of_ms).messages


def test_what_is_being_written_or_read_is_not_removed_by_another_commit(tmp_path: Path) -> None:
    need_packages()
    from stagepost.pipeline.tables.tables import GRACE_MS, Tables

    now_s = 0.0
    tables = Tables(tmp_path, now=lambda: now_s)
    with tables.work() as first:
        (first / "records").mkdir(parents=True)
        (first / "records" / "00112233aabbccdd.parquet").touch()
        with tables.work() as second:
            tables.publish(lambda manifest: manifest)
            now_s += GRACE_MS
            tables.publish(lambda manifest: manifest)
        assert (first / "records" / "00112233aabbccdd.parquet").exists()
        assert first != second
    tables.close()

    assert not first.exists()


def sized(*rows: int) -> list[Batch]:
    return [Batch({LIVES: []}, rows=count) for count in rows]


@pytest.mark.parametrize(
    ("rows", "place"),
    [((), 0), ((5,), 1), ((1, 1), 0), ((9, 3, 2, 1), 1), ((9, 4, 1), 3), ((8, 4, 2, 2), 0), ((0, 0), 0)],
)
def test_batches_are_folded_from_the_first_that_is_no_larger_than_all_after_it(
    rows: tuple[int, ...], place: int
) -> None:
    need_packages()
    from stagepost.pipeline.tables.folding import worth_folding

    assert worth_folding(sized(*rows)) == place


@given(rows=st.lists(st.integers(1, 1_000), min_size=1, max_size=400))
def test_a_record_is_written_again_a_few_times_only_however_long_a_stream_runs(rows: list[int]) -> None:
    need_packages()
    from stagepost.pipeline.tables.folding import worth_folding

    batches: list[Batch] = []
    written = 0
    for count in rows:
        batches += sized(count)
        if len(batches) > 5:
            place = worth_folding(batches)
            if len(batches) - place > 1:
                batches = [*batches[:place], joined(batches[place:])]
                written += batches[-1].rows
    total = sum(rows)
    assert sum(batch.rows for batch in batches) == total
    assert written <= total * (total.bit_length() + 1)
    assert len(batches) <= 6 + total.bit_length()
