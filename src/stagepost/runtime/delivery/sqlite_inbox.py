"""The inbox on disk: one folder for each receiver, one SQLite file in it, one fsync for everything that waits."""

from __future__ import annotations

from pathlib import Path

from stagepost.ground.loop.clock import Clock
from stagepost.ground.storage.group_writer import FileBackend, GroupWriter
from stagepost.ground.storage.sqlite_file import Connect, connect
from stagepost.runtime.delivery.inbox_book import TABLES, InboxBook
from stagepost.runtime.delivery.inbox_rows import InboxRows
from stagepost.runtime.delivery.inbox_store import CAPACITY
from stagepost.runtime.delivery.store_folder import open_owned

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
        file, lock = open_owned(folder, INBOX_FILE, TABLES, "inbox", connect)
        super().__init__(file.held, file.damage, capacity, clock)
        self._writer = GroupWriter(
            FileBackend(file, "inbox", lock.release),
            lambda draft: InboxBook(draft, self._queue),
            on_error=self._report,
        )
