"""Time of a batch beside history: tables of 100,000, a million and ten million receipts, made straight, take batches of a stream.

Half of the receipts of each batch are of messages that the batch before began, half of new ones; each batch evaluates what
it touches. The median of several batches is compared, in wall time and in processor time of the driver, the JVM and the workers.
Then sessions switch, as a full node writes it into the sets file: what was received since is checked again. Single messages are
looked up by their ids, without Spark. `make bench PART=pipeline` runs it.

    python -m bench.table_batches --receipts 1000000 10000000
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from bench.cluster import cpu_s
from bench.receipts import RECEIPTS_PER_MESSAGE, VALIDATORS, receipts
from bench.table_history import looked_up, make_history
from bench.whole_path import Reading
from rigs.receipt_lines import EPOCH_MS
from rigs.remp_world import session, sets_file
from stagepost.pipeline.sources.dumps import survey
from stagepost.pipeline.tables.delta import DAY_MS
from stagepost.pipeline.tables.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = (100_000, 1_000_000, 10_000_000)
DAYS = 20
MESSAGES_PER_BATCH = 100
WARM_UP, MEASURED = 4, 9
"""Batches before those that count, and those that count."""

GROWTH_MAX = 1.2
"""Times, at most, that a batch beside the largest history takes of one beside the smallest."""


LOOK_UP_MS_MAX = 200.0
"""Milliseconds, at most, in which one message is found by its id beside the largest history."""

SWITCHES = 3
SWITCH_S_MAX = 5.0
"""Seconds, at most, until the tables have followed a switch of sessions."""


class Batches(NamedTuple):
    """Medians of the batches that count and of the switches, in seconds."""

    wall_s: float
    cpu_s: float
    switch_wall_s: float
    switch_cpu_s: float
    look_up_ms: float


def measure(sizes: Sequence[int] = SIZES) -> tuple[list[Reading], list[str]]:
    """Return the readings, and a sentence if the time of a batch grows with history."""
    from stagepost.pipeline.spark import start_session

    spark = start_session("bench", master="local[2]", is_short=True)
    readings, found = [], []
    try:
        for size in sizes:
            with TemporaryDirectory() as name:
                found.append(_beside(spark, Path(name), size))
            what = f"history: a batch beside {size:,} receipts"
            readings.append(Reading(f"{what}, wall time", found[-1].wall_s, "s"))
            readings.append(Reading(f"{what}, processor time", found[-1].cpu_s, "s"))
            what = f"history: a switch of sessions beside {size:,} receipts"
            readings.append(
                Reading(f"{what}, wall time (at most {SWITCH_S_MAX:g})", found[-1].switch_wall_s, "s")
            )
            readings.append(Reading(f"{what}, processor time", found[-1].switch_cpu_s, "s"))
            what = f"history: one message by its id among {size:,} receipts (at most {LOOK_UP_MS_MAX:g})"
            readings.append(Reading(what, found[-1].look_up_ms, "ms"))
    finally:
        spark.stop()
    growth = found[-1].cpu_s / found[0].cpu_s
    readings.append(Reading(f"history: growth of a batch (at most {GROWTH_MAX})", growth, "times"))
    missed = []
    if growth > GROWTH_MAX:
        times = f"{growth:.2f} times that beside {sizes[0]:,}"
        missed.append(f"history: a batch beside {sizes[-1]:,} receipts takes {times}")
    for size, one in zip(sizes, found, strict=True):
        if one.switch_wall_s > SWITCH_S_MAX:
            missed.append(f"history: a switch beside {size:,} receipts takes {one.switch_wall_s:.1f} s")
        if one.look_up_ms > LOOK_UP_MS_MAX:
            missed.append(f"history: one message among {size:,} receipts takes {one.look_up_ms:.0f} ms")
    return readings, missed


def _beside(spark: SparkSession, folder: Path, size: int) -> Batches:
    from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
    from stagepost.pipeline.tables.manifest import OfDump
    from stagepost.pipeline.tables.tables import Tables

    store = TableStore.at(folder / "tables")
    message_ids = make_history(store, size, DAYS)
    look_up_ms = median(
        looked_up(store, message_id)[0] for message_id in [*message_ids[:DAYS], *message_ids[:DAYS]]
    )
    tables = Tables(store)
    spent: list[tuple[float, float]] = []
    switched: list[tuple[float, float]] = []

    def measured(work: Callable[[], object]) -> tuple[float, float]:
        began, used = time.perf_counter(), cpu_s(_processes(spark))
        work()
        return time.perf_counter() - began, cpu_s(_processes(spark)) - used

    try:
        driver = Driver(spark, tables, None)

        def take(path: Path, lines: Sequence[bytes]) -> None:
            path.write_bytes(b"".join(lines))
            dump = survey(path)
            driver.take_dump(dump, Evaluation(what=Evaluated.MESSAGES), OfDump(dump.digest))

        def switch(at_ms: int) -> None:
            driver.use_sets(_switched(at_ms))
            driver.follow_sets()

        for number, lines in enumerate(_batches(WARM_UP + MEASURED)):
            spent.append(measured(partial(take, folder / f"{number}.jsonl", lines)))
        later = (DAYS + 1) * DAY_MS
        take(folder / "later.jsonl", [line for life in _lives(later) for line in life])
        for number in range(SWITCHES):
            at_ms = EPOCH_MS + later + number * MESSAGES_PER_BATCH // SWITCHES
            switched.append(measured(partial(switch, at_ms)))
    finally:
        tables.close()
    walls, cpus = zip(*spent[WARM_UP:], strict=True)
    switch_walls, switch_cpus = zip(*switched, strict=True)
    return Batches(median(walls), median(cpus), median(switch_walls), median(switch_cpus), look_up_ms)


def _switched(at_ms: int) -> bytes:
    """Return the sets of `bench.receipts` after a switch at a moment."""
    before = session(1, VALIDATORS, to_ms=at_ms)
    after = session(2, VALIDATORS, seqno=101, from_ms=at_ms)
    return json.dumps(sets_file(before, after, timeout_ms=240_000)).encode()


def _processes(spark: SparkSession) -> list[int]:
    """Return the JVM, below which the workers are."""
    return [int(spark.sparkContext._gateway.proc.pid)]


def _batches(count: int) -> Iterator[list[bytes]]:
    """Yield the lines of batches: the second half of what was begun before, and the first half of new messages."""
    half, open_lines = RECEIPTS_PER_MESSAGE // 2, list[bytes]()
    for number in range(count):
        lives = list(_lives(number * MESSAGES_PER_BATCH))
        yield [*open_lines, *(line for life in lives for line in life[:half])]
        open_lines = [line for life in lives for line in life[half:]]


def _lives(first: int) -> Iterator[list[bytes]]:
    for number in range(first, first + MESSAGES_PER_BATCH):
        yield [
            msgspec.json.encode(
                {
                    "key": receipt.message_id.hex(),
                    "value": receipt.to_json(),
                    "timestamp_ms": receipt.timestamp_ms + 5,
                    "headers": {"session": hint},
                }
            )
            + b"\n"
            for receipt, hint in receipts(RECEIPTS_PER_MESSAGE, number)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--receipts", type=int, nargs="+", default=list(SIZES))
    readings, missed = measure(parser.parse_args().receipts)
    for one in readings:
        print(f"{one.name}: {one.value:.3f} {one.unit}")
    for text in missed:
        print(f"missed: {text}")


if __name__ == "__main__":
    main()
