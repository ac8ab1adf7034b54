"""The message store without a disk: a working twin whose writes take simulated time, fail on order and can be lost.

A `MemoryDisk` outlives the stores on it, as a disk outlives processes. What is not synced when it crashes is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from stagepost.dmq.mempool import Entry
from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.errors import StorageError
from stagepost.runtime.message_store import StoredMessage, StoredPool, StoredState
from stagepost.runtime.store_changes import Changes


class _Row(msgspec.Struct, frozen=True, gc=False):
    """Bytes, as on a real disk: a node after a restart decodes what the one before has written."""

    place: int
    layout: MessageLayout
    raw: bytes
    received_ms: int
    source: str

    def entry(self) -> Entry:
        return Entry(self.place, DmqMessage.decode(self.raw, profile="seed"), self.received_ms, self.source)


@dataclass
class _Content:
    rows: dict[int, _Row] = field(default_factory=dict)
    pools: dict[bytes, StoredPool] = field(default_factory=dict)
    highest_ms: int = 0


class MemoryDisk:
    """`sync_s` says how long the next sync takes. `fail_next` and `is_full` make writes fail."""

    def __init__(self, sync_s: Callable[[], float] = lambda: 0.0) -> None:
        self.sync_s = sync_s
        self.is_full = False
        self.syncs = 0
        self.unsynced: list[Callable[[_Content], None]] = []
        """Written, but not yet safe: `crash` loses it."""
        self._synced = _Content()
        self._failures: dict[int, str] = {}
        self._owner: object = None

    @property
    def messages_synced(self) -> int:
        return len(self._synced.rows)

    def fail_next(self, count: int = 1, *, after: int = 0, reason: str = "input/output error") -> None:
        """The next `count` syncs fail, once `after` more have gone well."""
        for number in range(self.syncs + after, self.syncs + after + count):
            self._failures[number] = reason

    def crash(self) -> None:
        """The process that uses the disk is gone, and with it everything that was not synced."""
        self.unsynced.clear()
        self._owner = None

    def open(self, owner: object) -> _Content:
        if self._owner is not None:
            raise StorageError("the disk is held by another process")
        self._owner = owner
        return self._synced

    def release(self, owner: object) -> None:
        if self._owner is owner:
            self._owner = None

    def is_held_by(self, owner: object) -> bool:
        return self._owner is owner

    def sync(self) -> str | None:
        """Make everything safe that was written; or drop it, and say why."""
        number, self.syncs = self.syncs, self.syncs + 1
        reason = "no space left on device" if self.is_full else self._failures.pop(number, None)
        if reason is None:
            for change in self.unsynced:
                change(self._synced)
        self.unsynced.clear()
        return reason


class MemoryStore:
    """For simulation and tests. `is_safe=False` is a planted defect: it answers before it has synced."""

    def __init__(self, disk: MemoryDisk, *, is_safe: bool = True) -> None:
        self.fault: str | None = None
        self._disk = disk
        self._is_safe = is_safe
        self._content = disk.open(self)
        self._owed = Changes()
        self._turn = asyncio.Lock()

    def load(self) -> StoredState:
        content = self._content
        messages = tuple(content.rows[place].entry() for place in sorted(content.rows))
        pools = tuple(content.pools.values())
        times = [content.highest_ms, *(entry.received_ms for entry in messages)]
        times += [pool.last_valid_ms for pool in pools]
        return StoredState(messages, pools, max(times), max(content.rows, default=0))

    async def put(self, records: Sequence[StoredMessage]) -> None:
        rows = [
            _Row(entry.index, entry.message.layout, entry.message.raw, entry.received_ms, entry.source)
            for entry in records
        ]
        async with self._turn:
            self._require_ownership()
            owed, self._owed = self._owed, Changes()
            self._disk.unsynced.append(lambda content: _apply(content, owed, rows))
            if not self._is_safe:
                return
            await asyncio.sleep(self._disk.sync_s())
            self._require_ownership()
            self.fault = self._disk.sync()
            if self.fault is not None:
                self._owed = owed.followed_by(self._owed)
                raise StorageError(f"the message store cannot be written: {self.fault}")

    def forget(self, records: Sequence[StoredMessage], unix_s: float) -> None:
        """Goes to the disk with the next `put`, or with `close`."""
        self._owed.forget(records, int(unix_s * 1_000))

    def reset_time(self, unix_s: float) -> None:
        self._owed.reset_time(int(unix_s * 1_000))

    def _require_ownership(self) -> None:
        if not self._disk.is_held_by(self):
            raise StorageError("the disk went away in a crash")

    async def close(self) -> None:
        if self._disk.is_held_by(self):
            await self.put(())
            self._disk.release(self)


def _apply(content: _Content, owed: Changes, rows: Sequence[_Row]) -> None:
    for place in owed.places:
        content.rows.pop(place, None)
    for pool in owed.pools_after(content.pools):
        content.pools[pool.pool_id] = pool
    content.highest_ms = owed.time_after(content.highest_ms)
    content.rows.update((row.place, row) for row in rows)
