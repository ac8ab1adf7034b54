"""External messages in an outbox: the time of the first transmission is on disk before anybody hears of the message, and
no copy of it ever names another time.
"""

from __future__ import annotations

import asyncio

import pytest

from stagepost.chain.messages import CanonicalMessage, MessageDraft, stamped_draft
from stagepost.delivery import ErrAckTimeout, MemoryNetwork, ReliablePublisher, ReliablePublisherConfig
from stagepost.delivery.entry import OutboxEntry
from stagepost.delivery.shell.sender import Sender
from stagepost.delivery.stores.memory_outbox import MemoryOutbox, MemoryOutboxDisk
from stagepost.delivery.transports.memory import MemoryTransport
from stagepost.ground.identifiers import MESSAGES_TOPIC
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
