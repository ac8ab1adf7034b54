"""The message store without a disk: a working twin whose writes take simulated time, fail on order and can be lost.

A `MemoryDisk` outlives the stores on it, as a disk outlives processes. What is not synced when it crashes is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from stagepost.dmq.mempool import Entry
from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.node.message_store import StoredMessage, StoredPool, StoredState, Written, write_and_wait
from stagepost.dmq.node.stored_rows import Changes
from stagepost.errors import StorageError
from stagepost.ground.storage.simulated_disk import SimulatedDisk


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


class MemoryDisk(SimulatedDisk[_Content]):
    """For one message store at a time."""

    def __init__(self, sync_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(_Content(), sync_s)

    @property
    def messages_synced(self) -> int:
        return len(self._synced.rows)


class MemoryStore:
    """For simulation and tests. `is_safe=False` is a planted defect: it answers before it has synced."""

    def __init__(self, disk: MemoryDisk, *, is_safe: bool = True) -> None:
        self.fault: str | None = None
        self._disk = disk
        self._is_safe = is_safe
        self._content = disk.open(self)
        self._owed = Changes()
        self._waiting: deque[tuple[list[_Row], Written]] = deque()
        self._is_syncing = False

    def load(self) -> StoredState:
        content = self._content
        messages = tuple(content.rows[place].entry() for place in sorted(content.rows))
        pools = tuple(content.pools.values())
        times = [content.highest_ms, *(entry.received_ms for entry in messages)]
        times += [pool.last_valid_ms for pool in pools]
        return StoredState(messages, pools, max(times), max(content.rows, default=0))

    async def put(self, records: Sequence[StoredMessage]) -> None:
        await write_and_wait(self, records)

    def write(self, records: Sequence[StoredMessage], written: Written) -> None:
        rows = [
            _Row(entry.index, entry.message.layout, entry.message.raw, entry.received_ms, entry.source)
            for entry in records
        ]
        self._waiting.append((rows, written))
        if not self._is_syncing:
            self._sync_all()

    def _sync_all(self) -> None:
        """One after the other, each as long as the disk says; without a delay all of them at once."""
        while self._waiting and not self._is_syncing:
            rows, written = self._waiting.popleft()
            if not self._disk.is_held_by(self):
                written(_gone())
                continue
            owed = self._owed
            if owed:
                self._owed = Changes()
            self._disk.unsynced.append(partial(_apply, owed=owed, rows=rows))
            if not self._is_safe:
                written(None)
                continue
            delay_s = self._disk.sync_s()
            self._is_syncing = True
            if delay_s > 0:
                asyncio.get_running_loop().call_later(delay_s, self._sync_later, owed, written)
            else:
                self._sync(owed, written)

    def _sync_later(self, owed: Changes, written: Written) -> None:
        self._sync(owed, written)
        self._sync_all()

    def _sync(self, owed: Changes, written: Written) -> None:
        self._is_syncing = False
        if not self._disk.is_held_by(self):
            return written(_gone())
        self.fault = self._disk.sync()
        if self.fault is None:
            return written(None)
        self._owed = owed.followed_by(self._owed)
        written(StorageError(f"the message store cannot be written: {self.fault}"))

    def forget(self, records: Sequence[StoredMessage], unix_s: float) -> None:
        """Goes to the disk with the next `put`, or with `close`."""
        self._owed.forget(records, int(unix_s * 1_000))

    def reset_time(self, unix_s: float) -> None:
        self._owed.reset_time(int(unix_s * 1_000))

    async def close(self) -> None:
        if self._disk.is_held_by(self):
            await self.put(())
            self._disk.release(self)


def _gone() -> StorageError:
    return StorageError("the disk went away in a crash")


def _apply(content: _Content, owed: Changes, rows: Sequence[_Row]) -> None:
    if owed:
        for place in owed.places:
            content.rows.pop(place, None)
        for pool in owed.pools_after(content.pools):
            content.pools[pool.pool_id] = pool
        content.highest_ms = owed.time_after(content.highest_ms)
    content.rows.update((row.place, row) for row in rows)
