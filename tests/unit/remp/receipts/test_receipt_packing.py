"""Receipts in packets: none is lost or late without need, and no packet is larger than what carries it."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise

import pytest

from rigs.remp_world import seed_of, source_of
from stagepost.remp.receipts import packing as receipt_packing
from stagepost.remp.receipts.compact import BLOCK_IDS_MAX, RECEIPTS_MAX, CombinedReceipt
from stagepost.remp.receipts.message_status import Accepted, Ignored, MessageStatus, New, Rejected, Timeout
from stagepost.remp.receipts.packing import (
    BUILD_EVERY_S,
    FORGET_AFTER_S,
    FULL_NODES_MAX,
    PACKET_BYTES_MAX,
    PACKET_BYTES_OLDER,
    SERVE_EVERY_S,
    TRY_AGAIN_S,
    WAITING_MAX,
    CoalescingPacketQueue,
    ImmediatePacketQueue,
    Packet,
    PacketQueue,
)
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId

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
    packing = ImmediatePacketQueue()
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
    packing = ImmediatePacketQueue()
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
    packing = ImmediatePacketQueue()
    for number in range(2 * RECEIPTS_MAX):
        packing.add(NODE, receipt(number), 0.0)
    first = packing.packets(0.0)[0]
    assert len(first.encode(SOURCE)) > PACKET_BYTES_MAX - 200


def test_what_could_not_be_sent_waits_for_its_full_node_in_order() -> None:
    packing = ImmediatePacketQueue()
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
    packing = ImmediatePacketQueue()
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
    packing = ImmediatePacketQueue()
    packing.put_back(Packet(b"quiet", (receipt(100),)), 0.0)
    packing.put_back(Packet(NODE, (receipt(0), receipt(1))), 0.0)
    assert packing.lost == 0
    packing.add(NODE, receipt(2), 0.0)
    assert packing.lost == 1
    packing.linked(NODE, 0.0)
    packing.linked(b"quiet", 0.0)
    assert packing.packets(0.0) == [Packet(NODE, (receipt(1), receipt(2))), Packet(b"quiet", (receipt(100),))]


def test_full_nodes_that_wait_have_a_limit_too() -> None:
    packing = ImmediatePacketQueue()
    for number in range(FULL_NODES_MAX):
        packing.put_back(Packet(b"%d" % number, (receipt(number),)), 0.0)
    assert packing.lost == 0
    packing.put_back(Packet(NODE, (receipt(1),)), 0.0)
    assert packing.lost == 1
    packing.linked(b"0", 0.0)
    assert packing.packets(0.0) == []
    packing.linked(b"1", 0.0)
    assert len(packing.packets(0.0)) == 1


# Older networks


def sent(packing: CoalescingPacketQueue, until: float, *, since: float = 0.0) -> list[tuple[float, Receipt]]:
    """Everything that leaves, with the time, at the packing's own pace."""
    found: list[tuple[float, Receipt]] = []
    now = since
    while (wake := packing.next_wake) is not None and wake <= until:
        now = max(now, wake)
        found += [(now, one) for packet in packing.packets(now) for one in packet.receipts]
    return found


def test_older_networks_build_packets_every_100_ms_and_send_the_latest_of_a_message() -> None:
    packing = CoalescingPacketQueue(0.0)
    packing.add(NODE, receipt(1), 0.0)
    packing.add(NODE, receipt(1, Ignored(Level.COLLATOR)), 0.05)
    assert packing.packets(BUILD_EVERY_S - 0.001) == []
    assert packing.packets(BUILD_EVERY_S) == [Packet(NODE, (receipt(1, Ignored(Level.COLLATOR)),))]


def test_older_networks_space_the_receipts_of_a_message_by_1_2_5_and_5_s() -> None:
    packing = CoalescingPacketQueue(0.0)
    times: list[float] = []
    now = 0.0
    for number in range(600):
        # Something new is to be said of it all the time.
        packing.add(NODE, receipt(1, Rejected(Level.QUEUE, str(number))), now)
        found = sent(packing, now + 0.05, since=now)
        times += [at for at, _ in found]
        now += 0.05
    gaps = [round(after - before, 1) for before, after in pairwise(times)]
    assert gaps[:4] == [pytest.approx(gap, abs=0.15) for gap in (1.0, 2.0, 5.0, 5.0)]


def test_older_networks_never_lose_the_last_word() -> None:
    packing = CoalescingPacketQueue(0.0)
    packing.add(NODE, receipt(1), 0.0)
    assert [one for _, one in sent(packing, 0.2)] == [receipt(1)]
    packing.add(NODE, receipt(1, Ignored(Level.COLLATOR)), 0.3)
    packing.add(NODE, receipt(1, Timeout()), 0.4)
    assert [one for _, one in sent(packing, 10.0, since=0.4)] == [receipt(1, Timeout())]


def test_older_networks_send_small_packets_and_hold_one_that_is_not_full_for_a_second() -> None:
    packing = CoalescingPacketQueue(0.0)
    for number in range(30):
        packing.add(NODE, receipt(number), 0.0)
    first = packing.packets(BUILD_EVERY_S)
    assert all(len(packet.encode(SOURCE)) <= PACKET_BYTES_OLDER for packet in first)
    assert sum(len(packet.receipts) for packet in first) == 30, "nobody was served before"
    packing.add(NODE, receipt(100), 0.2)
    assert [at for at, _ in sent(packing, 5.0, since=0.2)] == [
        pytest.approx(BUILD_EVERY_S + SERVE_EVERY_S, abs=BUILD_EVERY_S)
    ]
    large = CoalescingPacketQueue(0.0)
    large.add(NODE, receipt(1, Rejected(Level.QUEUE, "x" * 1_000)), 0.0)
    (alone,) = large.packets(1.0)
    assert len(alone.encode(SOURCE)) > PACKET_BYTES_OLDER


def test_older_networks_forget_what_has_not_changed_for_30_s_but_not_what_was_never_sent() -> None:
    packing = CoalescingPacketQueue(0.0)
    packing.add(NODE, receipt(1), 0.0)
    assert len(packing.packets(1.0)) == 1
    packing.packets(FORGET_AFTER_S - 0.1)
    assert wake_of(packing) is not None
    packing.packets(FORGET_AFTER_S)
    assert wake_of(packing) is None
    packing.add(NODE, receipt(2), 40.0)
    (packet,) = packing.packets(41.0)
    packing.put_back(packet, 41.0)
    later = packing.packets(41.0 + FORGET_AFTER_S + 5)
    assert later == [packet]


def test_older_networks_keep_as_many_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_packing, "WAITING_MAX", 2)
    packing = CoalescingPacketQueue(0.0)
    for number in range(3):
        packing.add(NODE, receipt(number), 0.0)
    assert packing.lost == 1
    assert [one for _, one in sent(packing, 0.2)] == [receipt(1), receipt(2)]
