"""A simulated disk: it outlives the stores on it, as a disk outlives processes. What is not synced when it crashes is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from stagepost.errors import StorageError

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
