"""How long an external message takes from a sender's hand to finality, and what it costs: seven validators and a full node
over TCP on the loopback address with their durable stores, two shards; all in one process, and each a process of its own.

A message's time begins when it is handed to the full node, and is taken where the full node publishes the receipt.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from bench.cpu_groups import CpuGroups
from bench.remp_cost import Cost, ratios, without_remp
from bench.steps import unit
from bench.whole_path import Reading
from stagepost.devnet.devnet import Devnet, DevnetPlan, devnet
from stagepost.devnet.messages import SumMessage, account_of
from stagepost.ground.loop.load import look_less_often
from stagepost.remp.receipts.message_status import Accepted
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.shard import BlockId
from tests.worlds.validator.validator_processes import until

VALIDATORS, SHARDS = 7, 2
ENOUGH = VALIDATORS // 3 + 1
SLOW_RATE, CHECKED_RATE = 10, 100
SECONDS_AT = {SLOW_RATE: 5.0, CHECKED_RATE: 8.0}
WARM_UP_S = 1.0
IDLE_S = 1.5
COMPARED_S = 5.0
SETTLED_WITHIN_S = 60.0
ACCOUNTS = 16
CHECKS = 500

FIRST_P99_MS_MAX = 200.0
FINAL_P99_MS_MAX = 2_000.0

RAMP = (125, 150, 200, 300, 400, 600, 800, 1_200)
RAMP_STEP_S = 3.0
RAMP_BEHIND_S = 1.0
"""The queue grows when more is open at the end of a step than comes in so long."""

FIRST, ENOUGH_HAVE, IN_BLOCK, IN_ACCEPTED, FINAL = STAGES = (
    "PutIntoQueue of the first",
    f"PutIntoQueue of {ENOUGH} of {VALIDATORS}",
    "IncludedIntoBlock",
    "IncludedIntoAcceptedBlock",
    "Finalized",
)


def measure() -> tuple[list[Reading], list[str]]:
    """What was read, and each target that was missed, as a sentence."""
    readings, missed, with_remp = asyncio.run(in_network("in one process", one_process=True))
    messages = [message_of(b"without", number) for number in range(round(CHECKED_RATE * COMPARED_S))]
    readings += ratios(with_remp, without_remp(VALIDATORS, messages, CHECKED_RATE))
    of_processes, _, _ = asyncio.run(in_network("as processes", one_process=False))
    return readings + of_processes, missed


def message_of(run: bytes, number: int) -> bytes:
    """Each another one, to accounts of all shards in turn."""
    return SumMessage(account_of(run, number % ACCOUNTS), 2 + number // ACCOUNTS).data


@dataclass
class Stopwatch:
    """When messages were handed over, and how long each then took to each stage."""

    began: dict[bytes, float] = field(default_factory=dict)
    took: dict[str, dict[bytes, float]] = field(default_factory=lambda: {stage: {} for stage in STAGES})
    blocks: set[BlockId] = field(default_factory=set)
    """Final ones."""
    _sources: dict[bytes, set[bytes]] = field(default_factory=dict)

    def __call__(self, receipt: Receipt) -> None:
        began = self.began.get(receipt.message_id)
        if began is None:
            return
        kind = receipt.kind.name
        if kind == "PutIntoQueue":
            sources = self._sources.setdefault(receipt.message_id, set())
            sources.add(receipt.source_id)
            reached = {1: FIRST, ENOUGH: ENOUGH_HAVE}.get(len(sources))
        else:
            reached = kind if kind in self.took else None
        if reached == FINAL and isinstance(receipt.status, Accepted):
            self.blocks.add(receipt.status.block_id)
        if reached is not None:
            self.took[reached].setdefault(receipt.message_id, time.perf_counter() - began)

    @property
    def open_count(self) -> int:
        return len(self.began) - len(self.took[FINAL])

    @property
    def is_complete(self) -> bool:
        return all(len(took) == len(self.began) for took in self.took.values())

    def clear(self) -> None:
        self.began.clear()
        self.blocks.clear()
        self._sources.clear()
        for took in self.took.values():
            took.clear()


class Sender:
    """Messages that were never sent before, at an even pace, whatever comes back."""

    def __init__(self, network: Devnet, watch: Stopwatch) -> None:
        self._network = network
        self._watch = watch
        self._made = 0

    async def send(self, rate: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number in range(round(rate * seconds)):
            delay_s = begin + number / rate - loop.time()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            message = message_of(b"bench", self._made)
            self._made += 1
            began = time.perf_counter()
            # Receipts may come within the call.
            self._watch.began[self._network.full_node.id_of(message)] = began
            self._network.full_node.submit(message)

    async def settled(self) -> None:
        """Receipts of a message may still come when it is final."""
        await until(lambda: not self._watch.open_count, "all messages are final", SETTLED_WITHIN_S)
        await until(lambda: self._watch.is_complete, "all receipts are here", SETTLED_WITHIN_S)


async def in_network(where: str, *, one_process: bool) -> tuple[list[Reading], list[str], Cost]:
    watch = Stopwatch()
    readings: list[Reading] = []
    missed: list[str] = []
    cost = Cost(0.0, 0.0)
    async with _network(watch, one_process=one_process) as (network, started_s):
        readings.append(Reading(f"{where}: from nothing to a network that is ready", started_s, "s"))
        sender = Sender(network, watch)
        await sender.send(CHECKED_RATE, WARM_UP_S)
        await sender.settled()
        look_less_often()
        idle_from = cpu_s()
        await asyncio.sleep(IDLE_S)
        idle = (cpu_s() - idle_from) / IDLE_S
        readings.append(Reading(f"{where}: processor time with nothing to do", idle * 1e3, "ms/s"))
        for rate, seconds in SECONDS_AT.items():
            watch.clear()
            with CpuGroups() as groups:
                began, cpu_from, beside_from = time.perf_counter(), cpu_s(), beside_s()
                await sender.send(rate, seconds)
                await sender.settled()
                cpu, beside, lasted = (
                    cpu_s() - cpu_from,
                    beside_s() - beside_from,
                    time.perf_counter() - began,
                )
            readings += read_times(f"{where} at {rate}/s", watch.took)
            if rate == CHECKED_RATE:
                each = (cpu - idle * seconds) / len(watch.began)
                shares = groups.shares(beside) if one_process else {}
                readings += read_cost(f"{where} at {rate}/s", each, shares)
                if one_process:
                    missed += targets_missed(f"{where} at {rate}/s", watch.took)
                cost = Cost(each, len(watch.blocks) / lasted)
        if one_process:
            readings.append(
                Reading(f"{where}: most before the queue grows", await _ramp(sender, watch), "/s")
            )
    return readings, missed, cost


def cpu_s() -> float:
    """Of this process and of those that it has started, since each began."""
    return time.process_time() + beside_s()


def beside_s() -> float:
    """Of the processes beside this one: validators, and those that check signatures."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                ticks += int(fields[11]) + int(fields[12])  # user and system
    return ticks / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def _network(watch: Stopwatch, *, one_process: bool) -> AsyncIterator[tuple[Devnet, float]]:
    plan = DevnetPlan(VALIDATORS, SHARDS)
    began = time.perf_counter()
    with TemporaryDirectory(prefix="stagepost-") as folder:
        data = Path(folder) / "data"
        async with devnet(plan, data, one_process=one_process, on_status=watch) as network:
            await network.ready()
            yield network, time.perf_counter() - began


