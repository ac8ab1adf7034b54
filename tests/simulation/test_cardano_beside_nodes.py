"""Whole production nodes beside a cardano-node, in virtual time: they serve through its absence, epochs and eras."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from rigs.dmq_nodes import config_of
from stagepost.dmq.cardano.ledger_watch import LedgerWatch
from stagepost.dmq.node.cardano_source import CardanoSource
from stagepost.dmq.node.config import CardanoAccess
from stagepost.dmq.node.memory_store import MemoryStore
from stagepost.dmq.node.node import DmqNode
from stagepost.dmq.topology import AccessPoint
from stagepost.ground.loop.clock import Clock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.network import Network
from stagepost.ground.signatures.verifier import InlineVerifier
from stagepost.simulation.pools import SimulatedPool, SimulatedPools
from stagepost.simulation.traffic import Traffic
from stagepost.simulation.world import NODE_PORT, World
from tests.worlds.dmq.cardano_answers import LedgerState, Stakes
from tests.worlds.dmq.cardano_node import STAKE, PretendCardanoNode

HOSTS = {"hub": "10.0.0.1", "one": "10.0.0.2"}
POOLS = SimulatedPools(8)
SOCKET = Path("/run/cardano/node.socket")
HOUR_S = 3_600.0
DAY_S = 86_400


@dataclass
class Factory:
    """Makes production nodes that take stake from the cardano-node of their own machine."""

    folder: Path
    sources: dict[str, CardanoSource] = field(default_factory=dict)
    machines: dict[str, Network] = field(default_factory=dict)

    def __call__(
        self, name: str, network: Network, clock: Clock, store: MemoryStore, random: Random
    ) -> DmqNode:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        source = CardanoSource(CardanoAccess(SOCKET, 42), network, clock, folder)
        self.sources[name], self.machines[name] = source, network
        dials = (AccessPoint(HOSTS["hub"], NODE_PORT),) if name == "one" else ()
        return DmqNode(
            config_of(name, dials),
            network=network,
            clock=clock,
            store=store,
            pools=source,
            verifier=InlineVerifier(),
            random=random,
        )


def stakes(*pools: SimulatedPool) -> dict[bytes, Stakes]:
    return {bytes(pool.pool_id): (0, 10**6, 0) for pool in pools}


def story(tmp_path: Path) -> None:
    factory = Factory(tmp_path)
    early, late = POOLS.members[:6], POOLS.members[6:]

    async def main() -> None:
        async with World(1, list(HOSTS), factory) as world:
            begins_s = int(world.unix_s) // DAY_S * DAY_S
            # The first epoch ends four hours from now.
            length_s = int(world.unix_s) - begins_s + 4 * int(HOUR_S)
            ledger = LedgerState(system_start_unix_s=begins_s, epoch_s=length_s).with_pools(stakes(*early))
            nodes = {name: PretendCardanoNode(ledger) for name in HOSTS}
            for name in HOSTS:
                await world.start(name)
            watching = [asyncio.create_task(source.watch()) for source in factory.sources.values()]
            traffic = Traffic(world, POOLS, Random(1))
            hub = factory.sources["hub"]

            async def submitted(pool: SimulatedPool) -> bool:
                """Whether the hub takes a message of the pool now; a pool may send once a minute."""
                await asyncio.sleep(90)
                body = Random(world.unix_s).randbytes(200)
                message = pool.message(body, int(world.unix_s) + 600)
                return (await traffic.submit_at("hub", message)).accepted is True

            assert not await submitted(early[0])
            assert "no stake yet" in (hub.not_ready_reason or "")

            for name, node in nodes.items():
                await node.start(factory.machines[name], SOCKET)
            await asyncio.sleep(120)
            assert hub.not_ready_reason is None
            assert await submitted(early[0])

            # An hour without the cardano-node: dmq-node would have ended.
            for node in nodes.values():
                await node.stop()
            for pool in early[1:5]:
                await asyncio.sleep(HOUR_S / 4)
                assert await submitted(pool)
            assert "stake of epoch 0, 6 pools" in hub.works_with
            assert "cannot connect" in hub.works_with
            assert hub.not_ready_reason is None

            for name, node in nodes.items():
                await node.start(factory.machines[name], SOCKET)
            await asyncio.sleep(61)
            assert hub.fault_text is None
            assert not await submitted(late[0])

            # The border: the new stake and a new era.
            await asyncio.sleep(begins_s + length_s - world.unix_s + 20)
            assert "stake of epoch 0" in hub.works_with
            newer = replace(ledger, epoch=1, era=7).with_pools(stakes(*POOLS.members))
            for node in nodes.values():
                node.ledger = newer
            await asyncio.sleep(60)
            assert "stake of epoch 1, 8 pools" in hub.works_with
            assert "Dijkstra" in hub.works_with
            assert await submitted(late[0])
            await asyncio.sleep(60)
            other = world.members["one"].node
            assert other is not None
            assert other.status().mempool.messages >= 1, "and its peer has the message"
            assert [node.count(STAKE) for node in nodes.values()] == [3, 3]
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            assert world.history.bugs == []
            assert all("cardano-node cannot be asked" in one for one in world.history.accusations)

    run_in_virtual_time(main())


def test_nodes_serve_through_an_hour_without_it_its_restart_a_border_and_an_era(tmp_path: Path) -> None:
    story(tmp_path)


def test_a_node_that_forgets_its_stake_with_the_connection_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = LedgerWatch.lost

    def forgetful(watch: LedgerWatch, reason: str, *, is_refusal: bool = False) -> float:
        watch.record = None
        return genuine(watch, reason, is_refusal=is_refusal)

    monkeypatch.setattr(LedgerWatch, "lost", forgetful)
    with pytest.raises(AssertionError):
        story(tmp_path)
