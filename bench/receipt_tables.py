"""What the pipeline costs beside the bare work in it: `make bench PART=pipeline`.

The bare work is one loop that parses a line and checks its receipt, in one process; it is measured before and after, on lines
from all over the dump, and both once more if the machine's pace has changed meanwhile. Spark's figure is all processor time of its processes, driver, JVM and Python workers, from the
lines of a dump to all published tables, those beside `messages` included; net of start-up, after every worker has seen a small dump.
Spark keeps all cores busy and the bare loop one of them, the others being idle; where cores share what they work with, that alone
makes a difference. So the bare loop is measured on all cores at once as well. That figure is printed, and no target is set for it.
DuckDB stands beside it with the same step for the checks, run in as many processes as Spark has cores, which writes the same
files. It makes the same tables, with less to do: of `messages` it works out neither sessions nor verdicts.
Before anything else, in a JVM that has done nothing yet, a topic of as many receipts as the demonstration has becomes tables.

    python -m bench.receipt_tables --large     10,000,000 receipts against 1,000,000: `make bench-large`
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import NamedTuple

import duckdb

from bench.pipeline_processes import Memory, used_by
from bench.receipts import SETS, receipts, write_dump
from bench.whole_path import Reading
from rigs.receipt_lines import EPOCH_MS, signed
from rigs.remp_world import seed_of
from rigs.results import write_lines
from stagepost.errors import ConfigError
from stagepost.ground.crypto import ed25519
from stagepost.pipeline.sources.dumps import PIECE_BYTES, Dump, Piece, lines_of, read_line, records_of, survey
from stagepost.pipeline.steps.record_checks import RecordChecks
from stagepost.remp.receipts.message_status import New
from stagepost.remp.validator_sets import parse_validator_sets
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import STATUSES, Record

RECEIPTS = 1_000_000
LARGE = 10_000_000
BARE_PIECES = 8
BARE_LINES_PER_PIECE = 6_000
"""Some seconds before and after: what a core does in one second says little about a minute in which neighbours come and go."""
CALM_MAX = 0.03
ATTEMPTS_MAX = 3
WARM_UP_RECEIPTS = 20_000
WARM_UP_PIECE_BYTES = 2 * 1024 * 1024
"""Small enough for several pieces: a worker that has had none would start within what is measured."""
CORES = 2
SPARK_OVER_BARE_MAX = 1.35
SPARK_OVER_DUCKDB_MAX = 1.3
LARGE_OVER_MAX = 10.2
SMALL_RECEIPTS = 4_400
SMALL_S_MAX = 15.0
"""Seconds, at most, from a started JVM to all tables of a small topic."""
LARGE_DISK_BYTES = 12 * 10**9
"""Of the dumps, the tables and what Spark puts aside while it works."""


class Run(NamedTuple):
    """Of one backfill, net of start-up."""

    wall_s: float
    cpu_s: float
    java_bytes: int
    python_bytes: int


def measure(receipts: int = RECEIPTS) -> tuple[list[Reading], list[str]]:
    """Readings, and a sentence for each target that was missed."""
    try:
        from stagepost.pipeline.spark import start_session

        with TemporaryDirectory() as name:
            began = time.perf_counter()
            # As `stagepost pipeline backfill` starts it.
            spark = start_session("bench", master=f"local[{CORES}]", is_short=True)
            started_s = time.perf_counter() - began
            try:
                small = _small(spark, Path(name))
                readings, missed = _measured(spark, Path(name), receipts, started_s)
                if small[0].value > SMALL_S_MAX:
                    missed.append(
                        f"pipeline: {SMALL_RECEIPTS:,} receipts take {small[0].value:.1f} s to tables"
                    )
                return [*small, *readings], missed
            finally:
                spark.stop()
    except ConfigError as error:
        print(f"pipeline: not run: {error.text}", file=sys.stderr)
        return [], []


def _small(spark: object, folder: Path) -> list[Reading]:
    from stagepost.pipeline.stream import StreamOptions, follow

    data, sets = folder / "data", folder / "sets.json"
    sets.write_bytes(SETS)
    records = [
        Record(one.message_id.hex().encode(), one.to_json().encode(), {"session": hint}, one.timestamp_ms)
        for one, hint in receipts(SMALL_RECEIPTS, 10**9)
    ]

    async def append() -> None:
        writer = create_topic(data, STATUSES, 4).writer()
        await writer.append(records)
        await writer.close()

    asyncio.run(append())
    jvm: int = spark.sparkContext._gateway.proc.pid  # type: ignore[attr-defined]
    before, ours_s, began = used_by(jvm).cpu_s, time.process_time(), time.perf_counter()
    follow(spark, StreamOptions(data, sets, folder / "small", is_once=True))  # type: ignore[arg-type,unused-ignore]
    wall_s = time.perf_counter() - began
    cpu_s = used_by(jvm).cpu_s - before + time.process_time() - ours_s
    name = f"pipeline: {SMALL_RECEIPTS:,} receipts of a topic to all tables"
    return [
        Reading(f"{name}, wall time (at most {SMALL_S_MAX:g})", wall_s, "s"),
        Reading(f"{name}, processor time", cpu_s, "s"),
    ]


def _measured(
    spark: object, folder: Path, receipts: int, started_s: float
) -> tuple[list[Reading], list[str]]:
    _warm_up(spark, folder)
    whole = _written(folder, receipts)
    run, bare_s, unrest = _calmest(spark, whole, folder)
    at_once_s = _bare_at_once_s(whole)
    duckdb_s, duckdb_cpu_s = _by_duckdb(spark, whole, folder / "duckdb")
    over_bare, over_duckdb = run.cpu_s / (bare_s * receipts), run.wall_s / duckdb_s
    readings = [
        Reading("pipeline: starting Spark", started_s, "s"),
        Reading("pipeline: bare parse and check, receipts per core", 1 / bare_s, "/s"),
        Reading("pipeline: signatures alone, share of the bare loop", _signature_s() / bare_s, "x"),
        Reading(f"pipeline: {receipts:,} receipts to tables, per core", receipts / run.cpu_s, "/s"),
        Reading("pipeline: signatures alone, share of the whole", _signature_s() * receipts / run.cpu_s, "x"),
        Reading(
            f"pipeline: Spark's processor time over the bare loop (at most {SPARK_OVER_BARE_MAX})",
            over_bare,
            "x",
        ),
        Reading("pipeline: the bare loop afterwards over before", 1 + unrest, "x"),
        Reading(
            f"pipeline: the same over the bare loop on {CORES} cores at once",
            run.cpu_s / (at_once_s * receipts),
            "x",
        ),
        Reading(
            f"pipeline: Spark's wall time over DuckDB's (at most {SPARK_OVER_DUCKDB_MAX})", over_duckdb, "x"
        ),
        Reading("pipeline: Spark's processor time over DuckDB's", run.cpu_s / duckdb_cpu_s, "x"),
        Reading("pipeline: Spark's wall time", run.wall_s, "s"),
        Reading("pipeline: Spark's processor time", run.cpu_s, "s"),
        *_memory(run),
    ]
    missed = []
    if over_bare > SPARK_OVER_BARE_MAX:
        missed.append(
            f"pipeline: Spark takes {over_bare:.2f} x the bare loop, at most {SPARK_OVER_BARE_MAX} is the target"
        )
    if over_duckdb > SPARK_OVER_DUCKDB_MAX:
        missed.append(
            f"pipeline: Spark takes {over_duckdb:.2f} x DuckDB's time, target {SPARK_OVER_DUCKDB_MAX}"
        )
    return readings, missed


def _calmest(spark: object, whole: Dump, folder: Path) -> tuple[Run, float, float]:
    """A backfill, a receipt's time in the bare loop, and by what share that changed meanwhile. Of some attempts the one in
    which the machine changed its pace the least: the two are not measured at the same moment."""
    found: list[tuple[float, Run, float, float]] = []
    before_s = _bare_s(whole)
    for attempt in range(ATTEMPTS_MAX):
        run = _backfill(spark, whole, folder / f"spark-{attempt}")
        after_s = _bare_s(whole)
        unrest = after_s / before_s - 1
        found.append((abs(unrest), run, (before_s + after_s) / 2, unrest))
        if abs(unrest) <= CALM_MAX:
            break
        before_s = after_s
    _, run, bare_s, unrest = min(found, key=lambda one: one[0])
    return run, bare_s, unrest


def measure_large(few: int = RECEIPTS, many: int = LARGE) -> tuple[list[Reading], list[str]]:
    """Whether time grows with the records and memory does not."""
    from stagepost.pipeline.spark import start_session

    with TemporaryDirectory() as name:
        folder = Path(name)
        if disk_usage(folder).free < LARGE_DISK_BYTES * many / LARGE:
            free = disk_usage(folder).free / 10**9
            raise ConfigError(
                f"{folder} has {free:.0f} GB free, {LARGE_DISK_BYTES / 10**9:.0f} are needed",
                advice="set TMPDIR to another disk",
            )
        spark = start_session("bench", master=f"local[{CORES}]", is_short=True)
        try:
            _warm_up(spark, folder)
            runs = {}
            for count in (few, many):
                dump = _written(folder, count)
                runs[count] = _backfill(spark, dump, folder / str(count))
                Path(dump.path).unlink()
        finally:
            spark.stop()
    times = runs[many].wall_s / runs[few].wall_s
    limit = LARGE_OVER_MAX * many / few / 10
    readings = [
        Reading(f"pipeline: {few:,} receipts, wall time", runs[few].wall_s, "s"),
        Reading(f"pipeline: {many:,} receipts, wall time", runs[many].wall_s, "s"),
        Reading(f"pipeline: the second over the first (at most {limit:.1f})", times, "x"),
        Reading(
            "pipeline: processor time of the second over the first", runs[many].cpu_s / runs[few].cpu_s, "x"
        ),
        *_memory(runs[many]),
    ]
    missed = [f"pipeline: {many:,} receipts take {times:.1f} x the time of {few:,}"] if times > limit else []
    return readings, missed


def _memory(run: Run) -> list[Reading]:
    return [
        Reading("pipeline: most memory of the JVM", run.java_bytes / 2**20, "MiB"),
        Reading("pipeline: most memory of the Python workers", run.python_bytes / 2**20, "MiB"),
        Reading("pipeline: most memory of this process, the driver", _own_bytes() / 2**20, "MiB"),
    ]


def _own_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _written(folder: Path, count: int, first: int = 0, piece_bytes: int = PIECE_BYTES) -> Dump:
    path = folder / f"{count}.jsonl"
    write_dump(path, count, first, processes=CORES)
    return survey(path, piece_bytes)


def _warm_up(spark: object, folder: Path) -> None:
    dump = _written(folder, WARM_UP_RECEIPTS, first=10**8, piece_bytes=WARM_UP_PIECE_BYTES)
    _backfill(spark, dump, folder / "warm")


def _bare_s(dump: Dump) -> float:
    """Of one receipt, in processor time."""
    step = max(1, len(dump.pieces) // BARE_PIECES)
    chosen = dump.pieces[::step][:BARE_PIECES]
    lines = [line for piece in chosen for line in islice(lines_of(piece), BARE_LINES_PER_PIECE)]
    checks = RecordChecks(parse_validator_sets(SETS, "sets"))
    began = time.process_time()
    for number, line in enumerate(lines):
        record = read_line(line, number)
        checks.check(record.key, record.value, record.arrived_ms, is_fault=record.is_fault)
    return (time.process_time() - began) / len(lines)


def _bare_at_once_s(dump: Dump) -> float:
    """The same, while every core does it."""
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        return sum(pool.map(_bare_s, [dump] * CORES)) / CORES


def _signature_s(count: int = 2_000) -> float:
    receipt = signed(1, 0, New(), EPOCH_MS)
    public_key, data, signature = ed25519.public_key(seed_of(0)), receipt.signed_bytes, receipt.signature
    assert signature is not None
    began = time.process_time()
    for _ in range(count):
        ed25519.verify(public_key, data, signature)
    return (time.process_time() - began) / count


def _backfill(spark: object, dump: Dump, out: Path) -> Run:
    from stagepost.pipeline.driver import Evaluation
    from stagepost.pipeline.jobs import backfill

    jvm: int = spark.sparkContext._gateway.proc.pid  # type: ignore[attr-defined]
    before, ours_s, began = used_by(jvm).cpu_s, time.process_time(), time.perf_counter()
    with Memory(jvm) as memory:
        backfill(spark, [dump], SETS, out, Evaluation())  # type: ignore[arg-type,unused-ignore]
    wall_s = time.perf_counter() - began
    cpu_s = used_by(jvm).cpu_s - before + time.process_time() - ours_s
    return Run(wall_s, cpu_s, memory.java_bytes, memory.python_bytes)


def _by_duckdb(spark: object, dump: Dump, out: Path) -> tuple[float, float]:
    """From lines to the files of all tables; its wall time and its processor time. The verdicts that reports are made of are
    taken from elsewhere.
    """
    from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
    from stagepost.pipeline.steps.messages import Moment
    from stagepost.pipeline.steps.reports import Inputs, write_others
    from stagepost.pipeline.tables.manifest import OfDump
    from stagepost.pipeline.tables.tables import Tables

    tables = Tables(out / "tables")
    try:
        driver = Driver(spark, tables, SETS)  # type: ignore[arg-type,unused-ignore]
        driver.take_dump(dump, Evaluation(what=Evaluated.MESSAGES), OfDump(dump.digest))
        began, used_s = time.perf_counter(), _own_cpu_s()
        with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
            files = [
                path
                for some in pool.map(_check_piece, dump.pieces, [str(out)] * len(dump.pieces))
                for path in some
            ]
        connection = duckdb.connect(":memory:")
        connection.execute(f"SET threads = {CORES}")
        connection.execute(
            "CREATE TABLE state AS SELECT message_id, source_id, role, session_hint, wc, shard, max(last) AS last, "
            "min(first_ms) AS first_ms, list_distinct(flatten(list(signed_hashes))) AS signed_hashes "
            "FROM read_parquet(?) GROUP BY ALL",
            [files],
        )
        connection.execute(
            "COPY (SELECT message_id, min(first_ms) AS first_ms, len(list_distinct(flatten(list(signed_hashes)))) AS receipts "
            f"FROM state GROUP BY message_id) TO '{out}/messages.parquet' (FORMAT parquet, COMPRESSION zstd)"
        )
        connection.close()
        days = sorted({one.day for one in tables.table("records").held()})
        moment = Moment(tables.manifest.total.natural_as_of_ms, driver.sets.message_timeout_ms)
        write_others(Inputs(spark, tables, days, driver.sets, moment), {}, lambda: None)
        return time.perf_counter() - began, _own_cpu_s() - used_s
    finally:
        tables.close()


def _own_cpu_s() -> float:
    """Return the processor seconds of this process and of its ended children."""
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in found)


def _check_piece(piece: Piece, out: str) -> list[str]:
    """Write the files of a task, as the pipeline's workers do; return those of the state."""
    from stagepost.pipeline.steps.checked_files import CheckedFiles, Target, rows_of
    from stagepost.pipeline.tables.store import TableStore

    gc.disable()
    store = TableStore.at(out)
    task = CheckedFiles(parse_validator_sets(SETS, "sets"), Target(store, "0", "1970-01-01"))
    for rows in rows_of(records_of(piece)):
        task.take(rows)
    return [store.path(file.table, file.path) for file in task.close().files if file.table == "state"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.receipt_tables")
    parser.add_argument("--large", action="store_true", help=f"{LARGE:,} receipts against {RECEIPTS:,}")
    parser.add_argument("--receipts", type=int, default=RECEIPTS, metavar="N", help="the smaller number")
    options = parser.parse_args(arguments)
    try:
        readings, missed = (
            measure_large(options.receipts, 10 * options.receipts)
            if options.large
            else measure(options.receipts)
        )
    except ConfigError as error:
        print(f"pipeline: not run: {error.text}", file=sys.stderr)
        return 2
    for reading in readings:
        print(f"{reading.name:84} {reading.value:>12,.2f} {reading.unit}".rstrip())
    for text in missed:
        print(text, file=sys.stderr)
    command = (
        f"python -m bench.receipt_tables{' --large' if options.large else ''} --receipts {options.receipts}"
    )
    write_lines("bench", command, [asdict(reading) for reading in readings])
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
