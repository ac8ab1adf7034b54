"""What the pipeline costs beside the bare work in it: `make bench PART=pipeline`.

The bare work is one loop that parses a line and checks its receipt, in one process. Spark's figure is all processor
time of its processes, the JVM and the Python workers, from the lines of a dump to published tables. DuckDB stands beside
it with the same function for the checks, run in as many processes as Spark has cores.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.whole_path import Reading
from stagepost.crypto import ed25519
from stagepost.errors import ConfigError
from stagepost.pipeline.dump_lines import read_line
from stagepost.pipeline.dumps import Dump, Piece, lines_of, survey
from stagepost.pipeline.record_checks import RecordChecks
from stagepost.remp.message_status import Accepted, MessageStatus, New, SentToValidators
from stagepost.remp.receipt import Receipt
from stagepost.remp.status import Level
from stagepost.remp.validator_sets import parse_validator_sets
from tests.pipeline_world import EPOCH_MS, a_block, a_master_block, line_of, signed
from tests.remp_world import FULL_NODE, seed_of, session, session_name, sets_file

RECEIPTS = 100_000
BARE_RECEIPTS = 10_000
WARM_UP_RECEIPTS = 20_000
CORES = 2
SPARK_OVER_BARE_MAX = 1.35
SPARK_OVER_DUCKDB_MAX = 1.3
VALIDATORS = range(7)
SETS = json.dumps(sets_file(session(1, VALIDATORS), timeout_ms=240_000)).encode()


def measure(receipts: int = RECEIPTS) -> tuple[list[Reading], list[str]]:
    """Readings, and a sentence for each target that was missed."""
    try:
        from stagepost.pipeline.session import start_session

        with TemporaryDirectory() as name:
            began = time.perf_counter()
            spark = start_session("bench", master=f"local[{CORES}]")
            started_s = time.perf_counter() - began
            try:
                return _measured(spark, Path(name), receipts, started_s)
            finally:
                spark.stop()
    except ConfigError as error:
        print(f"pipeline: not run: {error.text}", file=sys.stderr)
        return [], []


def _measured(
    spark: object, folder: Path, receipts: int, started_s: float
) -> tuple[list[Reading], list[str]]:
    warm, whole = (
        _written(folder / f"{count}.jsonl", count, first)
        for count, first in ((WARM_UP_RECEIPTS, 10**6), (receipts, 0))
    )
    bare_s = _bare_s(whole)
    _backfill(spark, warm, folder / "warm")
    before, began = _spark_cpu_s(spark), time.perf_counter()
    _backfill(spark, whole, folder / "spark")
    wall_s, cpu_s = time.perf_counter() - began, _spark_cpu_s(spark) - before
    duckdb_s = _by_duckdb(whole, folder / "duckdb")
    over_bare, over_duckdb = cpu_s / (bare_s * receipts), wall_s / duckdb_s
    readings = [
        Reading("pipeline: starting Spark", started_s, "s"),
        Reading("pipeline: bare parse and check, receipts per core", 1 / bare_s, "/s"),
        Reading("pipeline: signatures alone, share of the bare loop", _signature_s() / bare_s, "x"),
        Reading(f"pipeline: {receipts:,} receipts to tables, per core", receipts / cpu_s, "/s"),
        Reading(
            f"pipeline: Spark's processor time over the bare loop (at most {SPARK_OVER_BARE_MAX})",
            over_bare,
            "x",
        ),
        Reading(
            f"pipeline: Spark's wall time over DuckDB's (at most {SPARK_OVER_DUCKDB_MAX})", over_duckdb, "x"
        ),
        Reading("pipeline: Spark's wall time", wall_s, "s"),
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


def _lines(count: int, first: int) -> Iterator[bytes]:
    """Lives of messages that all go well: sent, queued, included, accepted, finalized."""
    number, given = first, 0
    hint = {"session": session_name(1).hex()}
    while given < count:
        block, now = a_block(1 + number % 1_000), EPOCH_MS + number
        said: list[tuple[int, MessageStatus]] = [(FULL_NODE, SentToValidators(3, len(VALIDATORS)))]
        for step in (New(), Accepted(Level.COLLATOR, block), Accepted(Level.SHARDCHAIN, block)):
            said += [(one, step) for one in VALIDATORS]
        said.append((FULL_NODE, Accepted(Level.MASTERCHAIN, block, a_master_block(7))))
        for place, (who, status) in enumerate(said[: count - given]):
            receipt = signed(number, who, status, now + 10 * place)
            yield json.dumps(line_of(receipt, now + 10 * place + 5, headers=hint)).encode() + b"\n"
        given += len(said)
        number += 1


def _written(path: Path, count: int, first: int) -> Dump:
    with path.open("wb") as file:
        file.writelines(_lines(count, first))
    return survey(path, max(1, path.stat().st_size // (4 * CORES)))


def _bare_s(dump: Dump) -> float:
    """Of one receipt, in processor time."""
    lines = [line for piece in dump.pieces for line in lines_of(piece)][:BARE_RECEIPTS]
    checks = RecordChecks(parse_validator_sets(SETS, "sets"))
    began = time.process_time()
    for number, line in enumerate(lines):
        record = read_line(line, number)
        checks.check(record.key, record.value, record.arrived_ms, is_fault=record.is_fault)
    return (time.process_time() - began) / len(lines)


def _signature_s(count: int = 2_000) -> float:
    receipt: Receipt = signed(1, 0, New(), EPOCH_MS)
    public_key, data, signature = ed25519.public_key(seed_of(0)), receipt.signed_bytes, receipt.signature
    assert signature is not None
    began = time.process_time()
    for _ in range(count):
        ed25519.verify(public_key, data, signature)
    return (time.process_time() - began) / count


def _backfill(spark: object, dump: Dump, out: Path) -> None:
    from stagepost.pipeline.driver import Evaluated, Evaluation
    from stagepost.pipeline.jobs import backfill

    backfill(spark, [dump], SETS, out, Evaluation(what=Evaluated.MESSAGES))  # type: ignore[arg-type,unused-ignore]


def _spark_cpu_s(spark: object) -> float:
    """Of this process, the JVM and everything below it, those that have ended included."""
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[attr-defined]
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # ended meanwhile
            parents[int(entry.name)] = int(fields[1])
            times[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {jvm}
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(times.get(one, 0.0) for one in family) + time.process_time()


def _by_duckdb(dump: Dump, out: Path) -> float:
    """The same from lines to records, state and one row for each message, without sessions and verdicts; its wall time."""
    import duckdb

    out.mkdir()
    began = time.perf_counter()
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        files = list(pool.map(_check_piece, dump.pieces, [str(out)] * len(dump.pieces)))
    connection = duckdb.connect(":memory:")
    connection.execute(f"SET threads = {CORES}")
    connection.execute(
        "CREATE TABLE state AS SELECT message_id, source_id, role, session_hint, wc, shard, "
        "max(struct_pack(t := timestamp_ms, k := kind)) AS last, min(timestamp_ms) AS first_ms, "
        "list(DISTINCT signed_hash) AS signed_hashes FROM read_parquet(?) WHERE reason IS NULL GROUP BY ALL",
        [files],
    )
    connection.execute(f"COPY state TO '{out}/state.parquet' (FORMAT parquet, COMPRESSION zstd)")
    connection.execute(
        "COPY (SELECT message_id, min(first_ms) AS first_ms, len(list_distinct(flatten(list(signed_hashes)))) AS receipts "
        f"FROM state GROUP BY message_id) TO '{out}/messages.parquet' (FORMAT parquet, COMPRESSION zstd)"
    )
    connection.close()
    return time.perf_counter() - began


def _check_piece(piece: Piece, out: str) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stagepost.pipeline.arrow_columns import arrow_schema, batch_of
    from stagepost.pipeline.schemas import RECORDS

    checks = RecordChecks(parse_validator_sets(SETS, "sets"))
    rows = []
    for number, line in enumerate(lines_of(piece), start=piece.line):
        record = read_line(line, number)
        rows.append(
            (*record, *checks.check(record.key, record.value, record.arrived_ms, is_fault=record.is_fault))
        )
    path = f"{out}/{piece.begin}.parquet"
    pq.write_table(pa.Table.from_batches([batch_of(rows, arrow_schema(RECORDS))]), path, compression="zstd")
    return path
