"""What is done without detours: messages that their callers send at once, statuses nobody hears, ids written by parts."""

from __future__ import annotations

import asyncio
import hashlib
from random import Random

import cbor2
import pytest

from stagepost.delivery import (
    DeliveryStatus,
    ErrAckTimeout,
    MemoryNetwork,
    Message,
    Receiver,
    ReceiverConfig,
    ReliablePublisherConfig,
)
from stagepost.delivery.effects import Report
from stagepost.delivery.entry import ClockTimes, OutboxEntry, Phase
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.identity import HEADS_KEPT, delivery_id
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.shell.receiver import HANDLED_IN_A_ROW_MAX
from stagepost.delivery.status import AckType, Tier
from stagepost.delivery.stores.outbox_stores import MemoryOutbox, MemoryOutboxDisk
from stagepost.delivery.transport import Incoming, IncomingAcks, Outgoing, Published
from stagepost.delivery.transports.memory import MemoryTransport
from tests.worlds.delivery.delivery_world import (
    ACKED,
    PENDING,
    QUEUED,
    SENT,
    TOPIC,
    Listener,
    Peer,
    Watch,
    a_publisher,
    ack,
    an_acked_config,
    assert_balanced,
    clock,
    now,
    settle,
    virtually,
)

NOW = ClockTimes(0.0, 1_800_000_000_000)


def a_core(**changes: object) -> PublisherCore:
    config = ReliablePublisherConfig(enable_ack=True, critical_peers=("bob",), **changes)  # type: ignore[arg-type]
    core = PublisherCore(config, "alice", nonce_prefix=b"n" * 8, volatile_prefix=b"v" * 8, random=Random(1))
    core.connectivity(1, NOW)
    return core


def offered(core: PublisherCore, payload: bytes, *, ackers: tuple[str, ...] = ("bob",)) -> OutboxEntry:
    entry = core.offer(Tier.ACKED, TOPIC, payload, NOW, ackers=ackers, required=1, budget_s=10.0)
    assert isinstance(entry, OutboxEntry)
    return entry


def test_a_message_that_may_go_at_once_is_given_to_its_caller_and_to_nobody_else() -> None:
    core = a_core()
    entry = offered(core, b"x")
    message = core.accept_to_send(entry, NOW)

    assert message == Outgoing(TOPIC, entry.nonce, NOW.unix_ms, 0, ("bob",), b"x")
    assert entry.phase is Phase.SENDING
    assert core.attempts.next_to_send(NOW) is None
    assert core.outbox.in_flight == core.outbox.acked_in_flight == 1
    assert [effect.status for effect in core.take_effects() if isinstance(effect, Report)] == [PENDING]


@pytest.mark.parametrize("reason", ["offline", "somebody is ready", "too many in flight", "asks nobody"])
def test_a_message_that_may_not_go_at_once_lines_up(reason: str) -> None:
    core = a_core(max_in_flight=1)
    if reason == "offline":
        core.connectivity(0, NOW)
    elif reason == "somebody is ready":
        core.accept(offered(core, b"before", ackers=()), NOW)
    elif reason == "too many in flight":
        assert core.accept_to_send(offered(core, b"before"), NOW) is not None
    entry = offered(core, b"x", ackers=() if reason == "asks nobody" else ("bob",))
    core.take_effects()

    assert core.accept_to_send(entry, NOW) is None
    assert entry.phase is Phase.READY
    is_told = [effect.status for effect in core.take_effects() if isinstance(effect, Report)]
    assert is_told == ([PENDING] if reason == "asks nobody" else [PENDING, QUEUED])


def test_in_strict_order_a_message_whose_own_send_failed_holds_back_those_behind_it() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        config = an_acked_config("bob", strict_order=True)
        async with Listener(network, "bob") as bob, a_publisher(transport, config) as publisher:
            transport.fail_next(2)
            calls = [asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"%d" % n)) for n in range(3)]
            await settle()
            assert bob.data == []
            await asyncio.sleep(0.31)

            assert bob.data == [b"0", b"1", b"2"]
            assert [(await call).status for call in calls] == [ACKED] * 3

    virtually(main)


def slowed(transport: MemoryTransport, send_s: float) -> None:
    publish = MemoryTransport.publish

    async def slowly(message: Outgoing) -> Published:
        await asyncio.sleep(send_s)
        return await publish(transport, message)

    transport.publish = slowly  # type: ignore[method-assign]


def test_in_strict_order_the_next_goes_out_when_the_one_before_it_is_sent() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        slowed(transport, 1.0)
        config = an_acked_config("bob", strict_order=True)
        async with a_publisher(transport, config) as publisher:
            calls = [asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"%d" % n)) for n in range(3)]
            await asyncio.sleep(2.5)
            assert [message.payload for message in bob.heard] == [b"0", b"1"]
            await asyncio.sleep(1.0)
            assert [message.payload for message in bob.heard] == [b"0", b"1", b"2"]
            for message in bob.heard:
                bob.say(ack(message))

            assert [(await call).status for call in calls] == [ACKED] * 3

    virtually(main)


@pytest.mark.parametrize("send_s", [0.5, 2.0, 2.5])
def test_the_wait_for_answers_begins_when_the_send_is_over_however_long_it_took(send_s: float) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")
        slowed(transport, send_s)
        config = an_acked_config("bob", ack_timeout=2.0, max_retries=0, delivery_timeout=60.0)
        async with a_publisher(transport, config) as publisher:
            with pytest.raises(ErrAckTimeout):
                await publisher.publish_with_ack(TOPIC, b"x")

            assert now() == pytest.approx(send_s + 2.0)
            assert_balanced(publisher)

    virtually(main)


