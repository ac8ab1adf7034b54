"""Tables on a simulated disk: what is written but not synced is there for the next process, and gone after a power cut.

A simulated disk: it outlives the stores on it, as a disk outlives processes. What is not synced when it crashes is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from stagepost.errors import StorageError
from stagepost.ground.storage.group_writer import DraftBook, Settled
from stagepost.ground.storage.tables import AnyTable, Draft, Held, empty, settle

T = TypeVar("T")


class SimulatedDisk(Generic[T]):
    """`sync_s` says how long the next sync takes. `fail_next` and `is_full` make writes fail."""

    def __init__(self, content: T, sync_s: Callable[[], float] = lambda: 0.0) -> None:
        self.sync_s = sync_s
        self.is_full = False
        self.syncs = 0
        self.unsynced: list[Callable[[T], object]] = []
        """Written, but not yet safe: `crash` loses it."""
        self._synced = content
        self._failures: dict[int, str] = {}
        self._owner: object = None

    def fail_next(self, count: int = 1, *, after: int = 0, reason: str = "input/output error") -> None:
        """The next `count` syncs fail, once `after` more have gone well."""
        for number in range(self.syncs + after, self.syncs + after + count):
            self._failures[number] = reason

    def crash(self) -> None:
        """The process that uses the disk is gone, and with it everything that was not synced."""
        self.unsynced.clear()
        self._owner = None

    def open(self, owner: object) -> T:
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


B = TypeVar("B", bound=DraftBook)
R = TypeVar("R")


class TablesDisk(SimulatedDisk[Held]):
    """`crash` is a power cut. `kill` ends the process alone: the system still has what it was given."""

    def __init__(self, tables: Sequence[AnyTable], sync_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(empty({table.name: table for table in tables}), sync_s)

    def kill(self) -> None:
        self._owner = None

    def put_at_once(self, draft: Draft) -> None:
        """Apply a draft as part of opening, which either happens or is done again by the next owner."""
        settle(self._synced, draft.changes)

    @property
    def synced(self) -> Held:
        return self._synced


class InstantWriter(Generic[B]):
    """Rows in memory and nowhere else: everything happens at once and cannot fail."""

    def __init__(self, held: Held, open_book: Callable[[Draft], B]) -> None:
        self._held = held
        self._open_book = open_book

    async def do(self, act: Callable[[B], R]) -> R:
        return self._act(act)

    def soon(self, act: Callable[[B], object]) -> None:
        self._act(act)

    def _act(self, act: Callable[[B], R]) -> R:
        draft = Draft(self._held)
        book = self._open_book(draft)
        answer = act(book)
        book.finish()
        draft.settle()
        return answer

    async def close(self) -> None:
        pass

    def kill(self) -> None:
        pass


class MemoryBackend:
    """`is_safe=False` is a planted defect: it answers before it has synced."""

    def __init__(self, disk: TablesDisk, *, is_safe: bool = True) -> None:
        self._disk = disk
        self._is_safe = is_safe
        self.held: Held = {name: dict(rows) for name, rows in disk.open(self).items()}
        for change in disk.unsynced:
            change(self.held)

    def rest_s(self) -> float:
        return 0.0

    def write(self, fill: Callable[[Draft], None], is_synced: bool, settled: Settled) -> None:
        draft = Draft(self.held)
        fill(draft)
        before = list(self._disk.unsynced)
        if self._disk.is_held_by(self):
            self._disk.unsynced.append(partial(settle, changes=draft.changes))
        finish = partial(self._finish, draft, before, is_synced and self._is_safe, settled)
        delay_s = self._disk.sync_s() if is_synced and self._is_safe else 0.0
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, finish)
        else:
            finish()

    def _finish(
        self, draft: Draft, before: list[Callable[[Held], object]], is_synced: bool, settled: Settled
    ) -> None:
        if not self._disk.is_held_by(self):
            return settled(StorageError("the disk went away in a crash"))
        reason = self._disk.sync() if is_synced else "no space left on device" if self._disk.is_full else None
        if reason is None:
            draft.settle()
            return settled(None)
        # What was written before is still in memory, and is written again.
        self._disk.unsynced[:] = before
        settled(StorageError(f"the store cannot be written: {reason}"))

    async def close(self) -> None:
        self._disk.release(self)

    def kill(self) -> None:
        self._disk.release(self)
