"""The inbox without a disk: for receivers that need none, and a working twin of the real one for simulated crashes."""

from __future__ import annotations

from collections.abc import Callable

from stagepost.delivery.stores.inbox import CAPACITY
from stagepost.delivery.stores.inbox_rows import InboxRows
from stagepost.delivery.stores.inbox_rules import TABLES, InboxBook
from stagepost.ground.loop.clock import Clock
from stagepost.ground.storage.group_writer import GroupWriter
from stagepost.ground.storage.simulated_disk import InstantWriter, MemoryBackend, TablesDisk
from stagepost.ground.storage.tables import Draft, empty


class MemoryInboxDisk(TablesDisk):
    """Outlives the inboxes on it: `crash` is a power cut, `kill` the end of a process alone."""

    def __init__(self, sync_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(TABLES, sync_s)


class MemoryInbox(InboxRows):
    """Without a disk it ends with the process. `is_safe=False` is a planted defect: it answers before it has synced."""

    def __init__(
        self,
        disk: MemoryInboxDisk | None = None,
        *,
        capacity: int = CAPACITY,
        clock: Clock | None = None,
        is_safe: bool = True,
    ) -> None:
        backend = None if disk is None else MemoryBackend(disk, is_safe=is_safe)
        held = empty({table.name: table for table in TABLES}) if backend is None else backend.held
        super().__init__(held, (), capacity, clock)

        def open_book(draft: Draft) -> InboxBook:
            return InboxBook(draft, self._queue)

        if backend is None:
            self._writer = InstantWriter(held, open_book)
        else:
            self._writer = GroupWriter(backend, open_book, on_error=self._report)