@pytest.mark.parametrize("budget_s", [1.0, 2.0, 5.0])
def test_the_budget_ends_a_send_that_hangs_whether_it_is_shorter_or_longer_than_the_wait_for_answers(
    budget_s: float,
) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")
        slowed(transport, 1_000.0)
        async with a_publisher(transport, an_acked_config("bob", ack_timeout=2.0)) as publisher:
            with pytest.raises(ErrAckTimeout):
                await publisher.publish_with_ack(TOPIC, b"x", timeout=budget_s)

            assert now() == pytest.approx(budget_s)

    virtually(main)


def test_who_begins_to_listen_in_the_middle_hears_the_rest_and_who_left_hears_nothing() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            first = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"1"))
            await settle()
            heard: list[DeliveryStatus] = []
            end = publisher.on_delivery_status(lambda _, status, __: heard.append(status))
            bob.say(ack(bob.heard[0]))
            await first
            await settle()
            assert heard == [ACKED]
            end()
            bob.answer = ack
            await publisher.publish_with_ack(TOPIC, b"2")
            await settle()
            assert heard == [ACKED]
            watch = Watch(publisher)
            result = await publisher.publish_with_ack(TOPIC, b"3")
            await settle()

            assert watch.path(result.message_id) == [PENDING, SENT, ACKED]

    virtually(main)


def test_listening_to_a_publisher_that_was_never_started_is_no_mistake() -> None:
    async def main() -> None:
        heard: list[object] = []
        publisher = a_publisher(MemoryNetwork().join("alice"))
        publisher.on_delivery_status(lambda *event: heard.append(event))()
        await publisher.stop()
        publisher.on_delivery_status(lambda *event: heard.append(event))()
        assert heard == []

    virtually(main)


def test_what_nobody_hears_is_not_reported_and_known_all_the_same() -> None:
    core = a_core()
    core.watch(False)
    entry = offered(core, b"x")
    core.unawait(entry)
    core.accept_to_send(entry, NOW)
    core.attempts.sent(entry, Published(), NOW)
    later = ClockTimes(1.0, NOW.unix_ms + 1_000)
    receipt = AckReceipt(entry.delivery_id, later.unix_ms, AckType.ACK)

    assert core.receipts(IncomingAcks("bob", "bob", (receipt,)), later) == []
    outcome = core.result_of(entry.delivery_id)
    assert outcome is not None
    assert (outcome.status, outcome.timestamp_ms, outcome.acked_by) == (ACKED, later.unix_ms, ("bob",))
    assert core.counters.published == core.counters.sent == core.counters.acked == 1


def test_who_gave_up_waiting_for_the_store_does_not_count_as_waiting() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        store = MemoryOutbox(MemoryOutboxDisk(lambda: 1.0), nonce_prefix=b"prefix..")
        async with a_publisher(transport, an_acked_config("bob"), outbox=store) as publisher:
            watch = Watch(publisher)
            first, second = (
                asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x", key="k")) for _ in range(2)
            )
            await asyncio.sleep(0.5)
            second.cancel()
            await asyncio.sleep(1.5)
            assert len(bob.heard) == 1
            first.cancel()
            await settle()

            # The last one who waited has gone, so nobody tries again.
            ((_, path),) = watch.paths.items()
            assert path[-1] is DeliveryStatus.FAILED
            assert publisher.stats()["live"] == 0

    virtually(main)


@pytest.mark.parametrize("size", [0, 23, 24, 255, 256, 1_900, 65_535, 65_536])
def test_an_id_is_the_hash_of_the_whole_array_whatever_was_written_before(size: int) -> None:
    for number in range(HEADS_KEPT + 2):
        delivery_id(b"other", f"topic {number}", b"o" * 16, bytes(number))
    parts = ("topic", "thème", "x" * 255)
    for topic in (*parts, *parts):
        whole = cbor2.dumps(["dlv1", b"sender", topic, b"n" * 16, bytes(size)])
        found = delivery_id(b"sender", topic, b"n" * 16, bytes(size))
        assert found == hashlib.blake2b(whole, digest_size=32).digest()


@pytest.mark.parametrize("more", [0, 1])
def test_answers_leave_after_so_many_messages_in_a_row(more: int) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        answered: list[int] = []
        handled = 0

        def hear(message: Incoming | IncomingAcks) -> None:
            assert isinstance(message, IncomingAcks)
            answered.append(len(message.receipts))

        async def handle(message: Message) -> None:
            nonlocal handled
            handled += 1

        network.join("alice").on_message(hear)
        config = ReceiverConfig(ack_delay=0.0)
        async with Receiver(network.join("bob"), {TOPIC: handle}, config=config, clock=clock()):
            await settle()
            for number in range(HANDLED_IN_A_ROW_MAX + more):
                network.hand("bob", Incoming("alice", TOPIC, bytes(16), 0, 0, ("bob",), b"%d" % number))
            await settle()

            assert handled == HANDLED_IN_A_ROW_MAX + more
            assert answered == [HANDLED_IN_A_ROW_MAX, *[1] * more]

    virtually(main)
