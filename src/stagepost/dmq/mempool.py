"""The mempool: valid, unexpired messages in arrival order, bounded by count and bytes.

Readers keep an index and ask for the messages after it: they share the one list, and none has a queue. Only
expiry removes a message, and a message that has once expired here never comes back, whatever the clock says
later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from heapq import heappop, heappush
from typing import TypeAlias

import msgspec

from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.outcome import Rejected, rejected
from stagepost.errors import ErrorCode, LocalProtocolError
from stagepost.ground.identifiers import MessageId

MESSAGES_MAX = 50_000
BYTES_MAX = 160_000_000

# Holes, at least, before the lists are closed up; fewer are not worth the work.
_HOLES_MIN = 64

MessageKey: TypeAlias = tuple[MessageLayout, MessageId]

# A message is filed under its id, or for the older layout, which chooses its ids, under one byte more.
# Hashing a layout costs more than all the rest of finding a message.
_LEGACY = b"\x04"


class MempoolLimits(msgspec.Struct, frozen=True):
    """Limits of a mempool; the one that is reached first counts. Bytes are those of the messages on the wire."""

    messages_max: int = MESSAGES_MAX
    bytes_max: int = BYTES_MAX
    pool_percent: int = 100
    """Percent of either limit that the messages of one pool may use."""

    @property
    def messages_of_pool_max(self) -> int:
        return max(1, self.messages_max * self.pool_percent // 100)

    @property
    def bytes_of_pool_max(self) -> int:
        return self.bytes_max * self.pool_percent // 100


class MempoolEntry(msgspec.Struct, frozen=True, gc=False):
    """Message in the mempool. `index` is its place in the order of arrival; `source` names the peer or
    program that sent it."""

    index: int
    message: DmqMessage
    received_ms: int
    source: str


def file_key(message: DmqMessage) -> bytes:
    """Return the key under which the message is filed; equal for two messages exactly if their `key` is."""
    if message.layout is MessageLayout.FIVE:
        return message.message_id
    return _LEGACY + message.message_id


def _file_key(key: MessageKey) -> bytes:
    layout, message_id = key
    return message_id if layout is MessageLayout.FIVE else _LEGACY + message_id


class Mempool:
    """Messages of one node. Indexes start at 1 and only grow."""

    def __init__(self, limits: MempoolLimits | None = None) -> None:
        self.limits = limits or MempoolLimits()
        self.bytes = 0
        self.last_index = 0
        self.expired_through = 0.0
        self.changes = 0
        """Number that grows whenever a message comes or goes: while it stays the same, so does every answer."""
        self._by_key: dict[bytes, MempoolEntry] = {}
        # Two lists side by side, in order of index. An expired entry leaves a hole, so that expiry does not
        # move everything after it; when most places are holes, both lists are closed up. Places are found by
        # bisection.
        self._indexes: list[int] = []
        self._entries: list[MempoolEntry | None] = []
        self._holes = 0
        self._legacy_count = 0
        # By cold key, which stands for the pool: the count of its messages, and their bytes.
        self._by_pool: dict[bytes, tuple[int, int]] = {}
        self._of_pool_max = self.limits.messages_of_pool_max, self.limits.bytes_of_pool_max
        # Expiry is in whole seconds, so there are never more buckets than the longest lifetime has seconds.
        self._buckets: dict[int, list[MempoolEntry]] = {}
        self._bucket_times: list[int] = []

    @property
    def count(self) -> int:
        return len(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: MessageKey) -> bool:
        return _file_key(key) in self._by_key

    def get(self, key: MessageKey) -> MempoolEntry | None:
        return self._by_key.get(_file_key(key))

    def holds(self, message: DmqMessage) -> bool:
        return file_key(message) in self._by_key

    def holds_key(self, key: bytes) -> bool:
        """Return whether the mempool holds the message with this key of `file_key`."""
        return key in self._by_key

    def find(self, key: bytes) -> MempoolEntry | None:
        """Return the entry with this key of `file_key`, or None."""
        return self._by_key.get(key)

    @property
    def next_expiry(self) -> int | None:
        """Unix second at which the next messages expire; None in an empty mempool."""
        return self._bucket_times[0] if self._bucket_times else None

    def check_room(self, message: DmqMessage) -> Rejected | None:
        """Return why `add` may not follow; None if it may."""
        if self.holds(message):
            return rejected(ErrorCode.MSG_DUPLICATE, "this message is held already")
        return self.check_limits(message)

    def has_room_for(self, count: int, size: int, first_expires_at: int) -> bool:
        """Return whether `check_limits` surely accepts `count` messages of `size` bytes in all, none of which
        is held, whoever sent them."""
        return (
            first_expires_at > self.expired_through
            # Within the share of one pool, so that no pool needs to be looked at.
            and len(self._by_key) + count <= self._of_pool_max[0]
            and self.bytes + size <= self._of_pool_max[1]
        )

    def check_limits(
        self,
        message: DmqMessage,
        reserved_count: int = 0,
        reserved_bytes: int = 0,
        reserved_of_pool: tuple[int, int] = (0, 0),
    ) -> Rejected | None:
        """Return why a message that is not held cannot be added; None if it can.

        `reserved_count` and `reserved_bytes` belong to accepted messages that are not added yet,
        `reserved_of_pool` to those among them of the same pool.
        """
        # Since validation the clock has moved on, or it was set back after an expiry.
        if message.expires_at <= self.expired_through:
            text = f"expired at {message.expires_at}; messages until {self.expired_through:.0f} are gone"
            return rejected(ErrorCode.MSG_EXPIRED, text)
        limits = self.limits
        if len(self._by_key) + reserved_count >= limits.messages_max:
            text = f"{limits.messages_max} messages are held; try again when some have expired"
            return rejected(ErrorCode.QUEUE_FULL, text)
        if self.bytes + reserved_bytes + len(message.raw) > limits.bytes_max:
            text = f"messages of {limits.bytes_max} bytes are held; try again when some have expired"
            return rejected(ErrorCode.QUEUE_FULL, text)
        count, size = self._by_pool.get(message.cold_verification_key, (0, 0))
        count_max, size_max = self._of_pool_max
        if (
            count + reserved_of_pool[0] >= count_max
            or size + reserved_of_pool[1] + len(message.raw) > size_max
        ):
            text = (
                f"this pool has {count} messages here, {limits.pool_percent} % of the mempool is the share of a pool; "
                "try again when some have expired"
            )
            return rejected(ErrorCode.QUEUE_FULL, text, gives_way=True)
        return None

    def add(self, message: DmqMessage, received_ms: int, source: str) -> MempoolEntry:
        """Add a message. The caller has asked `check_room`."""
        entry = MempoolEntry(self.last_index + 1, message, received_ms, source)
        self.insert(entry)
        return entry

    def insert(self, *entries: MempoolEntry) -> None:
        """Add entries whose indexes were assigned before, because they had to be on disk first."""
        by_key, buckets = self._by_key, self._buckets
        index, size = self.last_index, 0
        for entry in entries:
            message = entry.message
            key: bytes = message.message_id
            if message.layout is MessageLayout.FOUR:
                key = file_key(message)
                self._legacy_count += 1
            if entry.index <= index or key in by_key:
                raise LocalProtocolError(
                    f"message {message.message_id.hex()} with index {entry.index} follows index {index}, or is held already",
                    message_id=message.message_id,
                    found=entry.index,
                )
            index = entry.index
            by_key[key] = entry
            size += len(message.raw)
            pool = message.cold_verification_key
            pool_count, pool_size = self._by_pool.get(pool, (0, 0))
            self._by_pool[pool] = pool_count + 1, pool_size + len(message.raw)
            bucket = buckets.get(message.expires_at)
            if bucket is None:
                buckets[message.expires_at] = [entry]
                heappush(self._bucket_times, message.expires_at)
            else:
                bucket.append(entry)
        self._indexes += [entry.index for entry in entries]
        self._entries += entries
        self.last_index = index
        self.bytes += size
        self.changes += len(entries)

    def skip_to(self, index: int) -> None:
        """Continue after `index`: messages that are gone used the indexes up to it."""
        self.changes += 1
        self.last_index = max(self.last_index, index)

    def expire(self, now: float) -> list[MempoolEntry]:
        """Remove all entries with `expires_at <= now`, and return them in order of expiry."""
        self.expired_through = max(self.expired_through, now)
        gone: list[MempoolEntry] = []
        while self._bucket_times and self._bucket_times[0] <= now:
            gone += self._buckets.pop(heappop(self._bucket_times))
        for entry in gone:
            self._remove(entry)
        self.changes += len(gone)
        if self._holes > _HOLES_MIN and self._holes * 2 > len(self._entries):
            self._close_up()
        return gone

    def _remove(self, entry: MempoolEntry) -> None:
        del self._by_key[file_key(entry.message)]
        self._entries[bisect_right(self._indexes, entry.index) - 1] = None
        self._holes += 1
        size = len(entry.message.raw)
        self.bytes -= size
        pool = entry.message.cold_verification_key
        pool_count, pool_size = self._by_pool[pool]
        if pool_count == 1:
            del self._by_pool[pool]
        else:
            self._by_pool[pool] = pool_count - 1, pool_size - size
        if entry.message.layout is MessageLayout.FOUR:
            self._legacy_count -= 1

    def _close_up(self) -> None:
        kept = [entry for entry in self._entries if entry is not None]
        self._entries = list(kept)
        self._indexes = [entry.index for entry in kept]
        self._holes = 0

    def after(self, index: int, count_max: int, layouts: Collection[MessageLayout]) -> list[MempoolEntry]:
        """Return the next entries after `index`, in order of arrival, of the layouts that the reader may see.

        Fewer than `count_max` means that there is nothing more up to `last_index`.
        """
        place = self._place_after(index)
        if not self._holes and self._sees_all(layouts):
            return self._entries[place : place + count_max]  # type: ignore[return-value]  # no holes, no None
        found: list[MempoolEntry] = []
        entries = self._entries
        for position in range(place, len(entries)):
            if len(found) >= count_max:
                break
            entry = entries[position]
            if entry is not None and entry.message.layout in layouts:
                found.append(entry)
        return found

    def has_after(self, index: int, layouts: Collection[MessageLayout]) -> bool:
        if index >= self.last_index:
            return False
        return bool(self.after(index, 1, layouts))

    def _place_after(self, index: int) -> int:
        # Most readers are close to the end, and a cursor at the very end is the usual case.
        if index >= self.last_index:
            return len(self._indexes)
        return bisect_right(self._indexes, index)

    def _sees_all(self, layouts: Collection[MessageLayout]) -> bool:
        return MessageLayout.FIVE in layouts and (not self._legacy_count or MessageLayout.FOUR in layouts)
