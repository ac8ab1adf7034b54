"""Receipts on their way to full nodes, many in one packet.

Every receipt is sent, at once: receipts that come together leave together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

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


class PacketQueue:
    """A queue of receipts. Call `put_back` with a packet that could not be sent, `linked` when its full node
    is there again.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._ready: dict[bytes, deque[Receipt]] = {}
        self._unlinked: dict[bytes, deque[Receipt]] = {}
        self._waiting = 0
        self._again_at = 0.0

    @property
    def next_wake(self) -> float | None:
        """Time at which `packets` returns something, in seconds; a time in the past means now."""
        if self._ready:
            return 0.0
        return self._again_at if self._unlinked else None

    def add(self, full_node: bytes, receipt: Receipt, now: float) -> None:
        if full_node in self._unlinked:
            self._wait(full_node, (receipt,))
        else:
            self._ready.setdefault(full_node, deque()).append(receipt)

    def packets(self, now: float) -> list[Packet]:
        """Return the packets that are to be sent now."""
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
