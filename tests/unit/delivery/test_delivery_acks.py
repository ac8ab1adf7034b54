"""Who has to confirm, and what counts as a confirmation."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from stagepost.delivery import (
    DeliveryError,
    ErrAckTimeout,
    ErrNacked,
    MemoryNetwork,
    NackReason,
)
from stagepost.delivery.acks import AckTally
from stagepost.delivery.envelope import ACK_TOPICS, AckEnvelope, AckReceipt
from stagepost.delivery.status import AckType
from stagepost.delivery.transport import Incoming
from tests.worlds.delivery.delivery_world import (
    ACKED,
    PENDING,
    SENT,
    TOPIC,
    Peer,
    Watch,
    a_publisher,
    ack,
    an_acked_config,
    id_of,
    nack,
    now,
    settle,
    virtually,
)

PEERS = ("bob", "carol", "dave")


@pytest.mark.parametrize("required", [1, 2, 3])
@pytest.mark.parametrize("answers", list(product(["ack", "nack", "silence"], repeat=3)), ids="-".join)
def test_truth_table_of_any_two_and_all_of_three_peers(required: int, answers: tuple[str, ...]) -> None:
    acks, nacks = answers.count("ack"), answers.count("nack")
    if acks >= required:
        expected: type[DeliveryError] | None = None
    else:
        expected = ErrNacked if nacks > 3 - required else ErrAckTimeout

    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        for name, answer in zip(PEERS, answers, strict=True):
            peer = Peer(network, name)
            if answer != "silence":
                peer.answer = ack if answer == "ack" else nack
        config = an_acked_config(*PEERS, required_acks=required, max_retries=0)
        async with a_publisher(transport, config) as publisher:
            if expected is None:
                result = await publisher.publish_with_ack(TOPIC, b"x")
                assert result.status is ACKED
                assert set(result.acked_by) <= {p for p, a in zip(PEERS, answers, strict=True) if a == "ack"}
                assert len(result.acked_by) == required
                assert now() == 0.0
            else:
                with pytest.raises(DeliveryError) as caught:
                    await publisher.publish_with_ack(TOPIC, b"x")
                assert type(caught.value) is expected
                partial = caught.value.result
                assert partial is not None
                assert now() == (5.0 if expected is ErrAckTimeout else 0.0)
                if expected is ErrAckTimeout:
                    assert len(partial.acked_by) == acks
                    assert len(partial.nacked_by) == nacks
                    assert set(partial.missing) | set(partial.acked_by) == set(PEERS)
            assert publisher.stats()["live"] == 0

    virtually(main)


@pytest.mark.parametrize(("require_all", "expected"), [(False, 1), (True, 3)])
def test_any_and_all_are_one_and_the_number_of_peers(require_all: bool, expected: int) -> None:
    config = an_acked_config(*PEERS, require_all_acks=require_all)

    assert config.required == expected


def test_forged_sender_is_ignored_and_counted() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        mallory = Peer(network, "mallory")
        async with a_publisher(transport, an_acked_config("bob", max_retries=0)) as publisher:
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
            await settle()
            mallory.say(ack(bob.heard[0]), sender="bob")
            await settle()
            assert not call.done()
            assert publisher.stats()["bad_acks"] == 1

            bob.say(ack(bob.heard[0]))
            assert (await call).acked_by == ("bob",)

    virtually(main)


def test_an_ack_from_outside_the_critical_set_counts_but_never_completes() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        Peer(network, "bob")
        Peer(network, "eve").answer = ack
        async with a_publisher(transport, an_acked_config("bob", max_retries=0)) as publisher:
            with pytest.raises(ErrAckTimeout):
                await publisher.publish_with_ack(TOPIC, b"x")

            assert publisher.stats()["outside_acks"] == 1

    virtually(main)


@pytest.mark.parametrize(("ahead_ms", "counts"), [(60_000, True), (60_001, False)])
def test_an_ack_more_than_sixty_seconds_ahead_is_dropped(ahead_ms: int, counts: bool) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")

        def from_the_future(message: Incoming) -> AckReceipt:
            plain = ack(message)
            return AckReceipt(plain.message_id, plain.timestamp_ms + ahead_ms, AckType.ACK)

        bob.answer = from_the_future
        async with a_publisher(transport, an_acked_config("bob", max_retries=0)) as publisher:
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
            await settle()

            assert call.done() is counts
            assert publisher.stats()["bad_acks"] == (not counts)
            call.cancel()

    virtually(main)


def test_an_ack_is_sticky_and_wins_over_a_nack_of_the_same_peer() -> None:
    tally = AckTally(PEERS, 2)

    assert tally.refuse("bob", NackReason.INVALID, for_now=False)
    assert tally.acknowledge("bob")
    assert not tally.refuse("bob", NackReason.INVALID, for_now=False)
    assert not tally.acknowledge("bob")
    assert tally.nacked_by == {}
    assert tuple(tally.acked) == ("bob",)
    assert not tally.is_complete
    tally.refuse("carol", NackReason.INVALID, for_now=False)
    assert not tally.is_out_of_reach
    tally.refuse("dave", NackReason.INVALID, for_now=False)
    assert tally.is_out_of_reach


def test_a_transient_nack_does_not_wait_for_the_time_out() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        bob.answer = lambda m: nack(m, NackReason.BUSY) if m.attempt < 2 else ack(m)
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            result = await publisher.publish_with_ack(TOPIC, b"x")
            await settle()

            assert [at for at, _ in transport.sends] == pytest.approx([0.0, 0.1, 0.3])
            assert result.attempts == 3
            assert watch.path(result.message_id) == [PENDING, SENT, ACKED]

    virtually(main)


def test_transient_nacks_until_the_attempts_are_used_up_are_err_nacked() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        bob.answer = lambda message: nack(message, NackReason.HANDLER_FAILED)
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            with pytest.raises(ErrNacked, match=r"bob \(handler_failed\)") as caught:
                await publisher.publish_with_ack(TOPIC, b"x")

            assert len(transport.sends) == 4
            assert now() == pytest.approx(0.7)
            assert caught.value.result is not None
            assert caught.value.result.nacked_by == {"bob": NackReason.HANDLER_FAILED}

    virtually(main)


def test_an_unknown_reason_counts_as_transient() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        bob.answer = lambda m: ack(m) if m.attempt else nack(m, 99)
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            assert (await publisher.publish_with_ack(TOPIC, b"x")).attempts == 2

    virtually(main)


@pytest.mark.parametrize(("asked_ms", "waited_s"), [(10, 0.1), (2_000, 2.0), (30_000, 30.0), (90_000, 30.0)])
def test_a_sender_waits_as_long_as_it_was_asked_to_but_at_most_thirty_seconds(
    asked_ms: int, waited_s: float
) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        bob.answer = lambda m: ack(m) if m.attempt else nack(m, NackReason.BUSY, asked_ms)
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            await publisher.publish_with_ack(TOPIC, b"x", timeout=100.0)

            assert [at for at, _ in transport.sends] == pytest.approx([0.0, waited_s])

    virtually(main)


def test_a_slow_peer_can_still_confirm_after_another_used_up_the_attempts() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob, carol = Peer(network, "bob"), Peer(network, "carol")
        bob.answer = lambda message: nack(message, NackReason.BUSY)
        async with a_publisher(transport, an_acked_config("bob", "carol")) as publisher:
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
            await asyncio.sleep(2)
            assert len(transport.sends) == 4
            carol.say(ack(carol.heard[0]))

            assert (await call).acked_by == ("carol",)

    virtually(main)


def test_retries_ask_only_those_who_have_not_confirmed() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob, carol, dave = (Peer(network, name) for name in PEERS)
        bob.answer = ack
        carol.answer = lambda message: ack(message) if message.attempt == 1 else None
        dave.answer = lambda message: ack(message) if message.attempt == 2 else None
        async with a_publisher(transport, an_acked_config(*PEERS, require_all_acks=True)) as publisher:
            result = await publisher.publish_with_ack(TOPIC, b"x")

            assert [message.ackers for _, message in transport.sends] == [PEERS, ("carol", "dave"), ("dave",)]
            assert result.acked_by == PEERS

    virtually(main)


def test_a_message_keeps_the_critical_peers_that_it_was_published_with() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob, carol = Peer(network, "bob"), Peer(network, "carol")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"old"))
            await settle()
            publisher.set_critical_peers(["carol"])
            carol.answer = ack
            assert (await publisher.publish_with_ack(TOPIC, b"new")).acked_by == ("carol",)
            assert not call.done()
            bob.say(ack(bob.heard[0]))

            assert (await call).acked_by == ("bob",)

    virtually(main)


@pytest.mark.parametrize("topic", sorted(ACK_TOPICS))
def test_receipts_in_a_message_on_the_reserved_topic_or_its_alias_are_understood(topic: str) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
            await settle()
            receipt = AckReceipt(id_of(bob.heard[0]), 1, AckType.ACK)
            for sender, claimed in (("eve", b"bob"), ("bob", b"eve"), ("bob", b"bob")):
                assert not call.done()
                body = AckEnvelope(claimed, (receipt,)).encode()
                network.hand("alice", Incoming(sender, topic, bytes(16), 1, 0, (), body))
            network.hand("alice", Incoming("bob", topic, bytes(16), 1, 0, (), b"no envelope"))

            assert (await call).acked_by == ("bob",)
            assert publisher.stats()["bad_acks"] == 3

    virtually(main)


def test_a_repeated_ack_says_nothing_new() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob, carol = Peer(network, "bob"), Peer(network, "carol")
        async with a_publisher(
            transport, an_acked_config("bob", "carol", require_all_acks=True)
        ) as publisher:
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
            await settle()
            bob.say(ack(bob.heard[0]))
            bob.say(ack(bob.heard[0]))
            bob.say(nack(bob.heard[0]))
            assert not call.done()
            assert publisher.stats()["duplicates_in"] == 2
            carol.say(ack(carol.heard[0]))

            assert (await call).acked_by == ("bob", "carol")

    virtually(main)
