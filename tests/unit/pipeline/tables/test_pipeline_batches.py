"""Batches that come one after another, each evaluating what it touches: on read the same as everything at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stagepost.pipeline.sources.dumps import survey
from stagepost.pipeline.tables.manifest import RECORDS, Batch, Manifest, OfDump, counts
from stagepost.pipeline.tables.query import MOMENTS, TableQuery
from stagepost.pipeline.tables.reader import Reader
from stagepost.pipeline.tables.store import TableStore
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_world import TIMEOUT_MS, a_dump, sets_bytes, world_sets
from tests.worlds.pipeline.written_tables import write_lake

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

if TYPE_CHECKING:
    from stagepost.pipeline.driver import Driver

PARTS = 3


@pytest.fixture
def lines(run_seed: int) -> list[bytes]:
    return a_dump(8, run_seed)


def test_batches_that_are_compacted_between_others_give_what_everything_at_once_gives(
    tmp_path: Path, lines: list[bytes]
) -> None:
    spark = small_spark()
    from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
    from stagepost.pipeline.tables.tables import Tables
    from stagepost.pipeline.upkeep import Upkeep

    now_ms = 0
    points: list[str] = []

    def take(driver: Driver, part: int) -> None:
        path = tmp_path / f"{part}.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in lines[part::PARTS]))
        dump = survey(path)
        assert driver.take_dump(dump, Evaluation(now_ms, what=Evaluated.MESSAGES), OfDump(dump.digest))

    tables = Tables(tmp_path / "tables", at_point=points.append)
    try:
        driver = Driver(spark, tables, sets_bytes())
        take(driver, 0)
        take(driver, 1)
        assert Upkeep(driver).tidy(files_max=1)
        take(driver, 2)
        manifest = tables.manifest
    finally:
        tables.close()

    assert points.count("during compaction") == 1
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
        then = recompute(ordered, world_sets(), as_of_ms=as_of_ms).messages
        assert shown == then
        query = f"SELECT message_id, verdict FROM {MOMENTS}({as_of_ms})"
        with TableQuery(TableStore.at(tmp_path / "tables"), query) as found:
            assert dict(found.rows()) == {key: row["verdict"] for key, row in then.items()}


def test_a_day_with_so_many_files_is_compacted_and_no_other(tmp_path: Path) -> None:
    """And what the compaction left out is removed when readers of older versions are done."""
    spark = small_spark()
    from stagepost.pipeline.driver import Driver
    from stagepost.pipeline.tables.tables import Tables
    from stagepost.pipeline.upkeep import Upkeep

    for number, day in enumerate(("2026-01-30", "2026-01-30", "2026-01-31")):
        write_lake(tmp_path, {RECORDS: [{"offset": number}]}, Manifest(total=Batch(rows=number)), day)
    tables = Tables(tmp_path)
    try:
        driver = Driver(spark, tables, sets_bytes())
        before = tables.table(RECORDS).held()
        assert not Upkeep(driver).tidy(files_max=2)
        assert tables.table(RECORDS).held() == before

        assert Upkeep(driver).tidy(files_max=1)

        after = tables.table(RECORDS).held()
        assert [(one.day, one.rows) for one in after] == [("2026-01-30", 2), ("2026-01-31", 1)]
        assert {one.path for one in after} & {one.path for one in before} == {before[2].path}
        assert all((tmp_path / RECORDS / one.path).exists() for one in before), (
            "readers may still look at them"
        )
        assert not Upkeep(driver).tidy(files_max=1)
    finally:
        tables.close()
