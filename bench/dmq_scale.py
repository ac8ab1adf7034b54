"""What a DMQ network of many pools costs one node, counted in virtual time: `make bench PART=scale`.

Production nodes on a simulated network, each with so many peers, and messages of many pools at a steady rate, each
handed to one node. Counted are the bytes that cross between nodes, and the processor time of the run. Signatures are
checked once for all nodes, because the check costs the same everywhere and is measured by itself (`PART=path`); what
is left is hearing of a message from every peer, fetching it from one, storing it and telling the others.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.whole_path import Reading
from rigs.dmq_nodes import NodeFactory, config_of
from stagepost.dmq.topology import AccessPoint
from stagepost.ground.loop.virtual_time import Patience, run_in_virtual_time
from stagepost.simulation.history import TraceHash
from stagepost.simulation.link import LinkSettings
from stagepost.simulation.pools import SimulatedPools
from stagepost.simulation.programs import submit
from stagepost.simulation.world import NODE_PORT, World

BODY_BYTES = 900
"""Makes a message of 1.5 kB, as everywhere in these measurements."""

LIFE_S = 1_700
SETTLE_S = 30.0
LINK = LinkSettings(latency_s=0.05, jitter_s=0.02)
REAL_S_MAX = 3_600.0
NODES, POOLS, MESSAGES, RATE = 42, 3_000, 600, 50.0
DEGREES = (4, 8, 20)


class Counted(NamedTuple):
    """Of one run. Bytes are what one node receives from its peers, on average; as much goes out."""

    nodes: int
    peers: int
    messages: int
    message_bytes: float
    bytes_per_message: float
    idle_bytes_per_s: float
    cpu_us_per_message: float
    late_s: float


class ByteCount(TraceHash):
    """Counts the bytes between hosts instead of hashing what happened."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._local: set[str] = set()
        self.connections: Counter[str] = Counter()

    def note(self, at_s: float, what: str, data: bytes | bytearray = b"") -> None:
        kind, _, rest = what.partition(" ")
        if kind == "bytes":
            if rest not in self._local:
                self.total += len(data)
        elif kind == "connection":
            number, _, ends = rest.partition(" from ")
            if f":{NODE_PORT}" in ends:
                self.connections[ends.partition(" ")[0]] += 1
            else:
                self._local.add(number)


def count(nodes: int, peers: int, pools: int, messages: int, rate: float, seed: int = 1) -> Counted:
    """`peers` of each node, half of them dialled by it. Every message reaches every node, or this fails."""
    members = SimulatedPools(pools)
    return run_in_virtual_time(
        _counted(nodes, peers, members, messages, rate, seed), Patience(real_s_max=REAL_S_MAX)
    )


async def _counted(
    nodes: int, peers: int, pools: SimulatedPools, messages: int, rate: float, seed: int
) -> Counted:
    random = Random(seed)
    names = [f"node {number}" for number in range(nodes)]
    hosts = {name: f"10.0.0.{number}" for number, name in enumerate(names, start=1)}
    configs = {
        name: config_of(name, [AccessPoint(hosts[other], NODE_PORT) for other in dialled], peer_sharing=False)
        for name, dialled in _ring(names, peers, random).items()
    }
    world = World(seed, names, NodeFactory(configs, pools), link=LINK)
    bytes_seen = world.trace = world.network.trace = ByteCount()
    async with world:
        await world.start_all()
        await asyncio.sleep(SETTLE_S)
        before, began_s = bytes_seen.total, world.now_s
        await asyncio.sleep(SETTLE_S)
        idle = (bytes_seen.total - before) / nodes / (world.now_s - began_s)

        made = [
            pool.message(random.randbytes(BODY_BYTES), int(world.unix_s) + LIFE_S)
            for pool in islice(cycle(random.sample(pools.members, len(pools.members))), messages)
        ]
        before, began_s, began_cpu_s = bytes_seen.total, world.now_s, time.process_time()
        sending = []
        for number, message in enumerate(made):
            await asyncio.sleep(max(0.0, began_s + number / rate - world.now_s))
            seat = world.members[random.choice(names)].seat
            sending.append(asyncio.get_running_loop().create_task(submit(seat, message)))
        answers = await asyncio.gather(*sending)
        assert all(answer.accepted for answer in answers), [one.reason for one in answers if not one.accepted]
        late_s = await _until_all_have(world, messages)
        cpu_s, took_s = time.process_time() - began_cpu_s, world.now_s - began_s
        crossed = (bytes_seen.total - before) / nodes - idle * took_s
        assert world.history.bugs == []
    return Counted(
        nodes,
        peers,
        messages,
        sum(len(message.raw) for message in made) / messages,
        crossed / messages,
        idle,
        cpu_s / nodes / messages * 1e6,
        late_s,
    )


def _ring(names: Sequence[str], peers: int, random: Random) -> dict[str, list[str]]:
    """Everybody dials the next ones of a ring in random order, so that each has as many peers as every other."""
    order = list(names)
    random.shuffle(order)
    place = {name: number for number, name in enumerate(order)}
    steps = random.sample(range(2, (len(order) + 1) // 2), peers // 2 - 1)
    return {
        name: [order[(place[name] + step) % len(order)] for step in sorted({1, *steps})] for name in names
    }


async def _until_all_have(world: World, messages: int) -> float:
    """Seconds from the last submission until everybody holds everything."""
    began_s = world.now_s
    while world.now_s - began_s < 300:
        held = [member.node.status().mempool.messages for member in world.members.values() if member.node]
        if min(held) == messages:
            return world.now_s - began_s
        await asyncio.sleep(0.05)
    raise AssertionError(f"after 300 s nodes hold between {min(held)} and {max(held)} of {messages} messages")


def readings(runs: Sequence[Counted]) -> list[Reading]:
    found = []
    for run in runs:
        name = f"dmq network, {run.nodes} nodes, {run.peers} peers each"
        found += [
            Reading(f"{name}: bytes in per message", run.bytes_per_message, "B"),
            Reading(f"{name}: over the message's own", run.bytes_per_message / run.message_bytes, "x"),
            Reading(f"{name}: idle, bytes in", run.idle_bytes_per_s, "B/s"),
            Reading(f"{name}: processor time, no signature", run.cpu_us_per_message, "µs"),
            Reading(f"{name}: the last message everywhere after", run.late_s, "s"),
        ]
    return found


def measure() -> tuple[list[Reading], list[str]]:
    """For `bench/run.py`: no target, nothing to miss."""
    return readings([count(NODES, peers, POOLS, MESSAGES, RATE) for peers in DEGREES]), []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option, value in (("nodes", NODES), ("pools", POOLS), ("messages", MESSAGES), ("rate", int(RATE))):
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--peers", type=int, nargs="+", default=list(DEGREES))
    given = parser.parse_args()
    for degree in given.peers:
        print(count(given.nodes, degree, given.pools, given.messages, given.rate), flush=True)
