"""Receipts in packets: none is lost or late without need, and no packet is larger than what carries it."""

from __future__ import annotations

from hashlib import sha256

import pytest

from rigs.remp_world import seed_of, source_of
from stagepost.remp.receipts.compact import BLOCK_IDS_MAX, RECEIPTS_MAX, CombinedReceipt
from stagepost.remp.receipts.message_status import Accepted, Ignored, MessageStatus, New, Rejected
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from stagepost.validator import packing as receipt_packing
from stagepost.validator.packing import (
    FULL_NODES_MAX,
    PACKET_BYTES_MAX,
    TRY_AGAIN_S,
    WAITING_MAX,
    Packet,
    PacketQueue,
)

NODE = sha256(b"full node").digest()
SOURCE = source_of(1)


def receipt(number: int, status: MessageStatus | None = None) -> Receipt:
    message_id = ExternalMessageId(sha256(b"%d" % number).digest())
    return Receipt(message_id, status or New(), 1, SOURCE).with_signature(bytes(64))


def block(number: int) -> BlockId:
    return BlockId(0, 1 << 63, number, bytes(32), bytes(32))


def wake_of(packing: PacketQueue) -> float | None:
    return packing.next_wake


def test_every_receipt_leaves_at_once_and_what_comes_together_leaves_together() -> None:
    packing = PacketQueue()
    assert wake_of(packing) is None
    one, again = receipt(1), receipt(1, Ignored(Level.COLLATOR))
    packing.add(NODE, one, 5.0)
    packing.add(NODE, again, 5.0)
    wake = wake_of(packing)
    assert wake is not None
    assert wake <= 5.0
    assert packing.packets(5.0) == [Packet(NODE, (one, again))]
    assert packing.packets(5.0) == []
    assert wake_of(packing) is None


def test_a_packet_says_what_its_receipts_say_signatures_included() -> None:
    signed = Receipt(ExternalMessageId(bytes(32)), New(), 7, SOURCE).sign(seed_of(1))
    found = CombinedReceipt.decode(Packet(NODE, (signed,)).encode(SOURCE))
    assert found.receipts == (signed,)


@pytest.mark.parametrize(
    "statuses",
    [
        [New()] * (RECEIPTS_MAX + 1),
        [Rejected(Level.QUEUE, "x" * 1_000)] * 200,
        [Accepted(Level.SHARDCHAIN, block(number), block(number + 1_000)) for number in range(BLOCK_IDS_MAX)],
        [Rejected(Level.COLLATOR, "é" * 20_000)] * 3,
    ],
    ids=["many", "long texts", "many blocks", "texts of several bytes"],
)
def test_packets_are_cut_so_that_they_fit(statuses: list[MessageStatus]) -> None:
    packing = PacketQueue()
    given = [receipt(number, status) for number, status in enumerate(statuses)]
    for one in given:
        packing.add(NODE, one, 0.0)
    packets = packing.packets(0.0)
    assert len(packets) > 1
    assert [one for packet in packets for one in packet.receipts] == given
    for packet in packets:
        data = packet.encode(SOURCE)
        assert len(data) <= PACKET_BYTES_MAX
        assert CombinedReceipt.decode(data).receipts == packet.receipts


def test_a_packet_is_filled_to_its_limit() -> None:
    packing = PacketQueue()
    for number in range(2 * RECEIPTS_MAX):
        packing.add(NODE, receipt(number), 0.0)
    first = packing.packets(0.0)[0]
    assert len(first.encode(SOURCE)) > PACKET_BYTES_MAX - 200


def test_what_could_not_be_sent_waits_for_its_full_node_in_order() -> None:
    packing = PacketQueue()
    first, second, third, other = (receipt(number) for number in range(4))
    packing.add(NODE, first, 0.0)
    (packet,) = packing.packets(0.0)
    packing.add(NODE, second, 0.0)
    packing.put_back(packet, 0.0)
    packing.add(NODE, third, 0.0)
    assert packing.packets(0.1) == []
    packing.add(b"somebody else", other, 0.1)
    assert packing.packets(0.1) == [Packet(b"somebody else", (other,))]
    packing.linked(NODE, 0.2)
    assert packing.packets(0.2) == [Packet(NODE, (first, second, third))]
    assert packing.lost == 0


def test_a_link_without_room_is_tried_again_soon() -> None:
    packing = PacketQueue()
    packing.put_back(Packet(NODE, (receipt(1),)), 1.0)
    assert wake_of(packing) == 1.0 + TRY_AGAIN_S
    assert packing.packets(1.0 + TRY_AGAIN_S - 0.001) == []
    (packet,) = packing.packets(1.0 + TRY_AGAIN_S)
    assert wake_of(packing) is None
    packing.put_back(packet, 2.0)
    packing.put_back(Packet(b"other", (receipt(2),)), 2.1)
    assert wake_of(packing) == 2.0 + TRY_AGAIN_S


def test_what_waits_has_a_limit_and_what_goes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WAITING_MAX >= RECEIPTS_MAX
    monkeypatch.setattr(receipt_packing, "WAITING_MAX", 3)
    packing = PacketQueue()
    packing.put_back(Packet(b"quiet", (receipt(100),)), 0.0)
    packing.put_back(Packet(NODE, (receipt(0), receipt(1))), 0.0)
    assert packing.lost == 0
    packing.add(NODE, receipt(2), 0.0)
    assert packing.lost == 1
    packing.linked(NODE, 0.0)
    packing.linked(b"quiet", 0.0)
    assert packing.packets(0.0) == [Packet(NODE, (receipt(1), receipt(2))), Packet(b"quiet", (receipt(100),))]


def test_full_nodes_that_wait_have_a_limit_too() -> None:
    packing = PacketQueue()
    for number in range(FULL_NODES_MAX):
        packing.put_back(Packet(b"%d" % number, (receipt(number),)), 0.0)
    assert packing.lost == 0
    packing.put_back(Packet(NODE, (receipt(1),)), 0.0)
    assert packing.lost == 1
    packing.linked(b"0", 0.0)
    assert packing.packets(0.0) == []
    packing.linked(b"1", 0.0)
    assert len(packing.packets(0.0)) == 1
