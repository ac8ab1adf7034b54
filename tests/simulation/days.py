"""O1: a day in the life of seven nodes, with faults all along: every rule holds in every hour, and nothing grows.

Hour by hour everything is repaired and judged; then what was seen of messages long expired is forgotten, so that what
grows are the nodes and not their onlookers.

One day again: PYTHONPATH=src python -m tests.simulation.days SEED [HOURS [WINDOW_S]]
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random

from rigs.dmq_nodes import NodeFactory
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, SEED
from stagepost.ground.crypto.bounded_cache import BoundedCache
from stagepost.ground.loop.virtual_time import Patience, run_in_virtual_time
from stagepost.simulation.checkers import LIVENESS, SAFETY, judge
from stagepost.simulation.faults import fault_schedule
from stagepost.simulation.history import History
from stagepost.simulation.pools import SimulatedPools
from stagepost.simulation.traffic import Shares, Traffic
from stagepost.simulation.world import World
from tests.simulation.dmq_worlds import a_world, close_the_run, converge

NODES = 7
POOLS = 12
HOUR_S = 3_600.0
MESSAGES_PER_HOUR = 240
FAULTS_PER_HOUR = 20
WARM_UP_HOURS = 4
SLOPE_MAX = 0.01
"""Of the memory at the end of the warm-up, in an hour."""
REPLAYABLE_MAX = 400
"""Messages of earlier hours that programs still send again."""
KEPT_AFTER_EXPIRY_S = 600.0
PATIENCE_PER_HOUR_S = 120.0
"""Real time that a simulated hour may take on a machine with much else to do; usually it takes some seconds."""


@dataclass
class Day:
    """`resident_bytes` and `objects` are what the process held at the end of each window."""

    seed: int
    hours: float = 0.0
    accepted: int = 0
    faults: int = 0
    violations: list[str] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    window_s: float = HOUR_S
    real_s: float = 0.0

    def slope_per_hour(self) -> float | None:
        """By least squares, as a part of the memory after the warm-up; None before there is something to compare."""
        per_hour = HOUR_S / self.window_s
        settled = self.resident_bytes[round(WARM_UP_HOURS * per_hour) :]
        if len(settled) < 3:
            return None
        middle = (len(settled) - 1) / 2
        mean = sum(settled) / len(settled)
        rise = sum((place - middle) * (size - mean) for place, size in enumerate(settled))
        run = sum((place - middle) ** 2 for place in range(len(settled)))
        return rise / run * per_hour / settled[0]


class LongTraffic(Traffic):
    """Traffic that forgets most of what it made, as its programs would."""

    def forget(self, random: Random) -> set[bytes]:
        """The messages that may still be sent again."""
        assert all(task.done() for task in self._under_way)
        self._under_way.clear()
        if len(self._made) > REPLAYABLE_MAX:
            self._made = random.sample(self._made, REPLAYABLE_MAX)
        return {message.raw for message in self._made}


def run_day(seed: int, hours: float = 24.0, window_s: float = HOUR_S) -> Day:
    began_s = time.perf_counter()
    patience = Patience(real_s_max=PATIENCE_PER_HOUR_S * max(hours, 1.0))
    day = run_in_virtual_time(_run(seed, hours, window_s), patience)
    day.real_s = time.perf_counter() - began_s
    return day


async def _run(seed: int, hours: float, window_s: float) -> Day:
    day = Day(seed, window_s=window_s)
    random = Random(f"{seed}/day")
    pools = SimulatedPools(POOLS)
    names = [f"node{number}" for number in range(1, NODES + 1)]
    world = a_world(seed, random, names, pools, (DMQ_NODE, GOUROBOROS, SEED))
    # What the nodes of a simulation share to save time is no part of a node, and must not grow with the day.
    assert isinstance(world._make_node, NodeFactory)
    world._make_node.memory = BoundedCache(REPLAYABLE_MAX)
    traffic = LongTraffic(world, pools, Random(f"{seed}/traffic"), Shares())
    async with world:
        await world.start_all()
        for name in names:
            world.listen(name, SEED)
        while world.now_s < hours * HOUR_S and not day.violations:
            await _window(world, traffic, random, names, day, window_s)
            day.hours = world.now_s / HOUR_S
    return day


async def _window(
    world: World, traffic: LongTraffic, random: Random, names: Sequence[str], day: Day, window_s: float
) -> None:
    start_s = world.now_s
    part = window_s / HOUR_S
    schedule = fault_schedule(random, names, window_s * 0.9, round(FAULTS_PER_HOUR * part))
    schedule = [
        replace(fault, at_s=fault.at_s + start_s, until_s=fault.until_s + start_s) for fault in schedule
    ]
    sending = traffic.begin(round(MESSAGES_PER_HOUR * part), window_s * 0.9)
    await world.run_faults(schedule)
    await sending
    await traffic.settle()
    await world.repair_everything()
    await converge(world)
    await close_the_run(world)
    history = world.history
    day.violations += judge(history, (*SAFETY, *LIVENESS))
    day.faults += len(schedule)
    day.accepted += sum(bool(answer.accepted) and answer.at_s >= start_s for answer in history.answers)
    forget_the_old(history, world.unix_s, traffic.forget(random))
    gc.collect()
    day.resident_bytes.append(_resident_bytes())
    day.objects.append(len(gc.get_objects()))
    await asyncio.sleep(max(0.0, start_s + window_s - world.now_s))


def forget_the_old(history: History, unix_s: float, replayable: set[bytes]) -> None:
    """Of messages that expired a while ago everything goes, together: who heard of them and what was answered."""
    young = {raw for raw, made in history.made.items() if made.expires_at > unix_s - KEPT_AFTER_EXPIRY_S}
    history.made = {raw: made for raw, made in history.made.items() if raw in young or raw in replayable}
    history.answers = [answer for answer in history.answers if answer.raw in young]
    history.cursors = [cursor for cursor in history.cursors if cursor.closed_at_s is None]
    for cursor in history.cursors:
        cursor.heard = [heard for heard in cursor.heard if heard.raw in young]
    history.listings.clear()
    history.faults.clear()
    history.ended_at_s = 0.0


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str]) -> None:
    """The day as one line of JSON, for whoever started this process."""
    seed, *more = arguments
    day = run_day(int(seed), *map(float, more))
    print(json.dumps(asdict(day)))


if __name__ == "__main__":
    main(sys.argv[1:])
