"""External messages in an outbox: the time of the first transmission is on disk before anybody hears of the message, and
no copy of it ever names another time.
"""

from __future__ import annotations

import asyncio

import pytest

from stagepost.chain.messages import CanonicalMessage, MessageDraft, stamped_draft
from stagepost.delivery import ErrAckTimeout, MemoryNetwork, ReliablePublisher, ReliablePublisherConfig
from stagepost.delivery.answers import RECEIPT_AHEAD_MAX_MS
from stagepost.delivery.config import ReceiverConfig
from stagepost.delivery.endings import FailedMessage
from stagepost.delivery.entry import ClockTimes, OutboxEntry
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.receiver import ACCEPTED, ANSWER, DROP, RUN, ReceiverCore
from stagepost.delivery.shell.receiver import Receiver
from stagepost.delivery.shell.sender import Sender
from stagepost.delivery.status import AckType
from stagepost.delivery.stores.outbox_stores import MemoryOutbox, MemoryOutboxDisk
from stagepost.delivery.transport import Incoming
from stagepost.delivery.transports.memory import MemoryTransport
from stagepost.ground.identifiers import MESSAGES_TOPIC
from stagepost.ground.loop.clock import LoopClock
from tests.worlds.delivery.delivery_world import (
    START_UNIX_S,
    TOPIC,
    Peer,
    a_publisher,
    ack,
    an_acked_config,
    id_of,
    now,
    virtually,
)

DRAFT = MessageDraft(bytes(32), b"pay", 60).encode()
OFFLINE_S = 7_200.0


def on_disk(
    transport: MemoryTransport, disk: MemoryOutboxDisk, config: ReliablePublisherConfig | None = None
) -> ReliablePublisher:
    store = MemoryOutbox(disk, nonce_prefix=b"prefix..")
    return a_publisher(transport, config or an_acked_config("bob"), outbox=store)


def crash(publisher: ReliablePublisher, transport: MemoryTransport, disk: MemoryOutboxDisk) -> None:
    disk.crash()
    transport.leave()
    publisher.kill()


def unix_ms() -> int:
    return int((START_UNIX_S + now()) * 1_000)


