"""The inbox as rows over any writer, on disk and in memory: one folder for each receiver, one SQLite file in it, one fsync for
everything that waits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from stagepost.delivery.stores.inbox import CAPACITY, KEEP_S, InboxContent, InboxRecord
from stagepost.delivery.stores.inbox_rules import TABLES, InboxBook, InboxQueue, content_of
from stagepost.delivery.stores.row_store import RowStore, open_queue_folder
from stagepost.errors import StagepostError
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.storage.group_writer import FileBackend, GroupWriter
from stagepost.ground.storage.simulated_disk import InstantWriter, MemoryBackend, TablesDisk
from stagepost.ground.storage.sqlite_file import Connect, connect
from stagepost.ground.storage.tables import Draft, Held, empty

DELIVERY_ID_BYTES = 32
CLAIMS_TABLE = "stagepost_claims"


class InboxRows(RowStore[InboxBook]):
    """`clock` says until when a claim is kept of which nothing else is known."""

    def __init__(self, held: Held, damage: Sequence[str], capacity: int, clock: Clock | None) -> None:
        super().__init__(damage)
        self._held = held
        self._queue = InboxQueue(held, capacity)
        self._clock = clock or SystemClock()

    @property
    def overflowed(self) -> int:
        return self._queue.overflowed

    def load(self) -> InboxContent:
        self._report_damage()
        return content_of(self._held, self._damage)

    async def put(self, record: InboxRecord) -> None:
        await self._writer.do(lambda book: book.put(record))

    def mark(self, record: InboxRecord) -> None:
        self._writer.soon(lambda book: book.put(record))

    def expire(self, now_ms: int) -> None:
        self._writer.soon(lambda book: book.expire(now_ms))

    async def claim(self, delivery_id: bytes | str, keep_until_ms: int | None = None) -> bool:
        key = as_bytes(delivery_id)
        keep_ms = int((self._clock.unix_s() + KEEP_S) * 1_000) if keep_until_ms is None else keep_until_ms
        return await self._writer.do(lambda book: book.claim(key, keep_ms))

    async def release(self, delivery_id: bytes | str) -> None:
        key = as_bytes(delivery_id)
        await self._writer.do(lambda book: book.release(key))


def as_bytes(delivery_id: bytes | str) -> bytes:
    try:
        key = bytes.fromhex(delivery_id) if isinstance(delivery_id, str) else bytes(delivery_id)
    except ValueError:
        key = b""
    if len(key) != DELIVERY_ID_BYTES:
        raise StagepostError(
            f"a delivery id has {DELIVERY_ID_BYTES} bytes, or twice as many hexadecimal characters; "
            f"found {delivery_id!r}",
            found=delivery_id,
        )
    return key


def claim_within(connection: sqlite3.Connection, delivery_id: bytes | str) -> bool:
    """A claim inside the caller's own transaction: it commits together with the effect, or not at all.

    True for the first. The table is made when it is missing; its rows are the caller's to delete.
    """
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {CLAIMS_TABLE} (delivery_id BLOB PRIMARY KEY) WITHOUT ROWID"
    )
    statement = f"INSERT OR IGNORE INTO {CLAIMS_TABLE} VALUES (?)"
    return connection.execute(statement, (as_bytes(delivery_id),)).rowcount == 1


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
