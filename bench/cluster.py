"""The pipeline on a Spark cluster beside the same on one machine: `make bench PART=cluster`.

A real standalone cluster on loopback: a master, and workers of one core each with nothing installed. First one worker does
the verification stage (lines read, parsed, checked and written), then two; then both take the whole way to
published tables, and an embedded Spark with two cores does the same. Processor time is that of every process of either kind:
driver, executors, their Python workers.

What a second worker brings can be no more than what a second core brings in that minute: two bare processes that do the same checks
beside one say how much that is. On a machine with other things to do it is far from two.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.whole_path import Reading
from rigs.receipt_lines import EPOCH_MS, a_block, a_master_block, line_of, signed
from rigs.remp_world import FULL_NODE, session, session_name, sets_file
from rigs.spark_cluster import SparkCluster
from stagepost.errors import ConfigError
from stagepost.pipeline.sources.dumps import Dump, lines_of, read_line, records_of, survey
from stagepost.pipeline.spark import cache_folder, find_java_home, refuse_missing_packages
from stagepost.pipeline.steps.record_checks import RecordChecks
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, SentToValidators
from stagepost.remp.receipts.status import Level
from stagepost.remp.validator_sets import parse_validator_sets

RECEIPTS = 200_000
WARM_UP_RECEIPTS = 20_000
BARE_RECEIPTS = 8_000
WARM_UPS = 3
CORE_ROUNDS = 3
PIECES = 8
"""Of a dump: a task each, so that two workers end at about the same time."""

WAIT_S = 120.0
VALIDATORS = range(7)
SETS = json.dumps(sets_file(session(1, VALIDATORS), timeout_ms=240_000)).encode()
CONF = {"spark.driver.memory": "1g", "spark.executor.memory": "768m", "spark.sql.shuffle.partitions": "4"}


class Cost(NamedTuple):
    """Of two backfills of different size: what grows with the receipts, and what does not."""

    receipt_us: float
    fixed_s: float
    dump_bytes: float
    table_bytes: float


def measure(receipts: int = RECEIPTS, warm_up: int = WARM_UP_RECEIPTS) -> tuple[list[Reading], list[str]]:
    """Readings; there is no target to miss."""
    try:
        refuse_missing_packages()
        java_home = find_java_home(os.environ, cache_folder())
    except ConfigError as error:
        print(f"cluster: not run: {error.text}", file=sys.stderr)
        return [], []
    with TemporaryDirectory(prefix="stagepost-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        warm = _written(folder / "warm.jsonl", warm_up, 10**6)
        whole = _written(folder / "whole.jsonl", receipts, 0)
        bare_us = bare_check_us(whole)
        cluster = SparkCluster(folder / "cluster", java_home)
        try:
            cluster.start_workers(1)
            readings, there = _on_cluster(cluster, folder, warm, whole)
        finally:
            cluster.stop()
        here = _embedded(folder, warm, whole)
    readings += [
        Reading("cluster: processor time of one more receipt, to tables", there.receipt_us, "µs"),
        Reading("cluster: the same embedded, local[2]", here.receipt_us, "µs"),
        Reading("cluster: cluster over embedded", there.receipt_us / here.receipt_us, "x"),
        Reading("cluster: processor time of a backfill beside its receipts", there.fixed_s, "s"),
        Reading("cluster: the same embedded, local[2]", here.fixed_s, "s"),
        Reading("cluster: parsing and checking one receipt, in a bare loop", bare_us, "µs"),
        Reading("cluster: a receipt in the dump", there.dump_bytes, "B"),
        Reading("cluster: a receipt in the tables", there.table_bytes, "B"),
    ]
    return readings, []


def _on_cluster(cluster: SparkCluster, folder: Path, warm: Dump, whole: Dump) -> tuple[list[Reading], Cost]:
    from stagepost.pipeline.cluster.cluster import Cluster, start_on_cluster
    from stagepost.pipeline.cluster.pack import pack
    from stagepost.pipeline.cluster.probe import Folders

    began = time.perf_counter()
    packed = pack(folder / "stagepost.zip")
    packing_s, began = time.perf_counter() - began, time.perf_counter()
    given = Cluster(cluster.master, packed.path, str(cluster.worker_python), CONF, WAIT_S)
    os.environ |= cluster.environment
    spark = start_on_cluster(given, Folders((folder,), folder / "tables"))
    started_s = time.perf_counter() - began
    try:
        one = _verified(spark, cluster, warm, whole, folder)
        cluster.start_workers(2)
        _wait_for_executors(spark, 2)
        two = _verified(spark, cluster, warm, whole, folder)
        second_core = what_a_second_core_brings(warm)
        roots = [_jvm(spark), *(worker.pid for worker in cluster.workers)]
        cost = _cost(spark, roots, folder / "on cluster", warm, whole)
    finally:
        spark.stop()
    readings = [
        Reading("cluster: making the archive", packing_s, "s"),
        Reading("cluster: the archive", packed.size_bytes / 1e6, "MB"),
        Reading("cluster: from nothing to workers that have been seen to work", started_s, "s"),
        Reading("cluster: verification stage, one worker", whole.lines / one.wall_s, "receipts/s"),
        Reading("cluster: verification stage, two workers", whole.lines / two.wall_s, "receipts/s"),
        Reading("cluster: two workers over one", one.wall_s / two.wall_s, "x"),
        Reading("cluster: two bare processes over one, the same checks", second_core, "x"),
        Reading("cluster: its processor time, two workers over one", two.cpu_s / one.cpu_s, "x"),
        Reading("cluster: its processor time, per receipt", two.cpu_s / whole.lines * 1e6, "µs"),
    ]
    return readings, cost


def _embedded(folder: Path, warm: Dump, whole: Dump) -> Cost:
    from stagepost.pipeline.spark import start_session

    spark = start_session("bench", master="local[2]")
    try:
        return _cost(spark, [_jvm(spark)], folder / "embedded", warm, whole)
    finally:
        spark.stop()


def bare_check_us(dump: Dump) -> float:
    """The work that has to be done in any case, in one process without Spark: processor time of one receipt."""
    lines = [line for piece in dump.pieces for line in lines_of(piece)][:BARE_RECEIPTS]
    checks = RecordChecks(parse_validator_sets(SETS, "sets"))
    began = time.process_time()
    for number, line in enumerate(lines):
        record = read_line(line, number)
        checks.check(record.key, record.value, record.arrived_ms, is_fault=record.is_fault)
    return (time.process_time() - began) / len(lines) * 1e6


def what_a_second_core_brings(dump: Dump) -> float:
    """How much faster two processes do two of these loops than one does: the most that a second worker can bring."""
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:

        def took_s(loops: int) -> float:
            began = time.perf_counter()
            for one in [processes.submit(bare_check_us, dump) for _ in range(loops)]:
                one.result()
            return time.perf_counter() - began

        took_s(2)  # both have everything loaded then
        rounds = [(took_s(1), took_s(2)) for _ in range(CORE_ROUNDS)]
    return median(2 * alone_s / beside_s for alone_s, beside_s in rounds)


def _cost(spark: Any, roots: Sequence[int], out: Path, warm: Dump, whole: Dump) -> Cost:
    # What Java compiles while it runs the same for the first times would be taken for the price of a receipt.
    for number in range(WARM_UPS):
        _backfill(spark, warm, out / f"warm {number}")
    spent = []
    for dump, name in ((warm, "small"), (whole, "whole")):
        before = cpu_s(roots)
        _backfill(spark, dump, out / name)
        spent.append(cpu_s(roots) - before)
    receipt_s = (spent[1] - spent[0]) / (whole.lines - warm.lines)
    written = sum(path.stat().st_size for path in (out / "whole").rglob("day=*/*.parquet"))
    return Cost(
        receipt_s * 1e6,
        spent[1] - receipt_s * whole.lines,
        Path(whole.path).stat().st_size / whole.lines,
        written / whole.lines,
    )


class Stage(NamedTuple):
    wall_s: float
    cpu_s: float


def _verified(spark: Any, cluster: SparkCluster, warm: Dump, whole: Dump, folder: Path) -> Stage:
    roots = [_jvm(spark), *(worker.pid for worker in cluster.workers)]
    _verify(spark, warm, folder)
    before = cpu_s(roots)
    return Stage(_verify(spark, whole, folder), cpu_s(roots) - before)


def _verify(spark: Any, dump: Dump, folder: Path) -> float:
    """Wall time of the workers' own step: lines read, parsed, checked, and written with their partial state."""
    from stagepost.pipeline.steps.checked_files import ACCOUNT, Target, checking_parts
    from stagepost.pipeline.tables.store import TableStore

    store = TableStore.at(folder / "checked" / secrets.token_hex(4))
    step = checking_parts(dump.pieces, records_of, SETS, Target(store, "0", "1970-01-01"))
    began = time.perf_counter()
    accounts = spark.range(0, len(dump.pieces), 1, len(dump.pieces)).mapInArrow(step, ACCOUNT).collect()
    took_s = time.perf_counter() - began
    checked = sum(json.loads(row[0])["passing"] for row in accounts)
    assert checked == dump.lines, f"{checked} of {dump.lines} receipts passed"
    return took_s


