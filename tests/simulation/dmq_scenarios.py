"""Whole runs of DMQ nodes in a simulated world, each from one seed, and their verdicts.

One seed again, with what happened: python -m tests.simulation.dmq_scenarios SEED [SCENARIO]
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random

from stagepost.dmq.peer_sharing import PeerAddress
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, PROFILES, SEED, Profile
from stagepost.dmq.topology import AccessPoint
from stagepost.ground.loop.virtual_time import Patience, VirtualTimeStuck, run_in_virtual_time
from stagepost.ground.net.network import TcpAddress
from stagepost.simulation.checkers import LIVENESS, SAFETY, judge
from stagepost.simulation.faults import FaultKind, fault_schedule
from stagepost.simulation.history import Made
from stagepost.simulation.hostile import PULLERS, SUPPLIERS, HostilePeer, Loot
from stagepost.simulation.pools import SimulatedPools, a_flawed_message
from stagepost.simulation.traffic import Shares, Traffic
from stagepost.simulation.world import NETWORK_MAGIC, NODE_PORT, World
from tests.simulation.dmq_worlds import a_world, close_the_run, converge

POOLS = 12

PATIENCE = Patience(steps_at_once_max=100_000, virtual_s_max=7_200)
"""Runs take some hundred seconds of virtual time, and at most some hundred turns of the loop in one instant."""

HOSTILE_PEERS = 20
HOSTILE_PER_HONEST = 4
HOSTILE_HOST = "10.0.1.{}"


@dataclass(frozen=True)
class Result:
    """One run. `violations` is empty if all is well; `trace` is equal for equal runs."""

    seed: int
    scenario: str
    violations: tuple[str, ...]
    trace: str
    nodes: int
    accepted: int
    simulated_s: float
    real_s: float
    converged_s: float
    """How long after the last repair all nodes held the same messages."""
    events: tuple[str, ...] = field(default=(), repr=False)

    def report(self) -> str:
        return "\n".join(
            [
                f"seed {self.seed} ({self.scenario}) broke {len(self.violations)} rules:",
                *(f"  {violation}" for violation in self.violations[:20]),
                "what happened:",
                *(f"  {event}" for event in self.events),
                f"again with: PYTHONPATH=src python -m tests.simulation.dmq_scenarios {self.seed} {self.scenario}",
            ]
        )


# Scenarios


async def faults(seed: int, profiles: Sequence[Profile] = (DMQ_NODE,)) -> tuple[World, float]:
    """Nodes in a random topology; partitions, crashes, bad links and full disks while programs send; then repair."""
    random = Random(f"{seed}/scenario")
    pools = SimulatedPools(POOLS)
    names = [f"node{number}" for number in range(1, random.randint(3, 7) + 1)]
    world = a_world(seed, random, names, pools, profiles)
    duration_s = random.choice((40.0, 80.0))
    schedule = fault_schedule(random, names, duration_s, random.randint(3, 12))
    old_layout = 0.2 if tuple(profiles) == (SEED,) else 0.0
    traffic = Traffic(world, pools, Random(f"{seed}/traffic"), Shares(old_layout=old_layout))
    async with world:
        await world.start_all()
        for name in names:
            world.listen(name, SEED)
            world.listen(name, random.choice(list(PROFILES.values())))
        sending = traffic.begin(random.randint(20, 60), duration_s)
        await world.run_faults(schedule)
        await sending
        converged_s = await settle_and_close(world, traffic)
    return world, converged_s


async def mixed_profiles(seed: int) -> tuple[World, float]:
    return await faults(seed, (DMQ_NODE, GOUROBOROS, SEED))


async def seed_profile(seed: int) -> tuple[World, float]:
    """Only peers that follow the documents; messages of the older layout travel too."""
    return await faults(seed, (SEED,))


async def crashes(seed: int) -> tuple[World, float]:
    """Nothing but crashes, power cuts and full disks, under steady traffic."""
    random = Random(f"{seed}/scenario")
    pools = SimulatedPools(POOLS)
    names = [f"node{number}" for number in range(1, random.randint(2, 4) + 1)]
    world = a_world(seed, random, names, pools, (DMQ_NODE,))
    kinds = (FaultKind.CRASH, FaultKind.POWER_CUT, FaultKind.CRASH, FaultKind.STOP, FaultKind.DISK_FULL)
    traffic = Traffic(world, pools, Random(f"{seed}/traffic"), Shares(replay=0.3))
    async with world:
        await world.start_all()
        for name in names:
            world.listen(name, SEED)
        sending = traffic.begin(80, 30.0)
        await world.run_faults(fault_schedule(random, names, 30.0, 25, kinds))
        await sending
        converged_s = await settle_and_close(world, traffic)
    return world, converged_s


async def settle_and_close(world: World, traffic: Traffic) -> float:
    """How every run ends: all answers are in, everything is repaired, nodes agree; how long that took them."""
    await traffic.settle()
    await world.repair_everything()
    converged_s = await converge(world)
    await close_the_run(world)
    return converged_s


async def long_partitions(seed: int) -> tuple[World, float]:
    """Nodes lose one another again and again, longer than any protocol waits; nobody has done anything wrong."""
    random = Random(f"{seed}/scenario")
    pools = SimulatedPools(POOLS)
    names = [f"node{number}" for number in range(1, random.randint(2, 4) + 1)]
    world = a_world(seed, random, names, pools, (DMQ_NODE, GOUROBOROS, SEED))
    traffic = Traffic(world, pools, Random(f"{seed}/traffic"))
    async with world:
        await world.start_all()
        for name in names:
            world.listen(name, SEED)
        for _ in range(random.randint(3, 6)):
            await asyncio.sleep(random.uniform(5, 30))
            at_s = world.now_s
            sending = traffic.begin(6, 15.0)
            kind = random.choice((FaultKind.SPLIT, FaultKind.ISOLATE))
            schedule = fault_schedule(random, names, 1.0, 1, (kind,))
            await world.run_faults(
                [replace(fault, at_s=at_s, until_s=at_s + random.uniform(15, 70)) for fault in schedule]
            )
            await sending
        converged_s = await settle_and_close(world, traffic)
    return world, converged_s


async def bursts(seed: int) -> tuple[World, float]:
    """More messages at once than any window holds, gathered on both sides of a partition, then over bad links."""
    random = Random(f"{seed}/scenario")
    pools = SimulatedPools(POOLS)
    names = ["one", "two", "three"][: random.randint(2, 3)]
    profiles = random.choice(((DMQ_NODE,), (GOUROBOROS,), (SEED,), tuple(PROFILES.values())))
    world = a_world(seed, random, names, pools, profiles)
    traffic = Traffic(world, pools, Random(f"{seed}/traffic"), Shares(replay=0.05, flawed=0.05))
    async with world:
        await world.start_all()
        for name in names:
            world.listen(name, SEED)
        schedule = fault_schedule(random, names, 1.0, 1, (FaultKind.SPLIT,))
        schedule = [replace(fault, at_s=0.5, until_s=random.uniform(6, 9)) for fault in schedule]
        bad_links = (FaultKind.SLOW_LINK, FaultKind.LOSSY_LINK, FaultKind.FLAP, FaultKind.CRASH)
        schedule += [
            replace(fault, at_s=fault.at_s + 6, until_s=fault.until_s + 6)
            for fault in fault_schedule(random, names, 12.0, 4, bad_links)
        ]
        sending = traffic.begin(random.randint(150, 350), 8.0)
        await world.run_faults(schedule)
        await sending
        converged_s = await settle_and_close(world, traffic)
    return world, converged_s


@dataclass
class Siege:
    """Hostile peers around a world: each listens, and dials one of the honest nodes again and again."""

    world: World
    loot: Loot
    peers: list[HostilePeer]

    async def begin(self, random: Random, victims: Sequence[str]) -> None:
        behaviours = [*SUPPLIERS.values(), *PULLERS.values()]
        random.shuffle(behaviours)
        for number in range(len(self.loot.accomplices)):
            behaviour = behaviours[number % len(behaviours)]
            accomplice = self.loot.accomplices[number]
            peer = HostilePeer(
                self.world.network.process(accomplice.host),
                TcpAddress(accomplice.host, accomplice.port),
                behaviour,
                self.loot,
                Random(f"{self.world.seed}/hostile {number}"),
            )
            await peer.listen(NETWORK_MAGIC)
            victim = self.world.members[victims[number % len(victims)]].address
            peer.dial(victim, NETWORK_MAGIC, as_puller=behaviour in PULLERS.values())
            self.peers.append(peer)

    async def send(self, random: Random, traffic: Traffic, count: int, nodes: Sequence[str]) -> None:
        """The hostile peers know each message before its node does, so that their announcements can come first."""
        for _ in range(count):
            message = traffic.an_honest_message(1_700)
            self.loot.messages.append(message)
            await asyncio.sleep(random.choice((0.0, 0.5, 4.0)))
            await traffic.submit_at(random.choice(list(nodes)), message)
        await traffic.settle()
        self.world.note("all messages are sent")

    def end(self) -> None:
        for peer in self.peers:
            peer.stop()


def a_siege(
    seed: int, random: Random, names: Sequence[str], pools: SimulatedPools, hostile: Mapping[str, int]
) -> Siege:
    """`hostile` says how many hostile peers a node has in its topology file, beside the honest ones."""
    accomplices = [
        PeerAddress(HOSTILE_HOST.format(number), NODE_PORT) for number in range(1, sum(hostile.values()) + 1)
    ]
    left = iter(accomplices)
    dials = {
        name: [AccessPoint(one.host, one.port) for one in islice(left, count)]
        for name, count in hostile.items()
    }
    world = a_world(seed, random, names, pools, (DMQ_NODE,), extra_dials=dials)
    world.history.is_all_honest = False
    loot = Loot(accomplices=accomplices)
    for _ in range(5):
        message, flaw = a_flawed_message(random, pools, world.history.start_unix_s)
        world.history.made[message.raw] = Made(message.expires_at, flaw)
        loot.flawed.append(message)
    return Siege(world, loot, [])


async def eclipse(seed: int) -> tuple[World, float]:
    """One honest peer among twenty hostile ones: messages still arrive, in both directions."""
    random = Random(f"{seed}/scenario")
    pools = SimulatedPools(POOLS)
    siege = a_siege(seed, random, ["victim", "friend"], pools, {"victim": HOSTILE_PEERS})
    world, traffic = siege.world, Traffic(siege.world, pools, Random(f"{seed}/traffic"))
    async with world:
        await siege.begin(random, ["victim"])
        await world.start_all()
        for name in world.members:
            world.listen(name, SEED)
        await asyncio.sleep(random.uniform(0, 30))
        await siege.send(random, traffic, 12, ("friend", "friend", "victim"))
        converged_s = await converge(world)
        siege.end()
        await close_the_run(world)
    return world, converged_s


async def sybil(seed: int) -> tuple[World, float]:
    """Four hostile peers for each honest one, who share only one another; an honest node starts cold in their midst."""
    random = Random(f"{seed}/scenario")
    pools = SimulatedPools(POOLS)
    names = [f"node{number}" for number in range(1, random.randint(3, 5) + 1)]
    siege = a_siege(seed, random, names, pools, dict.fromkeys(names, HOSTILE_PER_HONEST))
    world, traffic = siege.world, Traffic(siege.world, pools, Random(f"{seed}/traffic"))
    late = random.choice(names)
    async with world:
        await siege.begin(random, names)
        for name in names:
            if name != late:
                await world.start(name)
            world.listen(name, SEED)
        await asyncio.sleep(random.uniform(0, 20))
        await siege.send(random, traffic, 6, [name for name in names if name != late])
        await world.start(late)
        await siege.send(random, traffic, 6, names)
        converged_s = await converge(world)
        siege.end()
        await close_the_run(world)
    return world, converged_s


SCENARIOS: Mapping[str, Callable[[int], Coroutine[None, None, tuple[World, float]]]] = {
    "faults": faults,
    "mixed_profiles": mixed_profiles,
    "seed_profile": seed_profile,
    "crashes": crashes,
    "eclipse": eclipse,
    "sybil": sybil,
    "long_partitions": long_partitions,
    "bursts": bursts,
}


def scenario_of(seed: int) -> str:
    return list(SCENARIOS)[seed % len(SCENARIOS)]


def run_seed(seed: int, scenario: str | None = None, patience: Patience = PATIENCE) -> Result:
    """One run, in virtual time. One that gets nowhere has broken a rule like any other."""
    chosen = scenario or scenario_of(seed)
    start_s = time.perf_counter()
    try:
        world, converged_s = run_in_virtual_time(SCENARIOS[chosen](seed), patience)
    except VirtualTimeStuck as error:
        return a_stuck_run(seed, chosen, str(error), time.perf_counter() - start_s)
    history = world.history
    violations = judge(history, (*SAFETY, *LIVENESS))
    return Result(
        seed=seed,
        scenario=chosen,
        violations=tuple(violations),
        trace=world.trace.hexdigest(),
        nodes=len(world.members),
        accepted=len({answer.raw for answer in history.answers if answer.accepted}),
        simulated_s=history.ended_at_s,
        real_s=time.perf_counter() - start_s,
        converged_s=converged_s,
        events=tuple(history.faults),
    )


def a_stuck_run(seed: int, scenario: str, why: str, real_s: float) -> Result:
    return Result(
        seed=seed,
        scenario=scenario,
        violations=(f"every_run_ends: {why}",),
        trace="",
        nodes=0,
        accepted=0,
        simulated_s=0.0,
        real_s=real_s,
        converged_s=0.0,
    )


def run_seeds(first: int, count: int) -> list[Result]:
    """Runs of `count` seeds in a row; the scenarios take turns."""
    return [run_seed(seed) for seed in range(first, first + count)]


def main(arguments: Sequence[str]) -> int:
    result = run_seed(int(arguments[0]), arguments[1] if len(arguments) > 1 else None)
    print(result.report())
    print(result)
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
