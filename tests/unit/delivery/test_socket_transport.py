"""The transport over sockets: large payloads, proved peers, peers that come and go, and peers that lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stagepost.delivery import (
    DeliveryStatus,
    ErrConfig,
    ErrMessageTooLarge,
    ErrNoConnectedPeers,
    Incoming,
    IncomingAcks,
    Message,
    Outgoing,
    Receiver,
    ReliablePublisher,
    ReliablePublisherConfig,
    SendFailed,
    SocketPeer,
    SocketTransport,
)
from stagepost.delivery.envelope import DataEnvelope
from stagepost.delivery.transports import sockets
from stagepost.delivery.transports.sockets import PEERS_MAX
from stagepost.errors import ConfigError
from stagepost.ground.crypto import ed25519
from stagepost.remp.links.protocols import DELIVERY_BODY_BYTES_MAX, DeliveryBody

WITHIN_S = 120.0
ALICE, BOB, CAROL, STRANGER = (bytes([number]) * 32 for number in range(1, 5))
LOOPBACK = "127.0.0.1:0"
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WITHIN_S):
            await scenario

    asyncio.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def key(seed: bytes) -> str:
    return ed25519.public_key(seed).hex()


def config_for(*peers: SocketTransport, **changes: Any) -> ReliablePublisherConfig:
    names = tuple(peer.self_id for peer in peers)
    return ReliablePublisherConfig(enable_ack=True, critical_peers=names, **changes)


@asynccontextmanager
async def linked(
    listen: str = LOOPBACK, **changes: Any
) -> AsyncIterator[tuple[SocketTransport, SocketTransport]]:
    """Alice dials Bob, who listens."""
    async with SocketTransport(BOB, [SocketPeer(key(ALICE))], listen=listen) as bob:
        peers = [SocketPeer(key(BOB), bob.address)]
        async with SocketTransport(ALICE, peers, **changes) as alice:
            await until(lambda: bool(alice.connected_peers and bob.connected_peers))
            yield alice, bob


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_900_kilobytes_are_acknowledged_by_the_peer_that_proved_its_key(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        listen = LOOPBACK if kind == "tcp" else str(tmp_path / "bob.socket")
        got: list[Message] = []

        def handle(message: Message) -> None:
            got.append(message)

        async with linked(listen) as (alice, bob):
            payloads = [bytes([number]) * 900_000 for number in range(5)]
            async with (
                Receiver(bob, {"large": handle}),
                ReliablePublisher(alice, config_for(bob, ack_timeout=30.0)) as publisher,
            ):
                calls = [publisher.publish_with_ack("large", one, traceparent=CALLER) for one in payloads]
                results = await asyncio.gather(*calls)
                assert [result.acked_by for result in results] == [(bob.self_id,)] * 5
                assert sorted(message.data for message in got) == payloads
                assert {message.sender for message in got} == {alice.self_id}
                assert {message.traceparent for message in got} == {CALLER}
                assert {result.attempts for result in results} == {1}

    run(scenario())


def test_the_largest_payload_fits_and_one_byte_more_is_refused_before_anything_is_sent() -> None:
    async def scenario() -> None:
        async with linked() as (alice, bob):
            heard: list[Incoming | IncomingAcks] = []
            bob.on_message(heard.append)
            room = alice.payload_room("t", ())
            largest = Outgoing("t", bytes(16), 2**62, 2**31, (), bytes(room), CALLER)
            await alice.publish(largest)
            await until(lambda: bool(heard))
            assert isinstance(heard[0], Incoming)
            assert len(heard[0].payload) == room
            async with ReliablePublisher(alice) as publisher:
                with pytest.raises(ErrMessageTooLarge):
                    await publisher.publish("t", bytes(room + 1))

    run(scenario())


def test_messages_wait_for_a_peer_that_comes_back_and_both_may_dial() -> None:
    async def scenario() -> None:
        got: list[bytes] = []

        def handle(message: Message) -> None:
            got.append(message.data)

        async with SocketTransport(BOB, [SocketPeer(key(ALICE))], listen=LOOPBACK) as first:
            address = first.address
        peers = [SocketPeer(key(BOB), address)]
        async with (
            SocketTransport(ALICE, peers, listen=LOOPBACK) as alice,
            ReliablePublisher(alice, config_for(first)) as publisher,
        ):
            with pytest.raises(ErrNoConnectedPeers, match="none of 1 peers is linked"):
                await publisher.publish("orders", b"now")
            call = asyncio.create_task(publisher.publish_with_ack("orders", b"later", timeout=100))
            back = [SocketPeer(key(ALICE), alice.address)]
            async with (
                SocketTransport(BOB, back, listen=address) as bob,
                Receiver(bob, {"orders": handle}),
            ):
                assert (await call).status is DeliveryStatus.ACKED
                await until(lambda: len(alice._links) == 2)
                assert (alice.connected_peers, bob.connected_peers) == (1, 1)
                await publisher.publish_with_ack("orders", b"again")
                assert got == [b"later", b"again"], "two links carry each message once"
            await until(lambda: alice.connected_peers == 0)

    run(scenario())


def test_every_linked_peer_gets_a_message_and_only_the_asked_ones_acknowledge() -> None:
    async def scenario() -> None:
        got: list[str] = []
        async with (
            SocketTransport(BOB, [SocketPeer(key(ALICE))], listen=LOOPBACK) as bob,
            SocketTransport(CAROL, [SocketPeer(key(ALICE))], listen=LOOPBACK) as carol,
            SocketTransport(
                ALICE, [SocketPeer(key(BOB), bob.address), SocketPeer(key(CAROL), carol.address)]
            ) as alice,
            Receiver(bob, {"orders": lambda message: got.append("bob")}),
            Receiver(carol, {"orders": lambda message: got.append("carol")}),
        ):
            await until(lambda: alice.connected_peers == 2)
            async with ReliablePublisher(alice, config_for(bob, carol, require_all_acks=True)) as publisher:
                result = await publisher.publish_with_ack("orders", b"one")
                assert set(result.acked_by) == {bob.self_id, carol.self_id}
                publisher.set_critical_peers([bob.self_id])
                assert (await publisher.publish_with_ack("orders", b"two")).acked_by == (bob.self_id,)
            await until(lambda: sorted(got) == ["bob", "bob", "carol", "carol"])

    run(scenario())


@pytest.mark.parametrize("wrong", ["stranger", "other key", "other network"])
def test_peers_that_are_not_named_or_not_themselves_get_no_link(wrong: str) -> None:
    async def scenario() -> None:
        async with SocketTransport(BOB, [SocketPeer(key(ALICE))], listen=LOOPBACK) as bob:
            dialled = key(CAROL) if wrong == "other key" else key(BOB)
            transport = SocketTransport(
                STRANGER if wrong == "stranger" else ALICE,
                [SocketPeer(dialled, bob.address)],
                network_magic=7 if wrong == "other network" else 0,
            )
            async with transport:
                with pytest.raises(SendFailed):
                    await transport.publish(Outgoing("t", bytes(16), 1, 0, (), b"x"))
                for _ in range(30):
                    await asyncio.sleep(0.02)
                    assert (transport.connected_peers, bob.connected_peers) == (0, 0)
                assert transport.absence is not None

    run(scenario())


def signed(body: bytes, transport: SocketTransport) -> bytes:
    return ed25519.sign(ALICE, transport._tag + body)


@pytest.mark.parametrize("lie", ["signature of another body", "no envelope", "reserved topic", "too large"])
def test_a_peer_that_lies_loses_its_link_and_is_kept_out(lie: str) -> None:
    async def scenario() -> None:
        async with linked() as (alice, bob):
            heard: list[Incoming | IncomingAcks] = []
            bob.on_message(heard.append)
            body = DataEnvelope("t", bytes(16), 1, b"hello").encode()
            forged = DeliveryBody(signed(body, alice), body)
            if lie == "signature of another body":
                forged = DeliveryBody(signed(b"other", alice), body)
            elif lie == "no envelope":
                forged = DeliveryBody(signed(b"\x80", alice), b"\x80")
            elif lie == "reserved topic":
                body = body.replace(b"\x61t", b"\x61/").replace(b"\x61/", b"\x6d/dep2p/sys/x/")
                forged = DeliveryBody(signed(body, alice), body)
            else:
                large = bytes(DELIVERY_BODY_BYTES_MAX + 1)
                forged = DeliveryBody(signed(large, alice), large)
            (link,) = alice._links.values()
            link._speaking._channel.write_now(link._speaking._codec.encode(forged))
            await until(lambda: not bob._links)
            assert heard == []
            assert bob.counters.forged == (lie == "signature of another body")
            assert bob._penalties.refused_until(bytes.fromhex(key(ALICE)), bob._end.clock.mono_s())

    run(scenario())


def test_a_peer_that_reads_nothing_loses_its_link_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "SEND_WITHIN_S", 0.3)

    async def scenario() -> None:
        got: list[int] = []

        def handle(message: Message) -> None:
            got.append(len(message.data))

        async with (
            SocketTransport(BOB, [SocketPeer(key(ALICE))], listen=LOOPBACK) as bob,
            SocketTransport(CAROL, [SocketPeer(key(ALICE))], listen=LOOPBACK) as carol,
            SocketTransport(
                ALICE, [SocketPeer(key(BOB), bob.address), SocketPeer(key(CAROL), carol.address)]
            ) as alice,
            Receiver(bob, {"large": handle}),
            ReliablePublisher(alice, config_for(bob, ack_timeout=60.0)) as publisher,
        ):
            await until(lambda: alice.connected_peers == 2)
            stuck = next(link for link in alice._links.values() if link.public_key.hex() == key(CAROL))
            monkeypatch.setattr(type(stuck._speaking), "send", _never_for(stuck._speaking))
            for _ in range(3):
                await publisher.publish_with_ack("large", bytes(900_000))
            assert got == [900_000] * 3
            assert stuck.is_over
            assert alice.counters.unsent >= 1

    run(scenario())


def _never_for(stuck: object) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return `send` of conversations, which waits for ever in `stuck`: its peer makes no room."""
    from stagepost.ground.net.conversation import Conversation

    real = Conversation.send

    async def send(self: Any, message: object) -> None:
        if self is stuck:
            await asyncio.Event().wait()
        await real(self, message)

    return send


def test_configurations_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="64 hex digits"):
        SocketPeer("relay-1")
    with pytest.raises(ConfigError):
        SocketPeer(key(BOB), "not an address:x")
    with pytest.raises(ConfigError, match="a seed has 32 bytes"):
        SocketTransport(b"short", [])
    crowd = [SocketPeer(number.to_bytes(32, "big").hex()) for number in range(PEERS_MAX + 1)]
    with pytest.raises(ConfigError, match="at most 256"):
        SocketTransport(ALICE, crowd)
    SocketTransport(ALICE, crowd[:-1])

    async def scenario() -> None:
        alice = SocketTransport(ALICE, [SocketPeer(key(BOB))])
        stranger = SocketPeer(key(STRANGER)).node_id
        config = ReliablePublisherConfig(enable_ack=True, critical_peers=(stranger,))
        with pytest.raises(ErrConfig, match="is not the node id of a peer"):
            await ReliablePublisher(alice, config).start()

    run(scenario())
