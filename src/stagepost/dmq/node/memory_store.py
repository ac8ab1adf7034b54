"""The message store without a disk: a working twin whose writes take simulated time, fail on order and can be lost.

A `MemoryDisk` outlives the stores on it, as a disk outlives processes. A crash loses everything that is not synced.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from stagepost.dmq.mempool import MempoolEntry
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.message_store import StoredMessage, StoredState, Written, write_and_wait
from stagepost.dmq.node.stored_messages import MESSAGES, MessageDraftBook, empty_rows, state_of
from stagepost.errors import StorageError
from stagepost.ground.storage.simulated_disk import SimulatedDisk
from stagepost.ground.storage.tables import Draft, Held

Act: TypeAlias = Callable[[MessageDraftBook], object]


class MemoryDisk(SimulatedDisk[Held]):
    """Simulated disk of one message store at a time."""

    def __init__(self, sync_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(empty_rows(), sync_s)

    @property
    def messages_synced(self) -> int:
        return len(self._synced[MESSAGES.name])


class MemoryStore:
    """Message store for simulation and tests. `is_safe=False` is a planted defect: it answers before it has synced."""

    def __init__(self, disk: MemoryDisk, *, is_safe: bool = True) -> None:
        self.fault: str | None = None
        self._disk = disk
        self._is_safe = is_safe
        self._content = disk.open(self)
        self._owed: list[Act] = []
        self._waiting: deque[tuple[Sequence[StoredMessage], Written]] = deque()
        self._is_syncing = False

    def load(self) -> StoredState:
        """Return what the disk holds; a node after a restart decodes the bytes that the one before has written."""
        state = state_of(self._content)
        messages = tuple(_decoded(entry) for entry in state.messages)
        return dataclasses.replace(state, messages=messages)

    async def put(self, records: Sequence[StoredMessage]) -> None:
        await write_and_wait(self, records)

    def write(self, records: Sequence[StoredMessage], written: Written) -> None:
        self._waiting.append((records, written))
        if not self._is_syncing:
            self._sync_all()

    def _sync_all(self) -> None:
        """Write one group after the other, each as long as the disk says; without a delay all of them at once."""
        while self._waiting and not self._is_syncing:
            records, written = self._waiting.popleft()
            if not self._disk.is_held_by(self):
                written(_gone())
                continue
            owed, self._owed = self._owed, []
            self._disk.unsynced.append(partial(_apply, owed=owed, records=records))
            if not self._is_safe:
                written(None)
                continue
            delay_s = self._disk.sync_s()
            self._is_syncing = True
            if delay_s > 0:
                asyncio.get_running_loop().call_later(delay_s, self._sync_later, owed, written)
            else:
                self._sync(owed, written)

    def _sync_later(self, owed: list[Act], written: Written) -> None:
        self._sync(owed, written)
        self._sync_all()

    def _sync(self, owed: list[Act], written: Written) -> None:
        self._is_syncing = False
        if not self._disk.is_held_by(self):
            return written(_gone())
        self.fault = self._disk.sync()
        if self.fault is None:
            return written(None)
        self._owed = owed + self._owed
        written(StorageError(f"the message store cannot be written: {self.fault}"))

    def forget(self, records: Sequence[StoredMessage], unix_s: float) -> None:
        """Forget with the next `put`, or with `close`."""
        self._owed.append(lambda book: book.forget(records, int(unix_s * 1_000)))

    def reset_time(self, unix_s: float) -> None:
        self._owed.append(lambda book: book.reset_time(int(unix_s * 1_000)))

    async def close(self) -> None:
        if self._disk.is_held_by(self):
            await self.put(())
            self._disk.release(self)


def _gone() -> StorageError:
    return StorageError("the disk went away in a crash")


def _decoded(entry: MempoolEntry) -> MempoolEntry:
    message = DmqMessage.decode(entry.message.raw, profile="seed")
    return MempoolEntry(entry.index, message, entry.received_ms, entry.source)


def _apply(held: Held, owed: Sequence[Act], records: Sequence[StoredMessage]) -> None:
    draft = Draft(held)
    book = MessageDraftBook(draft)
    for act in owed:
        act(book)
    book.put(records)
    draft.settle()
