"""Hot and warm peers of a topology's groups, and connections in one direction, between production nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from rigs.dmq_nodes import NodeFactory, config_of
from stagepost.dmq.cardano.ledger_peers import LedgerPeers, PoolRelay, PoolRelays, srv_domains
from stagepost.dmq.node.node import DmqNode
from stagepost.dmq.node.peer_link import UNPROVEN_S
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, SEED, Profile
from stagepost.dmq.topology import AccessPoint, LocalRoot, Topology
from stagepost.errors import TransportError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.admission import AdmissionLimits
from stagepost.ground.net.network import TcpAddress
from stagepost.simulation.pools import SimulatedPools
from stagepost.simulation.traffic import Traffic
from stagepost.simulation.world import NODE_PORT, World

POOLS = SimulatedPools(3)
HOSTS = {"hub": "10.0.0.1", "one": "10.0.0.2", "two": "10.0.0.3", "three": "10.0.0.4"}
RELAYS = ("one", "two", "three")


def relays(profile: Profile = DMQ_NODE) -> tuple[AccessPoint, ...]:
    return tuple(AccessPoint(HOSTS[name], NODE_PORT, profile) for name in RELAYS)


def with_hub(root: LocalRoot, test: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    """A hub that dials three relays as `root` says; relays dial nobody, and nobody tells of others."""
    configs = {name: config_of(name, (), peer_sharing=False) for name in HOSTS}
    configs["hub"] = replace(configs["hub"], topology=Topology((root,)))

    async def main() -> World:
        async with World(1, list(HOSTS), NodeFactory(configs, POOLS)) as world:
            for name in (*RELAYS, "hub"):
                await world.start(name)
            await asyncio.sleep(20)
            await test(world)
            return world

    world = run_in_virtual_time(main())
    assert world.history.bugs == []
    assert world.history.accusations == []
    return world


def states(world: World, name: str = "hub") -> dict[str, str]:
    """By the name of the peer, as `stagepost peers` shows them."""
    names = {host: name for name, host in HOSTS.items()}
    node = world.members[name].node
    assert node is not None
    return {names[peer.address.partition(":")[0]]: peer.state for peer in node.status().peers}


def counted(shown: Mapping[str, str]) -> dict[str, int]:
    return {state: list(shown.values()).count(state) for state in ("hot", "warm")}


async def held_by(world: World, name: str) -> int:
    node = world.members[name].node
    assert node is not None
    return int(node.status().mempool.messages)


def test_as_many_are_connected_as_warm_valency_says_and_exchange_as_hot_valency_says() -> None:
    async def test(world: World) -> None:
        assert counted(states(world)) == {"hot": 1, "warm": 1}
        await asyncio.sleep(300)
        assert counted(states(world)) == {"hot": 1, "warm": 1}, "a warm connection is kept"

    with_hub(LocalRoot(relays(), hot_valency=1, warm_valency=2), test)


def test_without_a_warm_valency_all_that_are_connected_are_hot() -> None:
    async def test(world: World) -> None:
        assert counted(states(world)) == {"hot": 2, "warm": 0}

    with_hub(LocalRoot(relays(), hot_valency=2, warm_valency=2), test)


def test_nothing_is_asked_of_a_warm_peer_until_it_takes_the_place_of_a_hot_one() -> None:
    async def test(world: World) -> None:
        traffic = Traffic(world, POOLS, Random(1))
        shown = states(world)
        (hot,) = (name for name, state in shown.items() if state == "hot")
        (warm,) = (name for name, state in shown.items() if state == "warm")
        assert (await traffic.submit_at(warm, traffic.an_honest_message(1_700))).accepted
        await asyncio.sleep(60)
        assert await held_by(world, "hub") == 0

        world.crash(hot)
        await asyncio.sleep(30)

        assert states(world)[warm] == "hot"
        assert await held_by(world, "hub") == 1
        assert counted(states(world)) == {"hot": 1, "warm": 1}, "the third one is kept warm now"

    with_hub(LocalRoot(relays(), hot_valency=1, warm_valency=2), test)


def test_a_group_may_be_all_warm() -> None:
    async def test(world: World) -> None:
        assert counted(states(world)) == {"hot": 0, "warm": 3}

    with_hub(LocalRoot(relays(), hot_valency=0, warm_valency=3), test)


def test_a_profile_with_keep_alive_of_its_own_can_be_warm_too() -> None:
    async def test(world: World) -> None:
        await asyncio.sleep(300)
        assert len(states(world)) == 2

    with_hub(LocalRoot(relays(SEED), hot_valency=1, warm_valency=2), test)


def test_a_profile_without_keep_alive_is_connected_for_hot_places_only() -> None:
    async def test(world: World) -> None:
        assert counted(states(world)) == {"hot": 1, "warm": 0}

    with_hub(LocalRoot(relays(GOUROBOROS), hot_valency=1, warm_valency=3), test)


def test_over_a_connection_that_only_we_initiate_messages_come_and_none_are_asked_of_us() -> None:
    async def test(world: World) -> None:
        traffic = Traffic(world, POOLS, Random(1))
        assert (await traffic.submit_at("one", traffic.an_honest_message(1_700))).accepted
        assert (await traffic.submit_at("hub", traffic.an_honest_message(1_700))).accepted
        await asyncio.sleep(30)
        assert await held_by(world, "hub") == 2
        assert [await held_by(world, name) for name in RELAYS] == [1, 0, 0]
        assert counted(states(world, "one")) == {"hot": 0, "warm": 1}

    with_hub(LocalRoot(relays(), hot_valency=3, warm_valency=3, initiator_only=True), test)


def test_over_a_connection_in_both_directions_messages_go_both_ways() -> None:
    async def test(world: World) -> None:
        traffic = Traffic(world, POOLS, Random(1))
        assert (await traffic.submit_at("one", traffic.an_honest_message(1_700))).accepted
        assert (await traffic.submit_at("hub", traffic.an_honest_message(1_700))).accepted
        await asyncio.sleep(30)
        assert [await held_by(world, name) for name in HOSTS] == [2, 2, 2, 2]
        assert counted(states(world, "one")) == {"hot": 1, "warm": 0}

    with_hub(LocalRoot(relays(), hot_valency=3, warm_valency=3), test)


SRV_NAME = "_dmq._mithril._cardano._tcp.example.org"


def test_an_srv_access_point_is_looked_up_each_time_it_is_dialled() -> None:
    hosts = iter([HOSTS["one"], HOSTS["two"]])
    asked: list[str] = []

    async def look_up(name: str) -> TcpAddress:
        asked.append(name)
        return TcpAddress(next(hosts), NODE_PORT)

    configs = {name: config_of(name, (), peer_sharing=False) for name in HOSTS}
    root = LocalRoot((AccessPoint(SRV_NAME, None),), hot_valency=1, warm_valency=1)
    configs["hub"] = replace(configs["hub"], topology=Topology((root,)))

    async def main() -> None:
        async with World(1, list(HOSTS), NodeFactory(configs, POOLS, look_up=look_up)) as world:
            for name in (*RELAYS, "hub"):
                await world.start(name)
            await asyncio.sleep(20)
            assert asked == [SRV_NAME]
            assert await peers_of(world, "one") == 1
            await world.stop("one")
            await asyncio.sleep(60)
            assert asked == [SRV_NAME, SRV_NAME]
            assert await peers_of(world, "two") == 1

    run_in_virtual_time(main())


def test_ledger_peers_are_looked_up_by_the_registered_name_then_by_the_guides() -> None:
    asked: list[str] = []

    async def look_up(name: str) -> TcpAddress:
        asked.append(name)
        if name == "_dmq._mithril._cardano._tcp.one.example":
            return TcpAddress(HOSTS["one"], NODE_PORT)
        if name == "_mithril._tcp.two.example":
            return TcpAddress(HOSTS["two"], NODE_PORT)
        raise TransportError(f"{name} is not there")

    configs = {name: config_of(name, (), peer_sharing=False) for name in HOSTS}
    configs["hub"] = replace(configs["hub"], topology=Topology(use_ledger_after_slot=100), private_peers=True)
    pools = [("one.example", None), ("two.example", None), ("gone.example", None), ("10.0.0.4", NODE_PORT)]
    relays = tuple(PoolRelays(Fraction(1, 4), (PoolRelay(host, port),)) for host, port in pools)

    async def main() -> None:
        async with World(1, list(HOSTS), NodeFactory(configs, POOLS, look_up=look_up)) as world:
            for name in (*RELAYS, "hub"):
                await world.start(name)
            hub = world.members["hub"].node
            assert isinstance(hub, DmqNode)
            hub.use_ledger_peers(LedgerPeers(3, 99, 42, relays))
            await asyncio.sleep(20)
            assert asked == [], "the topology wants them from slot 100 on"
            hub.use_ledger_peers(LedgerPeers(3, 100, 42, relays))
            wanted = {"_dmq._mithril._cardano._tcp.gone.example", "_mithril._tcp.gone.example"}
            for _ in range(60):  # which pool is drawn next is a matter of chance
                await asyncio.sleep(20)
                if wanted <= {*asked} and [await peers_of(world, one) for one in ("one", "two")] == [1, 1]:
                    break
            assert [await peers_of(world, name) for name in ("one", "two", "three")] == [1, 1, 0]
            assert {"_dmq._mithril._cardano._tcp.gone.example", "_mithril._tcp.gone.example"} <= {*asked}
            hub.use_ledger_peers(LedgerPeers(3, 200, 42, ()))
            known = {peer.address.host for peer in hub.book.peers}
            assert known == {"one.example", "two.example"}, "connected ones stay, the others are forgotten"

    run_in_virtual_time(main())


def test_a_pool_cannot_make_a_node_dial_machines_of_its_own_network() -> None:
    asked: list[str] = []

    async def look_up(name: str) -> TcpAddress:
        asked.append(name)
        return TcpAddress(HOSTS["one"], NODE_PORT)

    configs = {name: config_of(name, (), peer_sharing=False) for name in HOSTS}
    configs["hub"] = replace(
        configs["hub"], topology=Topology(use_ledger_after_slot=100), private_peers=False
    )
    pools = (PoolRelays(Fraction(1), (PoolRelay("pool.example", None),)),)

    async def main() -> None:
        async with World(1, list(HOSTS), NodeFactory(configs, POOLS, look_up=look_up)) as world:
            for name in ("one", "hub"):
                await world.start(name)
            hub = world.members["hub"].node
            assert isinstance(hub, DmqNode)
            hub.use_ledger_peers(LedgerPeers(3, 100, 42, pools))
            await asyncio.sleep(120)
            assert asked, "the pool's name is looked up"
            assert await peers_of(world, "one") == 0, "and where it leads is not dialled"

    run_in_virtual_time(main())


def test_a_peer_that_brings_nothing_keeps_its_place_in_a_full_node_for_ten_minutes() -> None:
    """The hub has one place, and whoever loses it comes again."""
    hub = (AccessPoint(HOSTS["hub"], NODE_PORT, DMQ_NODE),)
    configs = {name: config_of(name, hub, peer_sharing=False) for name in ("one", "two")}
    configs["hub"] = replace(
        config_of("hub", (), peer_sharing=False), admission=AdmissionLimits(soft_max=4, hard_max=1)
    )

    async def main() -> None:
        async with World(1, list(HOSTS), NodeFactory(configs, POOLS)) as world:
            await world.start("hub")
            await world.start("one")
            await asyncio.sleep(20)
            assert list(states(world)) == ["one"]
            await world.start("two")
            await asyncio.sleep(UNPROVEN_S - 60)
            assert list(states(world)) == ["one"]
            await asyncio.sleep(UNPROVEN_S)
            assert list(states(world)) == ["two"]
            # A message that the peer brings first keeps it there for as long as it counts.
            traffic = Traffic(world, POOLS, Random(1))
            assert (await traffic.submit_at("two", traffic.an_honest_message(1_700))).accepted
            for _ in range(5):
                await asyncio.sleep(UNPROVEN_S)
                assert list(states(world)) == ["two"]

    run_in_virtual_time(main())


@pytest.mark.parametrize(("count", "big"), [(0, False), (1, False), (200, True)])
def test_ledger_peers_are_drawn_by_stake_from_pools_with_srv_relays(count: int, big: bool) -> None:
    def pool(name: str, stake: Fraction, port: int | None) -> PoolRelays:
        return PoolRelays(stake, (PoolRelay(name, port),))

    large = [pool("large.example", Fraction(95, 100), None if big else 3001)]
    small = [
        pool(f"small-{number}.example", Fraction(5, 100 * max(1, count)), None) for number in range(count)
    ]
    peers = LedgerPeers(3, 1, 42, (*large, *small))

    found = srv_domains(peers, 20, Random(1))

    assert len(found) == len({*found}) == (1 if big else count)
    if big:
        assert found == ["large.example"], "with a big pool there is, no other is drawn"


def test_a_peer_behind_a_firewall_is_not_dialled_and_exchanges_messages_when_it_comes() -> None:
    configs = {name: config_of(name, (), peer_sharing=False) for name in HOSTS}
    points = (AccessPoint(HOSTS["one"], NODE_PORT), AccessPoint(HOSTS["two"], NODE_PORT))
    root = LocalRoot(points, hot_valency=2, warm_valency=2, is_behind_firewall=True)
    configs["hub"] = replace(configs["hub"], topology=Topology((root,)))
    configs["one"] = config_of("one", (AccessPoint(HOSTS["hub"], NODE_PORT),), peer_sharing=False)

    async def main() -> None:
        async with World(1, list(HOSTS), NodeFactory(configs, POOLS)) as world:
            for name in (*RELAYS, "hub"):
                await world.start(name)
            await asyncio.sleep(300)
            assert await peers_of(world, "two") == 0
            assert await peers_of(world, "hub") == 1
            traffic = Traffic(world, POOLS, Random(1))
            assert (await traffic.submit_at("one", traffic.an_honest_message(1_700))).accepted
            await asyncio.sleep(30)
            assert await held_by(world, "hub") == 1

    run_in_virtual_time(main())


async def peers_of(world: World, name: str) -> int:
    node = world.members[name].node
    assert node is not None
    return len(node.status().peers)