async def _ramp(sender: Sender, watch: Stopwatch) -> float:
    held = float(CHECKED_RATE)
    for rate in RAMP:
        watch.clear()
        await sender.send(rate, RAMP_STEP_S)
        is_behind = watch.open_count > rate * RAMP_BEHIND_S
        await sender.settled()
        if is_behind:
            break
        held = rate
    return held


# What was read


def read_times(where: str, took: Mapping[str, Mapping[bytes, float]]) -> list[Reading]:
    readings: list[Reading] = []
    for stage in STAGES:
        steps = quantiles(took[stage].values(), n=100, method="inclusive")
        readings += [
            Reading(f"{where}: to {stage}, p{percent}", steps[percent - 1] * 1e3, "ms")
            for percent in (50, 95, 99)
        ]
    return readings


def targets_missed(where: str, took: Mapping[str, Mapping[bytes, float]]) -> list[str]:
    missed: list[str] = []
    for stage, limit in ((FIRST, FIRST_P99_MS_MAX), (FINAL, FINAL_P99_MS_MAX)):
        p99 = quantiles(took[stage].values(), n=100, method="inclusive")[98] * 1e3
        if p99 > limit:
            missed.append(
                f"missed: {where} a message took {p99:.0f} ms to {stage} at the 99th percentile, "
                f"the target is {limit:.0f} ms"
            )
    return missed


def read_cost(where: str, each_s: float, shares: Mapping[str, float]) -> list[Reading]:
    one_check = unit()
    began = time.process_time()
    one_check(CHECKS)
    check_s = (time.process_time() - began) / CHECKS
    readings = [
        Reading(f"{where}: processor time of a message", each_s * 1e3, "ms"),
        Reading(f"{where}: the same in signature checks", each_s / check_s, ""),
    ]
    readings += [Reading(f"{where}: of it {name}", share * 100, "%") for name, share in shares.items()]
    return readings
