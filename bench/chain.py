"""How fast the embedded chain is: blocks in a second, and how long a block takes to its certificate and to the masterchain.

Seven validators with their durable stores over TCP on the loopback address: all in one process, and each a process of
its own. A block's time begins when its leader has built it, and is taken by the leader.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

from bench.whole_path import Reading
from rigs.chain_processes import ChainNode, ChainProcess, Orders, say
from rigs.line_reports import Report
from rigs.validator_processes import free_ports, until

VALIDATORS = 7
IDLE_EVERY_S = 0.3
IDLE_MESSAGES = 60
LOADED_RATE = 100
LOADED_S = 6.0
WARM_UP_MESSAGES = 5
SETTLED_WITHIN_S = 60.0
CERTIFICATE_P99_MS_MAX = 150.0
MASTER_P99_MS_MAX = 400.0

Times = dict[str, Any]
Say = Callable[[Sequence[int]], None]
Count = Callable[[], int]


def measure() -> tuple[list[Reading], list[str]]:
    """What was read, and each target that was missed, as a sentence."""
    readings: list[Reading] = []
    missed: list[str] = []
    for name, run in (("in one process", in_one_process), ("as processes", as_processes)):
        with TemporaryDirectory() as folder:
            times, idle, loaded = asyncio.run(run(Path(folder)))
        of_run, faults = read(name, times, idle, loaded)
        readings += of_run
        missed += faults
    return readings, missed


async def in_one_process(folder: Path) -> tuple[list[Times], tuple[float, float], tuple[float, float]]:
    report = Report(folder / "report")
    nodes = [ChainNode(orders, report) for orders in all_orders(folder)]
    for node in reversed(nodes):
        await node.start()
    try:
        await until(lambda: all(node.is_ready for node in nodes), "all validators are ready")

        def say_all(numbers: Sequence[int]) -> None:
            for node in nodes:
                for number in numbers:
                    node.add_message(number)

        idle, loaded = await load(say_all, lambda: min(len(node.pool.included) for node in nodes))
        return [node.watch.facts() for node in nodes], idle, loaded
    finally:
        for node in nodes:
            await node.close()


async def as_processes(folder: Path) -> tuple[list[Times], tuple[float, float], tuple[float, float]]:
    processes = [ChainProcess(orders) for orders in all_orders(folder)]
    try:
        for process in processes:
            process.start()
        await until(
            lambda: all("Started" in process.lines() for process in processes), "all validators are ready"
        )
        idle, loaded = await load(
            lambda numbers: say(folder, numbers), lambda: min(process.included() for process in processes)
        )
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.stop()
    times: list[Times] = []
    for process in processes:
        found = process.facts()["times"]
        assert isinstance(found, dict)
        times.append(found)
    return times, idle, loaded


def all_orders(folder: Path) -> list[Orders]:
    ports = free_ports(VALIDATORS)
    genesis_ms = int(time.time() * 1_000)
    return [
        Orders(number, VALIDATORS, str(folder), genesis_ms, ports=ports, keeps_all=False)
        for number in range(VALIDATORS)
    ]


async def load(say_all: Say, count: Count) -> tuple[tuple[float, float], tuple[float, float]]:
    """When nothing else is asked of them, and when there is always something: from when to when."""
    say_all(range(WARM_UP_MESSAGES))
    said = WARM_UP_MESSAGES
    await until(lambda: count() >= WARM_UP_MESSAGES, "the first blocks", SETTLED_WITHIN_S)
    idle_from = time.perf_counter()
    for _ in range(IDLE_MESSAGES):
        say_all([said])
        said += 1
        await asyncio.sleep(IDLE_EVERY_S)
    await until(lambda: count() >= said, "all messages when idle", SETTLED_WITHIN_S)
    idle = idle_from, time.perf_counter()
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < LOADED_S:
        due = int(passed * LOADED_RATE) + WARM_UP_MESSAGES + IDLE_MESSAGES
        if due > said:
            say_all(range(said, due))
            said = due
        await asyncio.sleep(0.02)
    loaded = began, time.perf_counter()
    await until(lambda: count() >= said, "all messages under load", SETTLED_WITHIN_S)
    return idle, loaded


def read(
    name: str, times: Sequence[Times], idle: tuple[float, float], loaded: tuple[float, float]
) -> tuple[list[Reading], list[str]]:
    readings: list[Reading] = []
    missed: list[str] = []
    where = f"{VALIDATORS} validators {name}"
    for kind, what, limit in (
        ("to_certificate", "to the certificate", CERTIFICATE_P99_MS_MAX),
        ("to_master", "to the masterchain", MASTER_P99_MS_MAX),
    ):
        for state, (begin, end) in (("idle", idle), ("loaded", loaded)):
            took = [seconds * 1e3 for one in times for began, seconds in one[kind] if begin <= began < end]
            steps = quantiles(took, n=100, method="inclusive")
            readings += [
                Reading(f"{where}, {state}: {what}, p50", steps[49], "ms"),
                Reading(f"{where}, {state}: {what}, p99", steps[98], "ms"),
            ]
            if state == "idle" and steps[98] > limit:
                missed.append(
                    f"missed: {where}: a block took {steps[98]:.0f} ms {what} at the 99th percentile, "
                    f"the target is {limit:.0f} ms"
                )
    seconds = loaded[1] - loaded[0]
    for kind, what in (("blocks", "shard blocks"), ("master_blocks", "master blocks")):
        final = max(sum(loaded[0] <= at < loaded[1] for at in one[kind]) for one in times)
        readings.append(Reading(f"{where}, loaded: {what}", final / seconds, "/s"))
    return readings, missed
