"""Whole runs of DMQ nodes in a simulated world, each from one seed, and their verdicts.

One seed again, with what happened: python -m tests.simulation.dmq_scenarios SEED [SCENARIO]
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from stagepost.crypto.bounded_cache import BoundedCache
from stagepost.dmq.peer_sharing import PeerAddress
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, PROFILES, SEED, Profile
from stagepost.dmq.topology import AccessPoint, LocalRoot, Topology
from stagepost.node.config import NodeConfig
from stagepost.node.dmq_node import DmqNode
from stagepost.runtime.clock import Clock
from stagepost.runtime.memory_store import MemoryStore
from stagepost.runtime.network import Network, TcpAddress
from stagepost.runtime.verifier import InlineVerifier, valid_messages_memory
from stagepost.runtime.virtual_time import run_in_virtual_time
from stagepost.simulation.checkers import LIVENESS, SAFETY, judge
from stagepost.simulation.faults import FaultKind, fault_schedule
from stagepost.simulation.history import Made
from stagepost.simulation.hostile import PULLERS, SUPPLIERS, HostilePeer, Loot
from stagepost.simulation.link import Link
from stagepost.simulation.pools import SimulatedPools, a_flawed_message
from stagepost.simulation.traffic import Shares, Traffic
from stagepost.simulation.world import NETWORK_MAGIC, NODE_PORT, World, local_address

POOLS = 12
CONVERGE_WITHIN_S = 300.0
CONVERGE_POLL_S = 5.0
CLOSING_S = 8.0
"""How long the world goes on after the final listing, so that listening programs can hear what is in it."""

HOSTILE_PEERS = 20
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


# Building


def config_of(
    name: str, dials: Sequence[AccessPoint], *, profile: Profile = DMQ_NODE, peer_sharing: bool = True
) -> NodeConfig:
    root = LocalRoot(tuple(dials), hot_valency=len(dials), warm_valency=len(dials))
    return NodeConfig(
        data_dir=Path(f"/simulated/{name}"),
        local_socket=local_address(name).path,
        pools_file=Path("/simulated/pools.json"),
        host_addresses=("0.0.0.0",),
        port=NODE_PORT,
        network_magic=NETWORK_MAGIC,
        topology=Topology((root,)),
        wire_profile=profile,
        peer_sharing=peer_sharing,
        metrics_port=None,
    )


@dataclass
class NodeFactory:
    """Makes production nodes for a world."""

    configs: Mapping[str, NodeConfig]
    pools: SimulatedPools
    memory: BoundedCache[bytes, bool] = field(default_factory=valid_messages_memory)

    def __call__(
        self, name: str, network: Network, clock: Clock, store: MemoryStore, random: Random
    ) -> DmqNode:
        return DmqNode(
            self.configs[name],
            network=network,
            clock=clock,
            store=store,
            pools=self.pools,
            verifier=InlineVerifier(self.memory),
            random=random,
        )


def a_topology(
    random: Random, hosts: Mapping[str, str], profiles: Sequence[Profile]
) -> dict[str, list[AccessPoint]]:
    """A connected graph: a random tree and some more edges; one end of each dials, or both."""
    names = list(hosts)
    random.shuffle(names)
    edges = [(name, random.choice(names[:index])) for index, name in enumerate(names) if index]
    for _ in range(random.randrange(len(names))):
        one, other = random.sample(names, 2)
        if (one, other) not in edges and (other, one) not in edges:
            edges.append((one, other))
    dials: dict[str, list[AccessPoint]] = {name: [] for name in hosts}
    for one, other in edges:
        both = [(one, other), (other, one)]
        for dialling, dialled in both if random.random() < 0.3 else [random.choice(both)]:
            dials[dialling].append(AccessPoint(hosts[dialled], NODE_PORT, random.choice(profiles)))
    return dials


def a_world(
    seed: int,
    random: Random,
    names: Sequence[str],
    pools: SimulatedPools,
    profiles: Sequence[Profile],
    *,
    skew_max_s: float = 2.0,
    extra_dials: Mapping[str, Sequence[AccessPoint]] | None = None,
) -> World:
    hosts = {name: f"10.0.0.{number}" for number, name in enumerate(names, start=1)}
    dials = a_topology(random, hosts, profiles)
    for name, more in (extra_dials or {}).items():
        dials[name] += more
    configs = {
        name: config_of(
            name, dials[name], profile=random.choice(profiles), peer_sharing=random.random() < 0.5
        )
        for name in names
    }
    link = Link(latency_s=random.choice((0.001, 0.02, 0.15)), jitter_s=random.choice((0.0, 0.01, 0.1)))
    skews = {name: random.uniform(-skew_max_s, skew_max_s) for name in names}
    return World(seed, names, NodeFactory(configs, pools), link=link, clock_skew_s=skews)


# Running


async def converge(world: World) -> float:
    """Wait until all nodes hold the same messages; the last listing stays in the history as the final one."""
    start_s = world.now_s
    while True:
        listings = await world.list_all("final")
        if not judge(world.history, LIVENESS) or world.now_s - start_s >= CONVERGE_WITHIN_S:
            return world.now_s - start_s
        world.history.listings = [one for one in world.history.listings if one not in listings]
        await asyncio.sleep(CONVERGE_POLL_S)


async def close_the_run(world: World) -> None:
    await asyncio.sleep(CLOSING_S)
    world.history.ended_at_s = world.now_s


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
        await traffic.settle()
        await world.repair_everything()
        converged_s = await converge(world)
        await close_the_run(world)
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
        await traffic.settle()
        await world.repair_everything()
        converged_s = await converge(world)
        await close_the_run(world)
    return world, converged_s


async def eclipse(seed: int) -> tuple[World, float]:
    """One honest peer among twenty hostile ones: messages still arrive, in both directions."""
    random = Random(f"{seed}/scenario")
    pools = SimulatedPools(POOLS)
    addresses = [TcpAddress(HOSTILE_HOST.format(number), NODE_PORT) for number in range(1, HOSTILE_PEERS + 1)]
    hostile_points = [AccessPoint(address.host, address.port) for address in addresses]
    world = a_world(
        seed, random, ["victim", "friend"], pools, (DMQ_NODE,), extra_dials={"victim": hostile_points}
    )
    loot = Loot(accomplices=[PeerAddress(address.host, address.port) for address in addresses])
    for _ in range(5):
        message, flaw = a_flawed_message(random, pools, world.history.start_unix_s)
        world.history.made[message.raw] = Made(message.expires_at, flaw)
        loot.flawed.append(message)
    behaviours = [*SUPPLIERS.values(), *PULLERS.values()]
    random.shuffle(behaviours)
    victim = world.members["victim"].address
    peers: list[HostilePeer] = []
    traffic = Traffic(world, pools, Random(f"{seed}/traffic"))
    async with world:
        for number, address in enumerate(addresses):
            behaviour = behaviours[number % len(behaviours)]
            process = world.network.process(address.host)
            peer = HostilePeer(process, address, behaviour, loot, Random(f"{seed}/hostile {number}"))
            await peer.listen(NETWORK_MAGIC)
            peer.dial(victim, NETWORK_MAGIC, as_puller=behaviour in PULLERS.values())
            peers.append(peer)
        await world.start_all()
        for name in world.members:
            world.listen(name, SEED)
        await asyncio.sleep(random.uniform(0, 30))
        for _ in range(12):
            message = traffic.an_honest_message(1_700)
            loot.messages.append(message)
            # The hostile peers know it a little earlier than anybody, so that their announcements come first.
            await asyncio.sleep(random.choice((0.0, 0.5, 4.0)))
            await traffic.submit_at(random.choice(("friend", "friend", "victim")), message)
        await traffic.settle()
        world.note("all messages are sent")
        converged_s = await converge(world)
        for peer in peers:
            peer.stop()
        await close_the_run(world)
    return world, converged_s


SCENARIOS: Mapping[str, Callable[[int], Coroutine[None, None, tuple[World, float]]]] = {
    "faults": faults,
    "mixed_profiles": mixed_profiles,
    "seed_profile": seed_profile,
    "crashes": crashes,
    "eclipse": eclipse,
}


def scenario_of(seed: int) -> str:
    return list(SCENARIOS)[seed % len(SCENARIOS)]


def run_seed(seed: int, scenario: str | None = None) -> Result:
    """One run, in virtual time."""
    chosen = scenario or scenario_of(seed)
    start_s = time.perf_counter()
    world, converged_s = run_in_virtual_time(SCENARIOS[chosen](seed))
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
