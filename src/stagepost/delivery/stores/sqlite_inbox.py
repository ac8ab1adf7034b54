"""The inbox on disk: one folder for each receiver, one SQLite file in it, one fsync for everything that waits."""

from __future__ import annotations

from pathlib import Path

from stagepost.delivery.stores.inbox import CAPACITY
from stagepost.delivery.stores.inbox_rows import InboxRows
from stagepost.delivery.stores.inbox_rules import TABLES, InboxBook
from stagepost.delivery.stores.queue_folder import open_queue_folder
from stagepost.ground.loop.clock import Clock
from stagepost.ground.storage.group_writer import FileBackend, GroupWriter
from stagepost.ground.storage.sqlite_file import Connect, connect

INBOX_FILE = "inbox.sqlite"


class SqliteInbox(InboxRows):
    """`ErrQueueLocked` if another receiver has the folder, `StorageError` if it cannot be used."""

    def __init__(
        self,
        folder: Path,
        *,
        capacity: int = CAPACITY,
        clock: Clock | None = None,
        connect: Connect = connect,
    ) -> None:
        file, lock = open_queue_folder(folder, INBOX_FILE, TABLES, "inbox", connect)
        super().__init__(file.held, file.damage, capacity, clock)
        self._writer = GroupWriter(
            FileBackend(file, "inbox", lock.release),
            lambda draft: InboxBook(draft, self._queue),
            on_error=self._report,
        )
