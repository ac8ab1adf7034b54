"""Worlds of production DMQ nodes in random topologies, and how a run of one is brought to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from random import Random

from rigs.dmq_nodes import NodeFactory, config_of
from stagepost.dmq.node.config import NodeConfig
from stagepost.dmq.profiles import DMQ_NODE, SEED, Profile
from stagepost.dmq.topology import AccessPoint, LocalRoot, Topology
from stagepost.simulation.checkers import LIVENESS, judge
from stagepost.simulation.link import LinkSettings
from stagepost.simulation.pools import SimulatedPools
from stagepost.simulation.world import NODE_PORT, World

CONVERGE_WITHIN_S = 150.0
CONVERGE_POLLS_S = (0.5, 0.5, 1.0, 1.0, 2.0, 5.0)
SPARE_LINKS = 0.25
"""How many nodes have a peer beyond those that hold the network together."""
CLOSING_S = 8.0
"""How long the world goes on after the final listing, so that listening programs can hear what is in it."""


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
    skew_max_s: float = 2.5,
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
    spare = Random(f"{seed}/spare links")
    for name in names:
        if spare.random() < SPARE_LINKS:
            configs[name] = with_spare_link(spare, configs[name], hosts, dials[name])
    link = LinkSettings(
        latency_s=random.choice((0.001, 0.02, 0.15)), jitter_s=random.choice((0.0, 0.01, 0.1))
    )
    skews = {name: random.uniform(-skew_max_s, skew_max_s) for name in names}
    return World(seed, names, NodeFactory(configs, pools), link=link, clock_skew_s=skews)


def with_spare_link(
    random: Random, config: NodeConfig, hosts: Mapping[str, str], dials: Sequence[AccessPoint]
) -> NodeConfig:
    """One more peer, which is only kept warm, or which messages come from and none go to: nobody relies on either."""
    taken = {point.address for point in dials} | {hosts[config.data_dir.name]}
    free = [host for host in hosts.values() if host not in taken]
    if not free:
        return config
    point = AccessPoint(random.choice(free), NODE_PORT, random.choice((DMQ_NODE, SEED)))
    warm = LocalRoot((point,), hot_valency=0, warm_valency=1)
    one_way = LocalRoot((point,), hot_valency=1, warm_valency=1, initiator_only=True)
    roots = (*config.topology.local_roots, random.choice((warm, one_way)))
    return replace(config, topology=Topology(roots))


async def converge(world: World) -> float:
    """Wait until all nodes hold the same messages; the last listing stays in the history as the final one."""
    start_s = world.now_s
    for poll_s in chain(CONVERGE_POLLS_S, repeat(CONVERGE_POLLS_S[-1])):
        listings = await world.list_all("final")
        if not judge(world.history, LIVENESS) or world.now_s - start_s >= CONVERGE_WITHIN_S:
            break
        world.history.listings = [one for one in world.history.listings if one not in listings]
        await asyncio.sleep(poll_s)
    return world.now_s - start_s


async def close_the_run(world: World) -> None:
    await asyncio.sleep(CLOSING_S)
    world.history.ended_at_s = world.now_s
