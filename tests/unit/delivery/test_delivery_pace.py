"""The pace of a network: a pool may send once in a while, and the outbox keeps to that, says so, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stagepost.delivery import (
    DmqTransport,
    ErrAckTimeout,
    ErrConfig,
    ErrNoConnectedPeers,
    ErrSendFailed,
    MemoryNetwork,
    Message,
    Receiver,
    ReliablePublisher,
    ReliablePublisherConfig,
    SendPaced,
)
from stagepost.delivery.status import DeliveryStatus
from stagepost.delivery.transport import Outgoing, Published
from stagepost.delivery.transports.dmq import DmqTransportLimits
from stagepost.delivery.transports.dmq_sending import Pace
from stagepost.dmq.keys.kes_clock import KesClock
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.errors import ErrorCode
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.version_data import NETWORK_MAGICS
from tests.worlds.dmq.small_node import MAGIC, SmallNode

GAP_S = 60.0
PREVIEW = NETWORK_MAGICS["mithril-preview"]
WITHIN_S = 120.0
CONFIG = ReliablePublisherConfig(enable_ack=True, critical_peers=("bob",))


class PacedTransport:
    """A transport in memory on a network where a sender may send once in `GAP_S`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.clock = LoopClock(1_800_000_000.0)
        self.pace = Pace(self.clock, GAP_S)
        self.sent: list[tuple[float, bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def publish(self, message: Outgoing) -> Published:
        if self.pace.wait_s > 0:
            raise SendPaced(self.pace.words, self.pace.wait_s)
        self.pace.begin_turn()
        self.sent.append((asyncio.get_running_loop().time(), message.payload))
        published: Published = await self._inner.publish(message)
        return published


def paced_story(story: Callable[[PacedTransport], Any]) -> None:
    async def whole() -> None:
        network = MemoryNetwork()

        async def take(message: Message) -> None:
            pass

        async with Receiver(network.join("bob"), {"orders": take}):
            await story(PacedTransport(network.join("alice")))

    run_in_virtual_time(whole())


def test_acked_messages_outwait_the_pace_of_the_network_in_their_order() -> None:
    async def story(transport: PacedTransport) -> None:
        told: list[tuple[DeliveryStatus, Exception | None]] = []
        async with ReliablePublisher(transport, CONFIG, clock=transport.clock) as publisher:
            publisher.on_delivery_status(lambda _, status, error: told.append((status, error)))
            calls = [publisher.publish_with_ack("orders", bytes([number])) for number in range(5)]
            results = await asyncio.gather(*calls)
            assert [result.status for result in results] == [DeliveryStatus.ACKED] * 5
            assert [payload[0] for _, payload in transport.sent] == [0, 1, 2, 3, 4]
            times = [at for at, _ in transport.sent]
            assert all(later - before >= GAP_S for before, later in pairwise(times)), (
                "never two within the gap"
            )
            assert times[-1] < 5 * GAP_S, "and no turn is missed"
        held = [error for status, error in told if status is DeliveryStatus.QUEUED]
        assert any("sends again at 08:01:00 UTC" in str(error) for error in held), "people are told when"

    paced_story(story)


def test_a_time_out_that_the_caller_gave_names_what_did_not_happen() -> None:
    async def story(transport: PacedTransport) -> None:
        async with ReliablePublisher(transport, CONFIG, clock=transport.clock) as publisher:
            await publisher.publish_with_ack("orders", b"first")
            with pytest.raises(ErrAckTimeout) as failed:
                await publisher.publish_with_ack("orders", b"second", timeout=20)
            assert "was not sent within the time of the call" in failed.value.text
            assert "once in 60 s; sends again at 08:01:00 UTC" in failed.value.text
            assert failed.value.code is ErrorCode.MSG_TOO_FREQUENT
            assert failed.value.may_have_been_delivered is False
            assert len(transport.sent) == 1

    paced_story(story)


def test_queued_messages_wait_for_their_turn_and_a_flush_does_not() -> None:
    async def story(transport: PacedTransport) -> None:
        async with ReliablePublisher(transport, CONFIG, clock=transport.clock) as publisher:
            for number in range(3):
                await publisher.publish_queued("orders", bytes([number]))
            await asyncio.sleep(1)
            assert await publisher.flush_queue() == 0, "nothing can be sent now, so the call returns"
            assert publisher.stats().sends_again_ms == 1_800_000_060_000
            with pytest.raises(ErrSendFailed, match="sends again at"):
                await publisher.publish("orders", b"best effort")
            await asyncio.sleep(2 * GAP_S)
            assert [payload[0] for _, payload in transport.sent] == [0, 1, 2]
            assert (publisher.stats().sends_again_ms, publisher.stats().retries) == (None, 0)

    paced_story(story)


def over_a_node(scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WITHIN_S):
            await scenario

    asyncio.run(limited())


def test_transport_on_a_public_network_keeps_the_gap_without_being_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        make_keys(tmp_path / "keys", start_kes_period=0, issue_number=0)
        message = Outgoing("demo", bytes(16), 1_800_000_000_000, 0, (), b"hello")
        for magic, is_paced in ((PREVIEW, True), (MAGIC, False)):
            socket = tmp_path / f"{magic}.socket"
            transport = DmqTransport(socket, magic, tmp_path / "keys", kes_clock=KesClock(MAGIC))
            async with SmallNode(socket, magic=magic) as node, transport:
                await transport.publish(message)
                if is_paced:
                    with pytest.raises(SendPaced) as held:
                        await transport.publish(message)
                    assert 0 < held.value.wait_s <= GAP_S
                    assert "on this network a pool may send once in 60 s" in held.value.text
                else:
                    await transport.publish(message)
                assert node.submissions == (1 if is_paced else 2)

    over_a_node(scenario())


def test_a_turn_that_the_node_did_not_take_is_free_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        make_keys(tmp_path / "keys", start_kes_period=0, issue_number=0)
        socket = tmp_path / "node.socket"
        transport = DmqTransport(
            socket,
            PREVIEW,
            tmp_path / "keys",
            kes_clock=KesClock(MAGIC),
            limits=DmqTransportLimits(peers_poll_without_s=0.02),
        )
        node = SmallNode(socket, magic=PREVIEW)
        async with transport:
            with pytest.raises(Exception, match=r"no node|cannot connect|answers"):
                await transport.publish(Outgoing("demo", bytes(16), 1, 0, (), b"hello"))
            async with node:
                while not transport.connected_peers:
                    await asyncio.sleep(0.005)
                await transport.publish(Outgoing("demo", bytes(16), 1, 0, (), b"hello"))
                assert node.submissions == 1

    over_a_node(scenario())


@pytest.mark.parametrize("is_wrong_network", [True, False])
def test_errors_of_programs_name_the_fault_of_the_connection(tmp_path: Path, is_wrong_network: bool) -> None:
    async def scenario() -> None:
        make_keys(tmp_path / "keys", start_kes_period=0, issue_number=0)
        socket = tmp_path / "node.socket"
        peer = "ab" * 28
        config = ReliablePublisherConfig(enable_ack=True, critical_peers=(peer,))
        words = "magic" if is_wrong_network else str(socket)
        transport = DmqTransport(socket, MAGIC + 1, tmp_path / "keys")
        node = SmallNode(socket)
        if is_wrong_network:
            await node.start()
        try:
            async with transport, ReliablePublisher(transport, config) as publisher:
                with pytest.raises(ErrNoConnectedPeers, match=words) as failed:
                    await publisher.publish("demo", b"hello")
                with pytest.raises(ErrNoConnectedPeers, match=words) as acked:
                    await publisher.publish_with_ack("demo", b"hello", timeout=0.3)
                of_the_cause = ErrorCode.NO_CONNECTED_PEERS
                if is_wrong_network:
                    of_the_cause = ErrorCode.HANDSHAKE_WRONG_NETWORK
                for error in (failed.value, acked.value):
                    assert error.advice
                    assert error.code is of_the_cause
        finally:
            if is_wrong_network:
                await node.stop()

    over_a_node(scenario())


def test_a_peer_that_cannot_acknowledge_is_refused_at_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        make_keys(tmp_path / "keys", start_kes_period=0, issue_number=0)
        transport = DmqTransport(tmp_path / "node.socket", MAGIC, tmp_path / "keys")
        config = ReliablePublisherConfig(enable_ack=True, critical_peers=("relay-1",))
        with pytest.raises(ErrConfig, match="critical_peers: 'relay-1' cannot acknowledge"):
            await ReliablePublisher(transport, config).start()
        async with SmallNode(tmp_path / "node.socket"), transport, ReliablePublisher(transport) as publisher:
            with pytest.raises(ErrConfig, match="relay-1"):
                publisher.set_critical_peers(["relay-1"])

    over_a_node(scenario())
