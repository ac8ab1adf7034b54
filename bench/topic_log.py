"""What a topic costs: records appended durably, and records scanned, on one core, beside what the disk does in this minute.

A record is a receipt as validators write it: a key of 64 digits, some six hundred bytes of JSON, one header. Each round is a
process's work on one core; the best of the rounds counts, because others may use the machine as well.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.latency import fsyncs_per_s
from bench.whole_path import Reading
from stagepost.topics.log.file_topic import FileTopic, create_topic
from stagepost.topics.topic import Record

ROUNDS = 3
RECORDS = 100_000
LANES = 4
RECORDS_PER_APPEND = 500
TASKS = 1_024
RECORDS_ALONE = 20_000
VALUE_BYTES = 600
APPENDED_PER_S_MIN = 40_000
SCANNED_PER_S_MIN = 200_000


def measure(rounds: int = ROUNDS, records: int = RECORDS) -> tuple[list[Reading], list[str]]:
    """What was read, and each target that was missed, as a sentence."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = [pool.submit(on_one_core, records).result() for _ in range(rounds)]
    best = {name: max(one[name] for one in found) for name in found[0]}
    readings = [
        Reading("topic: records appended durably, 500 at a time", best["appended"], f"/s (at least {APPENDED_PER_S_MIN:,})"),
        Reading("topic: the same, by second of processor time", best["appended_cpu"], "/s"),
        Reading("topic: records of such a group, per fsync", median(one["per_sync"] for one in found), ""),
        Reading("topic: appended durably, one at a time by 1,024 tasks", best["alone"], "/s"),
        Reading("topic: records scanned, verified, as Python values", best["scanned"], f"/s (at least {SCANNED_PER_S_MIN:,})"),
        Reading("topic: the same, by second of processor time", best["scanned_cpu"], "/s"),
        Reading("topic: blocks verified, columns left as they are", best["verified"], "records/s"),
        Reading("topic: fsyncs of this disk, in this minute", fsyncs_per_s(), "/s"),
    ]  # fmt: skip
    return readings, missed_by(best)


def missed_by(best: Mapping[str, float]) -> list[str]:
    return [
        f"missed: {best[name]:,.0f} records {name} per second, {least:,} are wanted"
        for name, least in (("appended", APPENDED_PER_S_MIN), ("scanned", SCANNED_PER_S_MIN))
        if best[name] < least
    ]


def on_one_core(records: int) -> dict[str, float]:
    """One round: rates per second."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        with TemporaryDirectory() as folder:
            return asyncio.run(_round(Path(folder), records))
    finally:
        os.sched_setaffinity(0, allowed)


async def _round(folder: Path, count: int) -> dict[str, float]:
    value = (os.urandom(VALUE_BYTES // 2).hex()).encode()
    headers = {"session": os.urandom(32).hex()}
    records = [Record(os.urandom(32).hex().encode(), value, headers) for _ in range(count)]
    topic = create_topic(folder, "together")
    rates = await _append(topic, records)
    alone = records[: min(count, RECORDS_ALONE)]
    rates["alone"] = await _append_alone(create_topic(folder, "alone"), alone)
    rates["scanned"], rates["scanned_cpu"] = _rates(count, lambda: _scan_values(topic))
    rates["verified"], _ = _rates(count, lambda: sum(map(len, topic.reader().batches(0, 0))))
    return rates


async def _append(topic: FileTopic, records: list[Record]) -> dict[str, float]:
    writer = topic.writer()
    groups = iter(
        [records[at : at + RECORDS_PER_APPEND] for at in range(0, len(records), RECORDS_PER_APPEND)]
    )

    async def lane(left: Iterator[list[Record]]) -> None:
        for group in left:
            await writer.append(group)

    began, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*(lane(groups) for _ in range(LANES)))
    taken_s, spent_s = time.perf_counter() - began, time.process_time() - spent
    await writer.close()
    count = len(records)
    return {
        "appended": count / taken_s,
        "appended_cpu": count / spent_s,
        "per_sync": count / writer.counters[0].groups,
    }


async def _append_alone(topic: FileTopic, records: list[Record]) -> float:
    writer = topic.writer()
    left = iter(records)

    async def task() -> None:
        for record in left:
            await writer.append([record])

    began = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    taken_s = time.perf_counter() - began
    await writer.close()
    return len(records) / taken_s


def _scan_values(topic: FileTopic) -> int:
    """As the pipeline does: everything of every record."""
    found = value_bytes = 0
    for batch in topic.reader().batches(0, 0):
        for _, _, value, _, _ in batch:
            found += 1
            value_bytes += len(value or b"")
    assert value_bytes == found * VALUE_BYTES
    return found


def _rates(count: int, act: Callable[[], int]) -> tuple[float, float]:
    """Per second by the clock, and per second of processor time."""
    began, spent = time.perf_counter(), time.process_time()
    assert act() == count
    taken_s, spent_s = time.perf_counter() - began, time.process_time() - spent
    return count / taken_s, count / spent_s
