"""The tables of the observatory on a small Spark: equal to a plain recomputation, in one batch or in many."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stagepost.pipeline.sources.dumps import survey
from stagepost.pipeline.tables.reader import BY_EPOCH, Reader
from tests.worlds.dmq.mithril_traffic import FIRST_EPOCH, TopicRecord, Traffic
from tests.worlds.pipeline.observatory_oracle import beacon_rows, differences, epoch_figures, pool_rows
from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_world import sets_bytes

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POOLS, EPOCHS = 14, 4


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return small_spark()


@pytest.fixture(scope="module")
def traffic(run_seed: int) -> Traffic:
    return Traffic(POOLS, EPOCHS, run_seed)


def dump(path: Path, records: list[TopicRecord]) -> Path:
    lines = (
        {
            "topic": one.topic,
            "key": one.key,
            "value_base64": base64.b64encode(one.value).decode(),
            "timestamp_ms": one.arrived_ms,
        }
        for one in records
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def taken(spark: SparkSession, folder: Path, parts: list[list[TopicRecord]]) -> Path:
    """Take each part as a batch of its own, with all reports after each."""
    from stagepost.pipeline.driver import Driver, Evaluation
    from stagepost.pipeline.tables.manifest import OfDump
    from stagepost.pipeline.tables.tables import Tables

    tables = Tables(folder / "tables")
    try:
        driver = Driver(spark, tables, sets_bytes())
        for number, part in enumerate(parts):
            found = survey(dump(folder / f"{number}.jsonl", part))
            driver.take_dump(found, Evaluation(), OfDump(found.digest))
    finally:
        tables.close()
    return folder / "tables"


@pytest.fixture(scope="module")
def tables(spark: SparkSession, traffic: Traffic, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables after two batches: the second brings one signature and one part of a stake, of epochs that the first had."""
    records = traffic.records()
    plan = next(one for one in traffic.plans if one.epoch == FIRST_EPOCH)
    part = traffic.stake_records(traffic.stakes[FIRST_EPOCH + 1])[0]
    late = {traffic.signed(plan).message_id.hex(), part.key}
    first = [one for one in records if one.key not in late]
    assert 2 <= len(records) - len(first) < 6
    folder = tmp_path_factory.mktemp("batches")
    return taken(spark, folder, [first, [one for one in records if one.key in late]])


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    reader = Reader(folder)
    try:
        return [{key: value for key, value in row.items() if key != "day"} for row in reader.table(name)]
    finally:
        reader.close()


def test_beacons_equal_a_plain_recomputation(tables: Path, traffic: Traffic) -> None:
    rows = rows_of(tables, "mithril_beacons")
    found = {(row["epoch"], row["variant"], row["beacon"]): row for row in rows}

    assert len(found) == len(rows)
    assert differences(found, beacon_rows(traffic)) == []


def test_pools_equal_a_plain_recomputation(tables: Path, traffic: Traffic) -> None:
    rows = rows_of(tables, "mithril_pools")
    found = {(row["epoch"], row["pool_id"]): row for row in rows}

    assert len(found) == len(rows)
    assert differences(found, pool_rows(traffic)) == []


def test_the_page_has_the_figures_of_a_plain_recomputation(tables: Path, traffic: Traffic) -> None:
    pytest.importorskip("fastapi", reason="the extra web is not installed")
    from stagepost.web.observatory import epoch_rows
    from stagepost.web.tables import TableQueries

    found = TableQueries(tables, 60.0).ask(lambda asking: epoch_rows(asking, 100))
    assert isinstance(found, list)
    wanted = epoch_figures(traffic)
    rows = {row["epoch"]: {name: row[name] for name in wanted[row["epoch"]]} for row in found}
    assert differences(rows, wanted) == []


def test_signatures_and_stake_are_there_and_nothing_forged(tables: Path, traffic: Traffic) -> None:
    signatures = rows_of(tables, "mithril_signatures")
    stakes = rows_of(tables, "pool_stakes")

    assert {row["dmq_id"] for row in signatures} == {
        message.message_id.hex() for message, _ in traffic.messages()
    }
    assert {row["epoch"] for row in stakes} == {
        epoch for epoch, one in traffic.stakes.items() if one.is_recorded
    }
    messages = rows_of(tables, "dmq_messages")
    assert len({row["dmq_id"] for row in messages}) == len({row["dmq_id"] for row in signatures}) + 5
    assert max(row["kes_period"] for row in messages) == 2**63 - 1


def test_tables_of_a_release_without_the_observatory_get_it(
    spark: SparkSession, tables: Path, traffic: Traffic, tmp_path: Path
) -> None:
    import msgspec

    from stagepost.pipeline.driver import Driver, Evaluation
    from stagepost.pipeline.tables.tables import Tables

    folder = Path(shutil.copytree(tables, tmp_path / "tables"))
    ours = ("pool_stakes", "mithril_signatures", *BY_EPOCH)
    held = Tables(folder)
    try:
        held._tables = {name: one for name, one in held._tables.items() if name not in ours}
        held.publish(lambda current: msgspec.structs.replace(current, changed_days={}))
        assert not set(ours) & set(held.manifest.versions)
    finally:
        held.close()
    reader = Reader(folder)
    assert reader.table("dmq_messages")
    reader.close()

    held = Tables(folder)
    try:
        driver = Driver(spark, held, None)
        assert held.manifest.changed_days
        driver.report(Evaluation())
    finally:
        held.close()
    found = {(row["epoch"], row["pool_id"]): row for row in rows_of(folder, "mithril_pools")}
    assert differences(found, pool_rows(traffic)) == []
