"""Every metric that a node declares is set by something that a node does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from rigs.dmq_nodes import NodeFactory, config_of
from stagepost.dmq.endpoints.local_notification import LocalMessageNotificationClient
from stagepost.dmq.node.memory_store import MemoryStore
from stagepost.dmq.node.metrics import NODE_METRICS, OUTCOMES, Metrics, PeerState, SecondBody
from stagepost.dmq.node.node import DmqNode
from stagepost.dmq.node.pools_file import PoolsFile
from stagepost.dmq.node.status import DmqNodeStatus
from stagepost.dmq.profiles import DMQ_NODE, MiniProtocol
from stagepost.dmq.topology import AccessPoint, LocalRoot, Topology
from stagepost.ground.loop.clock import Clock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.network import Network, TcpAddress
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.telemetry.status import EquivocationStatus
from stagepost.simulation.history import Made
from stagepost.simulation.hostile import SUPPLIERS, HostilePeer, Loot
from stagepost.simulation.pools import PAUPER, START_KES_PERIOD, SimulatedPools, simulated_pool
from stagepost.simulation.traffic import Traffic
from stagepost.simulation.world import NETWORK_MAGIC, NODE_PORT, World

POOLS = SimulatedPools(3)
HOSTS = {"one": "10.0.0.1", "two": "10.0.0.2", "three": "10.0.0.3"}
NOBODY = AccessPoint("10.0.0.99", NODE_PORT)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class WatchedFactory(NodeFactory):
    """Production nodes, each with the page that tells about it."""

    pools_file: PoolsFile | None = None
    told: dict[str, DmqNodeStatus] = field(default_factory=dict)

    def __call__(
        self, name: str, network: Network, clock: Clock, store: MemoryStore, random: Random
    ) -> DmqNode:
        node = super().__call__(name, network, clock, store, random)
        assert self.pools_file is not None
        self.told[name] = DmqNodeStatus(node, store, self.pools_file, Metrics())
        return node

    def samples(self) -> Samples:
        """Of all nodes together."""
        found: Samples = {}
        for told in self.told.values():
            for family in text_string_to_metric_families(told.metrics().decode()):
                for sample in family.samples:
                    key = (sample.name, frozenset(sample.labels.items()))
                    found[key] = found.get(key, 0.0) + sample.value
        return found


def a_factory(folder: Path) -> WatchedFactory:
    path = folder / "pools.json"
    path.write_text(json.dumps({"max_kes_evolutions": 62, "slots_per_kes_period": 1, "pools": []}))
    pools_file = PoolsFile(path)
    pools_file.load()
    one = replace(
        config_of("one", ()),
        topology=Topology((LocalRoot((AccessPoint(HOSTS["two"], NODE_PORT), NOBODY), 2, 2),)),
    )
    # Only this one refuses a second body, and keeps the third node warm.
    two = replace(
        config_of("two", ()),
        refuse_equivocation=True,
        topology=Topology((LocalRoot((AccessPoint(HOSTS["three"], NODE_PORT),), 0, 1),)),
    )
    configs = {"one": one, "two": two, "three": config_of("three", ())}
    return WatchedFactory(configs, POOLS, pools_file=pools_file)


async def a_busy_day(factory: WatchedFactory) -> tuple[Samples, dict[str, dict[str, Any]]]:
    """What the metrics of all nodes say at its end, and the status of each."""
    world = World(1, list(HOSTS), factory)
    traffic = Traffic(world, POOLS, Random(1))
    pool, expires_at = POOLS.members[0], int(world.history.start_unix_s) + 1_000
    messages = [pool.message(bytes([tag]) * 100, expires_at) for tag in (1, 2)]
    poor = simulated_pool(PAUPER).message(b"p" * 100, expires_at)
    brief = POOLS.members[1].message(b"b" * 100, int(world.history.start_unix_s) + 15)
    for message in (*messages, poor, brief):
        world.history.made[message.raw] = Made(message.expires_at)
    async with world:
        await world.start_all()
        world.listen("one")
        idle = asyncio.get_running_loop().create_task(ask_once(world))
        await asyncio.sleep(5)
        assert (await traffic.submit_at("one", brief)).accepted
        assert (await traffic.submit_at("one", messages[0])).accepted
        await asyncio.sleep(5)
        # The second body of the slot: held where that is allowed, and refused by the node that hears of it.
        assert (await traffic.submit_at("one", messages[1])).accepted
        assert not (await traffic.submit_at("one", poor)).accepted
        liar = HostilePeer(
            world.network.process("10.0.1.1"),
            TcpAddress("10.0.1.1", NODE_PORT),
            next(iter(SUPPLIERS.values())),
            Loot(messages=list(messages)),
            Random(2),
        )
        liar.dial(world.members["one"].address, NETWORK_MAGIC, as_puller=False)
        await asyncio.sleep(30)
        samples = factory.samples()
        status = {
            name: json.loads(json.dumps(msgspec.to_builtins(told.status())))
            for name, told in factory.told.items()
        }
        liar.stop()
        idle.cancel()
    assert world.history.bugs == []
    return samples, status


async def ask_once(world: World) -> None:
    """A program that connects, asks once and then forgets about it."""
    async with world.members["one"].seat.connection(DMQ_NODE) as connection:
        talk = connection.open(DMQ_NODE, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, Role.CLIENT)
        await LocalMessageNotificationClient(talk).request_messages_non_blocking()
        await asyncio.Event().wait()


def values_of(samples: Mapping[Any, float], name: str) -> dict[frozenset[tuple[str, str]], float]:
    return {labels: value for (found, labels), value in samples.items() if found == name}


def test_every_declared_metric_of_a_node_is_set_by_what_it_does(tmp_path: Path) -> None:
    samples, _ = run_in_virtual_time(a_busy_day(a_factory(tmp_path)))

    for metric in NODE_METRICS:
        assert any(values_of(samples, metric.name).values()), f"nothing ever sets {metric.name}"
    messages = values_of(samples, "stagepost_dmq_messages_total")
    for protocol, outcomes in OUTCOMES.items():
        for outcome in outcomes:
            labels = frozenset({("protocol", protocol.value), ("outcome", outcome.value)})
            assert messages[labels] > 0, f"no message was {outcome} by {protocol.value}"
    peers = values_of(samples, "stagepost_dmq_peers")
    assert all(peers[frozenset({("state", state.value)})] > 0 for state in PeerState)
    equivocations = values_of(samples, "stagepost_dmq_equivocations_total")
    assert all(equivocations[frozenset({("outcome", second.value)})] == 1 for second in SecondBody)


def test_periods_left_are_those_of_the_node_whose_programs_send(tmp_path: Path) -> None:
    _, status = run_in_virtual_time(a_busy_day(a_factory(tmp_path)))

    shown = {name: told["kes_periods_remaining"] for name, told in status.items()}

    # The pool signs in the first period of its certificate, so that all of them are left.
    assert POOLS.members[0].certificate.start_kes_period == START_KES_PERIOD
    assert shown == {"one": POOLS.kes_evolutions_max, "two": None, "three": None}


def test_equivocation_is_shown_in_the_status_with_pool_and_messages(tmp_path: Path) -> None:
    _, status = run_in_virtual_time(a_busy_day(a_factory(tmp_path)))

    one, two = (status[name]["equivocations"] for name in ("one", "two"))

    assert (one["count"], one["refused"]) == (1, 0)
    assert (two["count"], two["refused"]) == (1, 1)
    assert {key: one["pools"][0][key] for key in ("first", "second", "expires_at")} == {
        key: two["pools"][0][key] for key in ("first", "second", "expires_at")
    }
    assert one["pools"][0]["pool_id"].startswith("pool1")
    assert json.loads(msgspec.json.encode(msgspec.convert(one, EquivocationStatus))) == one


def test_a_second_body_within_the_gap_of_a_public_network_is_found_when_its_time_has_come(
    tmp_path: Path,
) -> None:
    """Two halves of a network each hold one of two bodies; the node between them hears of both within seconds."""
    factory = a_factory(tmp_path)
    factory.configs = {
        name: replace(
            config,
            min_sig_delay_s=60.0,
            refuse_equivocation=False,
            topology=Topology()
            if name != "two"
            else Topology(
                (LocalRoot(tuple(AccessPoint(HOSTS[other], NODE_PORT) for other in ("one", "three")), 2, 2),)
            ),
        )
        for name, config in factory.configs.items()
    }

    async def main() -> list[int]:
        world = World(1, list(HOSTS), factory)
        traffic = Traffic(world, POOLS, Random(1))
        pool, expires_at = POOLS.members[0], int(world.history.start_unix_s) + 1_000
        messages = [pool.message(bytes([tag]) * 100, expires_at) for tag in (1, 2)]
        for message in messages:
            world.history.made[message.raw] = Made(message.expires_at)
        counts: list[int] = []
        async with world:
            await world.start_all()
            await asyncio.sleep(5)
            for name, message in zip(("one", "three"), messages, strict=True):
                assert (await traffic.submit_at(name, message)).accepted
            for wait_s in (30, 60):
                await asyncio.sleep(wait_s)
                counts.append(factory.told["two"].status().equivocations.count)
        assert world.history.bugs == []
        assert world.history.accusations == []
        return counts

    assert run_in_virtual_time(main()) == [0, 1]