def test_a_message_that_waited_is_dated_by_its_first_transmission_and_keeps_its_delivery_id() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        publisher = on_disk(network.join("alice"), disk)
        await publisher.start()
        known = await publisher.publish_queued(MESSAGES_TOPIC, DRAFT)
        other = await publisher.publish_queued(TOPIC, b"dated by its creation")
        accepted_ms = unix_ms()
        await asyncio.sleep(OFFLINE_S)
        bob = Peer(network, "bob")
        sent_ms = unix_ms()
        await asyncio.sleep(30.0)
        copies = [one for one in bob.heard if id_of(one).hex() == known]
        assert {one.created_ms for one in copies} == {sent_ms}
        assert {one.created_ms for one in bob.heard if id_of(one).hex() == other} == {accepted_ms}
        expires_at_s = CanonicalMessage.decode(stamped_draft(copies[0].payload, sent_ms)).expires_at_s
        assert expires_at_s == -(-sent_ms // 1_000) + 60
        await publisher.stop()

    virtually(main)


def test_a_message_that_leaves_at_once_costs_no_second_write() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk(lambda: 0.5)
        bob = Peer(network, "bob")
        bob.answer = ack
        publisher = on_disk(network.join("alice"), disk)
        await publisher.start()
        began_ms, began = unix_ms(), now()
        await publisher.publish_with_ack(MESSAGES_TOPIC, DRAFT)
        assert now() - began == 0.5
        assert [one.created_ms for one in bob.heard] == [began_ms]
        await publisher.stop()

    virtually(main)


@pytest.mark.parametrize("is_planted", [False, True])
def test_nobody_hears_of_a_message_before_its_stamp_is_on_disk(
    is_planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash right after the first transmission; the next life must send the same message. The planted defect sends
    before it has written.
    """

    async def sends_at_once(sender: Sender, entry: OutboxEntry) -> None:
        entry.is_stamp_stored = True

    if is_planted:
        monkeypatch.setattr(Sender, "_store_stamp", sends_at_once)

    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk(lambda: 0.5)
        transport = network.join("alice")
        publisher = on_disk(transport, disk)
        await publisher.start()
        await publisher.publish_queued(MESSAGES_TOPIC, DRAFT)
        await asyncio.sleep(2.0)
        bob = Peer(network, "bob")
        while not bob.heard:
            await asyncio.sleep(0.01)
        crash(publisher, transport, disk)
        first = bob.heard[0].created_ms
        await asyncio.sleep(100.0)
        bob.answer = ack
        publisher = on_disk(network.join("alice"), disk)
        await publisher.start()
        await asyncio.sleep(5.0)
        assert len(bob.heard) == 2
        assert (bob.heard[1].created_ms != first) is is_planted
        await publisher.stop()

    virtually(main)


def test_while_the_stamp_cannot_be_written_nothing_is_sent_and_no_attempt_is_spent() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        publisher = on_disk(network.join("alice"), disk)
        await publisher.start()
        await publisher.publish_queued(MESSAGES_TOPIC, DRAFT)
        disk.is_full = True
        bob = Peer(network, "bob")
        await asyncio.sleep(60.0)
        assert not bob.heard
        bob.answer = ack
        disk.is_full = False
        await asyncio.sleep(60.0)
        assert len(bob.heard) == 1
        assert bob.heard[0].attempt == 0
        await publisher.stop()

    virtually(main)


class NotProved(Exception):
    """There is no proof that the message was never executed."""


def test_a_dead_letter_is_stamped_again_only_with_a_proof_and_handled_again_under_its_delivery_id() -> None:
    """The receiver has handled the first message, and its answer was lost: its verdict is about that stamp alone."""

    async def main() -> None:
        network, disk, handled = MemoryNetwork(), MemoryOutboxDisk(), list[int]()
        handlers = {MESSAGES_TOPIC: lambda one: handled.append(one.created_ms)}
        receiver = Receiver(network.join("bob"), handlers, clock=LoopClock(START_UNIX_S))
        await receiver.start()
        alice = network.join("alice")
        publisher = on_disk(alice, disk, an_acked_config("bob", max_retries=0))
        await publisher.start()
        receiver._receipts.put = lambda receipt: None  # type: ignore[method-assign]  # its answers are lost
        with pytest.raises(ErrAckTimeout):
            await publisher.publish_with_ack(MESSAGES_TOPIC, DRAFT)
        del receiver._receipts.put
        (letter,) = await publisher.dead_letters()
        await asyncio.sleep(600.0)

        def refuse(found: FailedMessage) -> None:
            assert found == letter
            raise NotProved

        with pytest.raises(NotProved):
            await publisher.replay(letter.message_id, require_never=refuse)
        assert await publisher.dead_letters() == (letter,)
        began_ms = unix_ms()
        proved: list[FailedMessage] = []
        assert await publisher.replay(letter.message_id, require_never=proved.append) == letter.message_id
        await asyncio.sleep(10.0)
        assert proved == [letter]
        assert handled == [letter.stamped_ms, began_ms]
        assert publisher.stats()["acked"] == 1
        await publisher.stop()
        await receiver.stop()

    virtually(main)


def test_an_answer_from_before_the_stamp_acknowledges_nothing() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        bob = Peer(network, "bob")
        publisher = on_disk(network.join("alice"), disk)
        await publisher.start()
        sent = asyncio.create_task(publisher.publish_with_ack(MESSAGES_TOPIC, DRAFT))
        while not bob.heard:
            await asyncio.sleep(0.1)
        known, stamped_ms = id_of(bob.heard[0]), bob.heard[0].created_ms
        for early_ms, acked in ((RECEIPT_AHEAD_MAX_MS + 1, 0), (RECEIPT_AHEAD_MAX_MS, 1)):
            bob.say(AckReceipt(known, stamped_ms - early_ms, AckType.ACK))
            await asyncio.sleep(1.0)
            assert publisher.stats()["acked"] == acked
        await sent
        await publisher.stop()

    virtually(main)


def test_a_receiver_recalls_the_stamp_that_its_verdict_is_about() -> None:
    core, at = ReceiverCore("bob", ReceiverConfig()), ClockTimes(0.0, 10_000)
    core.recall(b"id", ACCEPTED, 10**9, stamped_ms=5_000)
    copies = [
        Incoming("alice", MESSAGES_TOPIC, b"nonce", created_ms, 0, ("bob",), DRAFT)
        for created_ms in (5_000, 4_999, 5_001, 5_002)
    ]
    assert [core.received(b"id", one, at) for one in copies] == [ANSWER, DROP, RUN, DROP]
    core.recall(b"of an earlier release", ACCEPTED, 10**9)
    assert core.received(b"of an earlier release", copies[0], at) is ANSWER


def test_a_dead_letter_keeps_its_stamp() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        bob = Peer(network, "bob")
        publisher = on_disk(network.join("alice"), disk, an_acked_config("bob", max_retries=0))
        await publisher.start()
        with pytest.raises(ErrAckTimeout):
            await publisher.publish_with_ack(MESSAGES_TOPIC, DRAFT)
        await asyncio.sleep(600.0)
        (letter,) = await publisher.dead_letters()
        assert letter.stamped_ms == bob.heard[0].created_ms
        bob.answer = ack
        await publisher.replay(letter.message_id)
        await asyncio.sleep(10.0)
        assert len({one.created_ms for one in bob.heard}) == 1
        assert len(bob.heard) == 2
        await publisher.stop()

    virtually(main)
