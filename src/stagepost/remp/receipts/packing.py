"""Receipts on their way to full nodes, many in one packet.

Every receipt is sent, at once: receipts that come together leave together. Older networks keep the latest
receipt of each message and send it now and then; there short-lived statuses are lost by design, but never the
last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from stagepost.remp.receipts.compact import BLOCK_IDS_MAX, RECEIPTS_MAX, CombinedReceipt
from stagepost.remp.receipts.message_status import (
    Accepted,
    Duplicate,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    Timeout,
)
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.shard import BlockId

PACKET_BYTES_MAX = 60_000
"""Bytes of a packet that we build, at most; a link carries a little more."""

WAITING_MAX = 16_384
"""Receipts, at most, that wait for full nodes whose links are down, in all. Beyond it the oldest receipt of
the full node with most of them is dropped and counted.
"""

FULL_NODES_MAX = 256
"""Full nodes, at most, for which receipts wait; a further one displaces the one that has waited longest."""

TRY_AGAIN_S = 0.25
"""Seconds until the next try: a link may be up and have no room, and nobody tells when it has."""

BUILD_EVERY_S = 0.1
PACKET_BYTES_OLDER = 768
SERVE_EVERY_S = 1.0
SPACING_S = (0.0, 1.0, 2.0, 5.0)
FORGET_AFTER_S = 30.0

_FRAME_BYTES = 44
_RECEIPT_BYTES = 4 + 32 + 4 + 8 + 64
_PARTICULARS_BYTES = 3
_TEXT_FRAME_BYTES = 7
_BLOCK_ID_BYTES = 80


class Packet(msgspec.Struct, frozen=True):
    full_node: bytes
    receipts: tuple[Receipt, ...]

    def encode(self, source_id: bytes) -> bytes:
        return CombinedReceipt(source_id, self.receipts).encode()


class PacketQueue(Protocol):
    """A queue of receipts. Call `put_back` with a packet that could not be sent, `linked` when its full node
    is there again.
    """

    lost: int

    def add(self, full_node: bytes, receipt: Receipt, now: float) -> None: ...

    def packets(self, now: float) -> list[Packet]:
        """Return the packets that are to be sent now."""

    def put_back(self, packet: Packet, now: float) -> None: ...

    def linked(self, full_node: bytes, now: float) -> None: ...

    @property
    def next_wake(self) -> float | None:
        """Time at which `packets` returns something, in seconds; a time in the past means now."""


class ImmediatePacketQueue:
    def __init__(self) -> None:
        self.lost = 0
        self._ready: dict[bytes, deque[Receipt]] = {}
        self._unlinked: dict[bytes, deque[Receipt]] = {}
        self._waiting = 0
        self._again_at = 0.0

    @property
    def next_wake(self) -> float | None:
        if self._ready:
            return 0.0
        return self._again_at if self._unlinked else None

    def add(self, full_node: bytes, receipt: Receipt, now: float) -> None:
        if full_node in self._unlinked:
            self._wait(full_node, (receipt,))
        else:
            self._ready.setdefault(full_node, deque()).append(receipt)

    def packets(self, now: float) -> list[Packet]:
        if self._unlinked and now >= self._again_at:
            for full_node in list(self._unlinked):
                self.linked(full_node, now)
        ready, self._ready = self._ready, {}
        return [
            Packet(full_node, part)
            for full_node, receipts in ready.items()
            for part in cut(receipts, PACKET_BYTES_MAX)
        ]

    def put_back(self, packet: Packet, now: float) -> None:
        """Put the receipts back in order, before those that come later."""
        if not self._unlinked:
            self._again_at = now + TRY_AGAIN_S
        if packet.full_node not in self._unlinked and len(self._unlinked) >= FULL_NODES_MAX:
            given_up = len(self._unlinked.pop(next(iter(self._unlinked))))
            self.lost += given_up
            self._waiting -= given_up
        self._wait(packet.full_node, (*packet.receipts, *self._ready.pop(packet.full_node, ())))

    def linked(self, full_node: bytes, now: float) -> None:
        waiting = self._unlinked.pop(full_node, None)
        if waiting:
            self._waiting -= len(waiting)
            self._ready[full_node] = waiting

    def _wait(self, full_node: bytes, receipts: Iterable[Receipt]) -> None:
        waiting = self._unlinked.setdefault(full_node, deque())
        before = len(waiting)
        waiting.extend(receipts)
        self._waiting += len(waiting) - before
        while self._waiting > WAITING_MAX:
            max(self._unlinked.values(), key=len).popleft()
            self._waiting -= 1
            self.lost += 1


class _Latest:
    __slots__ = ("changed_at", "is_waiting", "not_before", "receipt", "times_sent")

    def __init__(self, receipt: Receipt, now: float) -> None:
        self.receipt = receipt
        self.changed_at = now
        self.not_before = now
        self.times_sent = 0
        self.is_waiting = True


class CoalescingPacketQueue:
    """Profile `ever-node`: the latest receipt of each message, spaced, in small packets that are built every
    100 ms.
    """

    def __init__(self, now: float) -> None:
        self.lost = 0
        self._build_at = now + BUILD_EVERY_S
        self._latest: dict[bytes, dict[bytes, _Latest]] = {}
        self._served_at: dict[bytes, float] = {}

    @property
    def next_wake(self) -> float | None:
        return self._build_at if self._latest else None

    def add(self, full_node: bytes, receipt: Receipt, now: float) -> None:
        if full_node not in self._latest and len(self._latest) >= FULL_NODES_MAX:
            self._give_up(next(iter(self._latest)))
        of_node = self._latest.setdefault(full_node, {})
        known = of_node.get(receipt.message_id)
        if known is None:
            if len(of_node) >= WAITING_MAX:
                self.lost += of_node.pop(next(iter(of_node))).is_waiting
            of_node[receipt.message_id] = _Latest(receipt, now)
        else:
            known.receipt = receipt
            known.changed_at = now
            known.is_waiting = True

    def packets(self, now: float) -> list[Packet]:
        if now < self._build_at:
            return []
        self._build_at = now + BUILD_EVERY_S
        found: list[Packet] = []
        for full_node in list(self._latest):
            found += self._packets_for(full_node, now)
        return found

    def _packets_for(self, full_node: bytes, now: float) -> list[Packet]:
        of_node = self._latest[full_node]
        due = [one for one in of_node.values() if one.is_waiting and now >= one.not_before]
        found: list[Packet] = []
        for part in cut([one.receipt for one in due], PACKET_BYTES_OLDER):
            is_last = sum(len(packet.receipts) for packet in found) + len(part) == len(due)
            is_full = not is_last
            # A packet that has room leaves only when its full node has waited for a while.
            if is_full or now - self._served_at.get(full_node, now - SERVE_EVERY_S) >= SERVE_EVERY_S:
                found.append(Packet(full_node, part))
        for packet in found:
            self._served_at[full_node] = now
            for receipt in packet.receipts:
                self._note_sent(of_node[receipt.message_id], now)
        for message_id in [key for key, one in of_node.items() if _is_over(one, now)]:
            del of_node[message_id]
        if not of_node:
            del self._latest[full_node]
            self._served_at.pop(full_node, None)
        return found

    @staticmethod
    def _note_sent(one: _Latest, now: float) -> None:
        one.times_sent += 1
        one.is_waiting = False
        one.not_before = now + SPACING_S[min(one.times_sent, len(SPACING_S) - 1)]

    def put_back(self, packet: Packet, now: float) -> None:
        """Put the receipts back for the next packets, except where a newer receipt of the same message is
        known by then.
        """
        of_node = self._latest.setdefault(packet.full_node, {})
        for receipt in packet.receipts:
            known = of_node.get(receipt.message_id)
            if known is None:
                of_node[receipt.message_id] = _Latest(receipt, now)
            elif known.receipt is receipt:
                known.is_waiting = True

    def linked(self, full_node: bytes, now: float) -> None:
        self._served_at.pop(full_node, None)

    def _give_up(self, full_node: bytes) -> None:
        self.lost += sum(one.is_waiting for one in self._latest.pop(full_node).values())
        self._served_at.pop(full_node, None)


def _is_over(one: _Latest, now: float) -> bool:
    """Return whether a receipt was sent and is old enough to forget. A receipt that was never sent is kept:
    it may be the last word.
    """
    return not one.is_waiting and now - one.changed_at >= FORGET_AFTER_S


def cut(receipts: deque[Receipt] | list[Receipt], bytes_max: int) -> Iterator[tuple[Receipt, ...]]:
    """Cut receipts into parts that one packet holds each. A single receipt may be larger than that."""
    part: list[Receipt] = []
    blocks: set[BlockId] = set()
    size = _FRAME_BYTES
    for receipt in receipts:
        named = _blocks_of(receipt.status)
        added = _bytes_of(receipt) + _BLOCK_ID_BYTES * len(named - blocks)
        is_too_much = (
            size + added > bytes_max or len(part) >= RECEIPTS_MAX or len(blocks | named) > BLOCK_IDS_MAX
        )
        if part and is_too_much:
            yield tuple(part)
            part, blocks, size = [], set(), _FRAME_BYTES
            added = _bytes_of(receipt) + _BLOCK_ID_BYTES * len(named)
        part.append(receipt)
        blocks |= named
        size += added
    if part:
        yield tuple(part)


def _blocks_of(status: MessageStatus) -> set[BlockId]:
    match status:
        case Accepted(_, block_id, master_id):
            return {block_id, master_id}
        case Rejected(_, _, block_id) | Ignored(_, block_id) | Duplicate(block_id):
            return {block_id}
        case _:
            return set()


def _bytes_of(receipt: Receipt) -> int:
    """Return an upper bound of the written size of a receipt, in bytes."""
    match receipt.status:
        case New() | Timeout():
            return _RECEIPT_BYTES
        case Rejected(_, error, _):
            return _RECEIPT_BYTES + _PARTICULARS_BYTES + _TEXT_FRAME_BYTES + len(error.encode())
        case _:
            return _RECEIPT_BYTES + _PARTICULARS_BYTES