def _backfill(spark: Any, dump: Dump, out: Path) -> None:
    from stagepost.pipeline.driver import Evaluated, Evaluation
    from stagepost.pipeline.jobs import backfill

    backfill(spark, [dump], SETS, out, Evaluation(what=Evaluated.MESSAGES))


def _wait_for_executors(spark: Any, count: int) -> None:
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    began = time.monotonic()
    while len(tracker.getExecutorInfos()) < count + 1:  # the driver is one of them
        if time.monotonic() - began > WAIT_S:
            raise AssertionError(f"no {count} executors within {WAIT_S:g} s")
        time.sleep(0.1)


def _jvm(spark: Any) -> int:
    return int(spark.sparkContext._gateway.proc.pid)


def cpu_s(roots: Sequence[int]) -> float:
    """Of this process, and of these with all below them, those that have ended included."""
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
    family = set(roots)
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(times.get(one, 0.0) for one in family) + time.process_time()


def _written(path: Path, count: int, first: int) -> Dump:
    with path.open("wb") as file:
        file.writelines(_lines(count, first))
    return survey(path, max(1, path.stat().st_size // PIECES))


def _lines(count: int, first: int) -> Iterator[bytes]:
    """Lives of messages that all go well, from sent to finalized: 23 receipts each, all different."""
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--receipts", type=int, default=RECEIPTS)
    parser.add_argument(
        "--warm-up", type=int, default=WARM_UP_RECEIPTS, help="receipts of the small backfills"
    )
    given = parser.parse_args()
    for reading in measure(given.receipts, given.warm_up)[0]:
        print(f"{reading.name:64} {reading.value:>12,.2f} {reading.unit}")
