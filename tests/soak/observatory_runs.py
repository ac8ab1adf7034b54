"""The observatory at full count: 3,000 pools, 10 epochs, signed messages through the pipeline, against a recomputation."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from rigs.results import Result, result
from stagepost.pipeline.spark import start_session
from stagepost.pipeline.tables.reader import Reader
from tests.soak.pipeline_runs import missing_spark
from tests.soak.runs import Run
from tests.worlds.dmq.mithril_traffic import Traffic
from tests.worlds.pipeline.observatory_oracle import beacon_rows, differences, pool_rows
from tests.worlds.pipeline.pipeline_world import sets_bytes

POOLS, EPOCHS, BEACONS = 3_000, 10, 3
POOLS_PER_PART = 500
FAULTS_SHOWN = 20
TEST = (
    "tests/soak/observatory_runs.py: 3,000 pools and 10 epochs through Spark, against a plain recomputation"
)


def observatory(run: Run) -> Iterator[Result]:
    """P1 for the observatory: every figure of every beacon and pool is that of a plain recomputation."""
    if missing := missing_spark():
        yield result("P1", TEST, "not run", faults=[missing], seed=run.seed)
        return
    traffic = Traffic(POOLS, EPOCHS, run.seed, per_part=POOLS_PER_PART, beacons=BEACONS)
    with TemporaryDirectory() as name:
        records = write_dump(traffic, Path(name) / "traffic.jsonl")
        run.say(f"{records} records of {POOLS} pools written")
        faults = tables_differ(traffic, Path(name))
    counted = (
        f"{records} records, {len(beacon_rows(traffic))} beacons, {len(pool_rows(traffic))} rows of pools"
    )
    yield result(
        "P1", TEST, f"{counted}, {len(faults)} cells differ", faults=faults[:FAULTS_SHOWN], seed=run.seed
    )


def write_dump(traffic: Traffic, path: Path) -> int:
    records = traffic.records()
    with path.open("w") as file:
        for one in records:
            value = base64.b64encode(one.value).decode()
            line = {"topic": one.topic, "key": one.key, "value_base64": value, "timestamp_ms": one.arrived_ms}
            file.write(json.dumps(line) + "\n")
    return len(records)


def tables_differ(traffic: Traffic, folder: Path) -> list[str]:
    from stagepost.pipeline.jobs import backfill
    from stagepost.pipeline.sources.dumps import survey

    spark = start_session(
        "soak", master="local[2]", settings={"spark.sql.shuffle.partitions": "4"}, is_short=True
    )
    try:
        backfill(spark, [survey(folder / "traffic.jsonl")], sets_bytes(), folder / "tables")
    finally:
        spark.stop()
    reader = Reader(folder / "tables")
    try:
        faults = []
        for name, key, wanted in (
            ("mithril_beacons", ("epoch", "variant", "beacon"), beacon_rows(traffic)),
            ("mithril_pools", ("epoch", "pool_id"), pool_rows(traffic)),
        ):
            rows = reader.table(name)
            found = {
                tuple(row[one] for one in key): {n: v for n, v in row.items() if n != "day"} for row in rows
            }
            faults += differences(found, wanted)
        return faults
    finally:
        reader.close()
