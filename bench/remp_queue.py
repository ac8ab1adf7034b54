"""What validators' agreement on a new message costs: how often it crosses a link, and how long it takes.

Traffic is counted in virtual time, with the code that runs on sockets. Times are taken with seven validators, each a
process of its own with its durable store, and one full node in this process, over TCP on the loopback address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from bench.whole_path import Reading
from rigs.ports import free_ports
from rigs.remp_overlay_world import OverlayWorld, message_bytes
from rigs.remp_world import shard_block
from rigs.validator_processes import OurFullNode, until, validators_over_sockets
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.queue.collation import ExecutedMessage
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import Status

# Traffic

SIZES = (7, 13, 21)
TRAFFIC_MESSAGES = 100
TRAFFIC_RATE = 10.0
TRANSMISSIONS_MAX = 3.0
"""For each validator and message; the design foresees two to three."""

OF_A_MESSAGE = ("message to a validator", "Header", "body")

# Times

VALIDATORS = 7
ENOUGH = VALIDATORS // 3 + 1
RATES = (10, 100, 300)
CHECKED_RATE = 100
SECONDS = 8.0
WARM_UP_S = 2.0
FIRST_P99_MS_MAX = 100.0
ENOUGH_P99_MS_MAX = 300.0
MESSAGE_BYTES = 300
SETTLED_WITHIN_S = 60.0


def measure() -> tuple[list[Reading], list[str]]:
    """What was read, and each target that was missed, as a sentence."""
    readings: list[Reading] = []
    missed: list[str] = []
    for size in SIZES:
        of_size, fault = traffic(size)
        readings += of_size
        missed += fault
    of_times, faults = asyncio.run(times())
    return readings + of_times, missed + faults


# Traffic


def traffic(size: int) -> tuple[list[Reading], list[str]]:
    world, seconds = run_in_virtual_time(_traffic(size))
    counts = world.counts

    def each(name: str) -> float:
        return counts[name] / TRAFFIC_MESSAGES

    total = sum(each(name) for name in OF_A_MESSAGE)
    named = f"{size} validators"
    readings = [
        Reading(f"{named}: transmissions of a new message", total, ""),
        Reading(f"{named}: the same for each validator", total / size, f"(target {TRANSMISSIONS_MAX:g})"),
        Reading(f"{named}: of these from the full node", each("message to a validator"), ""),
        Reading(f"{named}: of these as an announcement in a block", each("Header"), ""),
        Reading(f"{named}: of these as a body", each("body"), ""),
        Reading(f"{named}: accept records of a message, apart", each("Accept"), ""),
        Reading(f"{named}: blocks without records", counts["block without records"] / seconds, "/s"),
        Reading(f"{named}: queries", counts["query"] / seconds, "/s"),
    ]
    if total / size <= TRANSMISSIONS_MAX:
        return readings, []
    return readings, [
        f"missed: a new message crosses {total / size:.2f} links for each of {size} validators, "
        f"the target is {TRANSMISSIONS_MAX:g}"
    ]


async def _traffic(size: int) -> tuple[OverlayWorld, float]:
    """Messages come one by one; at the end all validators collate all of them."""
    loop = asyncio.get_running_loop()
    world = OverlayWorld(size, 1)
    world.start()
    await asyncio.sleep(2.0)
    world.counts.clear()
    began = loop.time()
    for number in range(TRAFFIC_MESSAGES):
        world.hand_over(message_bytes(number))
        await asyncio.sleep(1 / TRAFFIC_RATE)
    await asyncio.sleep(2.0)
    for house in world.houses:
        (runner,) = house.running.sessions.values()
        now = world.clock.unix_s()
        taken, effects = runner.queue.take(now, TRAFFIC_MESSAGES)
        runner.perform(effects)
        block = shard_block(1 << 63, seqno=house.number + 1)
        runner.perform(
            runner.queue.collated([(one.message_id, ExecutedMessage(block)) for one in taken], now)
        )
    await asyncio.sleep(2.0)
    return world, loop.time() - began


# Times


@dataclass
class Stopwatch:
    """When messages were handed over, and when the first and enough validators had each of them."""

    began: dict[bytes, float] = field(default_factory=dict)
    sources: dict[bytes, set[bytes]] = field(default_factory=dict)
    first: dict[bytes, float] = field(default_factory=dict)
    enough: dict[bytes, float] = field(default_factory=dict)

    def __call__(self, receipt: Receipt) -> None:
        message_id = receipt.message_id
        began = self.began.get(message_id)
        if began is None or receipt.status.status is not Status.NEW:
            return
        took = time.perf_counter() - began
        sources = self.sources.setdefault(message_id, set())
        sources.add(receipt.source_id)
        if len(sources) == 1:
            self.first.setdefault(message_id, took)
        elif len(sources) == ENOUGH:
            self.enough.setdefault(message_id, took)

    def clear(self) -> None:
        for one in (self.began, self.sources, self.first, self.enough):
            one.clear()


async def times() -> tuple[list[Reading], list[str]]:
    watch = Stopwatch()
    readings: list[Reading] = []
    missed: list[str] = []
    with TemporaryDirectory() as folder:
        ports = free_ports(VALIDATORS)
        async with validators_over_sockets(Path(folder), VALIDATORS, watch, ports) as (_, node):
            made = 0
            for rate in RATES:
                made = await _send(node, watch, rate, WARM_UP_S, made)
                made = await _send(node, watch, rate, SECONDS, made)
                first, enough = _p50_p99(watch.first), _p50_p99(watch.enough)
                for what, (p50, p99) in (("first", first), (f"{ENOUGH} of {VALIDATORS}", enough)):
                    readings += [
                        Reading(f"to PutIntoQueue of the {what} at {rate}/s, p50", p50, "ms"),
                        Reading(f"to PutIntoQueue of the {what} at {rate}/s, p99", p99, "ms"),
                    ]
                if rate == CHECKED_RATE:
                    missed += _missed(first[1], FIRST_P99_MS_MAX, "the first")
                    missed += _missed(enough[1], ENOUGH_P99_MS_MAX, f"{ENOUGH} of {VALIDATORS}")
    return readings, missed


async def _send(node: OurFullNode, watch: Stopwatch, rate: int, seconds: float, made: int) -> int:
    """At an even pace, whatever comes back; then until all of it is where it belongs."""
    loop = asyncio.get_running_loop()
    watch.clear()
    begin = loop.time()
    count = round(rate * seconds)
    for number in range(count):
        delay_s = begin + number / rate - loop.time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        data = message_bytes(made, content=b"%08d" % made * (MESSAGE_BYTES // 8))
        made += 1
        began = time.perf_counter()
        message_id = node.hand_over(data)
        watch.began[message_id] = began
    await until(lambda: len(watch.enough) == count, f"receipts at {rate}/s", SETTLED_WITHIN_S)
    return made


def _p50_p99(taken: dict[bytes, float]) -> tuple[float, float]:
    steps = quantiles(taken.values(), n=100, method="inclusive")
    return steps[49] * 1e3, steps[98] * 1e3


def _missed(found: float, limit: float, what: str) -> Sequence[str]:
    if found < limit:
        return []
    text = f"missed: at {CHECKED_RATE}/s {what} took {found:.0f} ms at the 99th percentile"
    return [f"{text}, the target is {limit:.0f} ms"]
