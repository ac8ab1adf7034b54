"""Time and cost of an external message from the sender's hand to finality: seven validators and a full node over TCP on
the loopback address with their durable stores, two shards; all in one process, and each a process of its own.

A message's time begins when the benchmark hands it to the full node, and ends where the full node publishes the receipt.

Processor time is stated gross and net: net is gross without what the idle network used in the same time, and the idle
network is measured for twenty seconds because it works in bursts. Both are stated as ratios to one signature check (the
unit). The unit is measured before, during and after the load: a unit that changed says that something else ran beside.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from bench.cpu_groups import CpuGroups
from bench.remp_cost import Cost, cost_of, ratios, without_remp
from bench.steps import unit
from bench.whole_path import Reading
from rigs.validator_processes import until
from stagepost.devnet.devnet import Devnet, DevnetPlan, devnet
from stagepost.devnet.messages import SumMessage, account_of
from stagepost.ground.loop.load import look_less_often
from stagepost.remp.receipts.message_status import Accepted
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.shard import BlockId

VALIDATORS, SHARDS = 7, 2
ENOUGH = VALIDATORS // 3 + 1
SLOW_RATE, CHECKED_RATE = 10, 100
SECONDS_AT = {SLOW_RATE: 5.0, CHECKED_RATE: 8.0}
WARM_UP_S = 1.0
IDLE_S = 20.0
"""Seconds in which nothing is sent: long enough that blocks, sessions and keep-alives each come round many times."""
COMPARED_S = 5.0
SETTLED_WITHIN_S = 60.0
ACCOUNTS = 16
UNIT_CHECKS = 500
"""Signature checks in one measurement of the unit, before and after the load."""
UNIT_CHECKS_DURING = 25
"""Signature checks in one measurement during the load: about two milliseconds, which hold no message up for long."""
UNIT_EVERY_S = 0.5
"""Seconds between two measurements during the load."""
UNIT_CHANGE_MAX = 0.10
"""Part of the unit by which it may change from before to after; beyond it the result says that it changed."""

RAMP = (125, 150, 200, 300, 400, 600, 800, 1_200)
RAMP_STEP_S = 3.0
RAMP_BEHIND_S = 1.0
"""Seconds of traffic: the queue grows when more messages than that are open at the end of a step."""

FIRST, ENOUGH_HAVE, IN_BLOCK, IN_ACCEPTED, FINAL = STAGES = (
    "PutIntoQueue of the first",
    f"PutIntoQueue of {ENOUGH} of {VALIDATORS}",
    "IncludedIntoBlock",
    "IncludedIntoAcceptedBlock",
    "Finalized",
)


IN_ONE_PROCESS, AS_PROCESSES = "in one process", "as processes"


@dataclass(frozen=True)
class Target:
    """Limit of the reading called `name`: the most that it may be, or the least."""

    name: str
    limit: float
    is_least: bool = False

    def missed_by(self, readings: Sequence[Reading]) -> str | None:
        """Return the sentence that says what is missed; None if the target is met."""
        found = next((one for one in readings if one.name == self.name), None)
        if found is None:
            return f"missed: {self.name}: not measured"
        if found.value >= self.limit if self.is_least else found.value <= self.limit:
            return None
        bound = "least" if self.is_least else "most"
        return f"missed: {self.name}: {found.value:,.0f} {found.unit}, the target is at {bound} {self.limit:,.0f}"


TARGETS = (
    Target(f"{IN_ONE_PROCESS} at {CHECKED_RATE}/s: a message gross, in units", 90),
    Target(f"{IN_ONE_PROCESS} at {CHECKED_RATE}/s: idle, processor time", 40),
    *(
        Target(f"{where} at {CHECKED_RATE}/s: to {stage}, p99", limit)
        for where in (IN_ONE_PROCESS, AS_PROCESSES)
        for stage, limit in ((FIRST, 50), (FINAL, 500))
    ),
    Target(f"{IN_ONE_PROCESS}: most before the queue grows", 200, is_least=True),
)


def measure() -> tuple[list[Reading], list[str]]:
    """Return the readings, and each target that was missed, as a sentence."""
    readings, with_remp = asyncio.run(in_network(IN_ONE_PROCESS, one_process=True))
    messages = [message_of(b"without", number) for number in range(round(CHECKED_RATE * COMPARED_S))]
    readings += ratios(with_remp, without_remp(VALIDATORS, messages, CHECKED_RATE, IDLE_S))
    of_processes, _ = asyncio.run(in_network(AS_PROCESSES, one_process=False))
    readings += of_processes
    return readings, [missed for target in TARGETS if (missed := target.missed_by(readings))]


def message_of(run: bytes, number: int) -> bytes:
    """Return a message that differs from all others, to the accounts of all shards in turn."""
    return SumMessage(account_of(run, number % ACCOUNTS), 2 + number // ACCOUNTS).data(
        int(time.time() * 1_000)
    )


@dataclass
class Stopwatch:
    """Times of handing over, by message, and the seconds that each message then took to each stage."""

    began: dict[bytes, float] = field(default_factory=dict)
    took: dict[str, dict[bytes, float]] = field(default_factory=lambda: {stage: {} for stage in STAGES})
    blocks: set[BlockId] = field(default_factory=set)
    """Final blocks."""
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
    """Sender of new messages at an even pace, which does not wait for receipts."""

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
        """Wait until all messages are final, and for the receipts that may come after that."""
        await until(lambda: not self._watch.open_count, "all messages are final", SETTLED_WITHIN_S)
        await until(lambda: self._watch.is_complete, "all receipts are here", SETTLED_WITHIN_S)


@dataclass(frozen=True)
class Unit:
    """Processor seconds of one signature check by libsodium, before, during and after the load."""

    before_s: float
    during_s: float
    after_s: float

    @property
    def change(self) -> float:
        return self.after_s / self.before_s - 1.0

    @property
    def has_changed(self) -> bool:
        return abs(self.change) > UNIT_CHANGE_MAX


class UnitProbe:
    """Measurements of the unit in the thread of the loop, and the processor time that they cost themselves."""

    def __init__(self, check: Callable[[int], object] | None = None) -> None:
        self._check = check or unit()
        self.used_s = 0.0

    def measure(self, checks: int = UNIT_CHECKS) -> float:
        began = time.thread_time()
        self._check(checks)
        taken_s = time.thread_time() - began
        self.used_s += taken_s
        return taken_s / checks

    async def measure_until(self, done: asyncio.Event) -> float:
        """Return the median of short measurements, one every half second until `done` is set; at least one."""
        found = [self.measure(UNIT_CHECKS_DURING)]
        while not done.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), UNIT_EVERY_S)
            found.append(self.measure(UNIT_CHECKS_DURING))
        return median(found)


async def in_network(where: str, *, one_process: bool) -> tuple[list[Reading], Cost]:
    """Return the readings of one network, and the cost of a message at the checked rate."""
    watch = Stopwatch()
    readings: list[Reading] = []
    async with _network(watch, one_process=one_process) as (network, started_s):
        readings.append(Reading(f"{where}: from nothing to a network that is ready", started_s, "s"))
        sender = Sender(network, watch)
        probe = UnitProbe()
        await sender.send(CHECKED_RATE, WARM_UP_S)
        await sender.settled()
        look_less_often()
        unit_before_s = probe.measure()
        idle_from = cpu_s()
        await asyncio.sleep(IDLE_S)
        idle = (cpu_s() - idle_from) / IDLE_S
        watch.clear()
        await sender.send(SLOW_RATE, SECONDS_AT[SLOW_RATE])
        await sender.settled()
        readings += read_times(f"{where} at {SLOW_RATE}/s", watch.took)
        watch.clear()
        where_checked = f"{where} at {CHECKED_RATE}/s"
        with CpuGroups() as groups:
            done = asyncio.Event()
            probe.used_s = 0.0
            began, cpu_from, beside_from = time.perf_counter(), cpu_s(), beside_s()
            during = asyncio.create_task(probe.measure_until(done))
            await sender.send(CHECKED_RATE, SECONDS_AT[CHECKED_RATE])
            await sender.settled()
            done.set()
            unit_during_s = await during
            cpu, beside, lasted = (
                cpu_s() - cpu_from - probe.used_s,
                beside_s() - beside_from,
                time.perf_counter() - began,
            )
        unit_s = Unit(unit_before_s, unit_during_s, probe.measure())
        cost = cost_of(cpu, lasted, idle, len(watch.began), len(watch.blocks))
        readings += read_times(where_checked, watch.took)
        readings += read_unit(where, unit_s)
        readings += read_cost(where_checked, idle, cost, unit_s.during_s)
        if one_process:
            readings += read_shares(where_checked, groups.shares(beside))
            readings.append(
                Reading(f"{where}: most before the queue grows", await _ramp(sender, watch), "/s")
            )
    return readings, cost


def cpu_s() -> float:
    """Return the processor seconds of this process and of those that it has started, since each began."""
    return time.process_time() + beside_s()


def beside_s() -> float:
    """Return the processor seconds of the processes beside this one: validators, and those that check signatures."""
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


# Readings


def read_times(where: str, took: Mapping[str, Mapping[bytes, float]]) -> list[Reading]:
    readings: list[Reading] = []
    for stage in STAGES:
        steps = quantiles(took[stage].values(), n=100, method="inclusive")
        readings += [
            Reading(f"{where}: to {stage}, p{percent}", steps[percent - 1] * 1e3, "ms")
            for percent in (50, 95, 99)
        ]
    return readings


def read_unit(where: str, unit_s: Unit) -> list[Reading]:
    """Return the unit three times, and a line that says so when it changed from before to after."""
    readings = [
        Reading(f"{where}: the unit (one signature check) {when}", seconds * 1e6, "us")
        for when, seconds in (
            ("before", unit_s.before_s),
            ("during", unit_s.during_s),
            ("after", unit_s.after_s),
        )
    ]
    if unit_s.has_changed:
        readings.append(Reading(f"{where}: DISTURBED, the unit changed by", unit_s.change * 100, "%"))
    return readings


def read_cost(where: str, idle: float, cost: Cost, unit_s: float) -> list[Reading]:
    """Return the idle cost, and a message's gross and net cost, each in time and in units of `unit_s`."""
    readings = [
        Reading(f"{where}: idle, processor time", idle * 1e3, "ms/s"),
        Reading(f"{where}: idle, in units", idle / unit_s, "/s"),
    ]
    for name, seconds in (("gross", cost.gross_s), ("net", cost.net_s)):
        readings += [
            Reading(f"{where}: a message {name}, processor time", seconds * 1e3, "ms"),
            Reading(f"{where}: a message {name}, in units", seconds / unit_s, ""),
        ]
    return readings


def read_shares(where: str, shares: Mapping[str, float]) -> list[Reading]:
    return [Reading(f"{where}: of gross {name}", share * 100, "%") for name, share in shares.items()]
