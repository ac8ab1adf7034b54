"""The outbox as rows over any writer, on disk and in memory: one folder for each publisher, one SQLite file in it, one fsync for
everything that waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from stagepost.delivery.errors import ErrConfig
from stagepost.delivery.stores.outbox import (
    NONCE_PREFIX_BYTES,
    DeadLetter,
    OutboxChange,
    OutboxContent,
    OutboxRecord,
)
from stagepost.delivery.stores.outbox_rules import (
    HEAD,
    TABLES,
    THE_HEAD,
    USUAL_LIMITS,
    OutboxBook,
    OutboxHead,
    OutboxLimits,
    content_of,
    recover,
)
from stagepost.delivery.stores.row_store import RowStore, open_queue_folder
from stagepost.errors import StorageError
from stagepost.ground.storage.group_writer import FileBackend, GroupWriter
from stagepost.ground.storage.simulated_disk import InstantWriter, MemoryBackend, TablesDisk
from stagepost.ground.storage.sqlite_file import Connect, connect
from stagepost.ground.storage.tables import Draft, Held, empty


class OutboxRows(RowStore[OutboxBook]):
    def __init__(self, held: Held, damage: Sequence[str]) -> None:
        super().__init__(damage)
        head: OutboxHead = held[HEAD.name][THE_HEAD]
        self._held = held
        self._nonce_prefix = head.nonce_prefix
        self._is_loose = head.is_loose
        self._last_sequence = head.next_counter - 1

    @property
    def nonce_prefix(self) -> bytes:
        return self._nonce_prefix

    def load(self) -> OutboxContent:
        self._report_damage()
        return content_of(self._held, self._damage)

    async def insert(
        self, record: OutboxRecord, dead: Sequence[DeadLetter] = (), *, replayed: int | None = None
    ) -> None:
        if record.sequence <= self._last_sequence:
            raise StorageError(
                f"sequence {record.sequence} was used already, the next one is {self._last_sequence + 1}",
                found=record.sequence,
            )
        self._last_sequence = record.sequence
        await self._writer.do(lambda book: book.insert(record, dead, replayed))

    def mark(self, change: OutboxChange) -> None:
        self._writer.soon(lambda book: book.mark(change))

    async def close(self) -> None:
        if self._is_loose:
            self._is_loose = False
            self._writer.soon(lambda book: book.tighten())
        await super().close()


OUTBOX_FILE = "outbox.sqlite"
FSYNC_MODES = ("commit", "interval", "off")


class SqliteOutbox(OutboxRows):
    """`ErrQueueLocked` if another publisher has the folder, `StorageError` if it cannot be used.

    `fsync` says what an insert waits for: "commit" for the disk; "interval" for the operating system, which is made
    to write within a second; "off" for the operating system, which writes when it likes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fsync: str = "commit",
        limits: OutboxLimits = USUAL_LIMITS,
        connect: Connect = connect,
    ) -> None:
        if fsync not in FSYNC_MODES:
            raise ErrConfig(f"fsync is one of {', '.join(FSYNC_MODES)}, not {fsync!r}", found=fsync)
        file, lock = open_queue_folder(folder, OUTBOX_FILE, TABLES, "outbox", connect)
        try:
            draft = Draft(file.held)
            prefix = secrets.token_bytes(NONCE_PREFIX_BYTES)
            made_up = recover(
                draft, file.held, prefix, is_loose=fsync != "commit", queue_size=limits.queue_size
            )
            if draft.changes:
                file.commit(draft, is_synced=True)
        except BaseException:
            file.close()
            lock.release()
            raise
        super().__init__(file.held, [*file.damage, *made_up])
        self._writer = GroupWriter(
            FileBackend(file, "outbox", lock.release),
            lambda draft: OutboxBook(draft, limits),
            fsync=fsync,
            on_error=self._report,
        )


class MemoryOutboxDisk(TablesDisk):
    """Outlives the outboxes on it: `crash` is a power cut, `kill` the end of a process alone."""

    def __init__(self, sync_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(TABLES, sync_s)


class MemoryOutbox(OutboxRows):
    """Without a disk it ends with the process. `nonce_prefix` is drawn unless a simulation gives it.

    `is_safe=False` is a planted defect: it answers before it has synced.
    """

    def __init__(
        self,
        disk: MemoryOutboxDisk | None = None,
        *,
        fsync: str = "commit",
        limits: OutboxLimits = USUAL_LIMITS,
        nonce_prefix: bytes | None = None,
        is_safe: bool = True,
    ) -> None:
        prefix = nonce_prefix or secrets.token_bytes(NONCE_PREFIX_BYTES)
        backend = None if disk is None else MemoryBackend(disk, is_safe=is_safe)
        held = empty({table.name: table for table in TABLES}) if backend is None else backend.held
        draft = Draft(held)
        damage = recover(draft, held, prefix, is_loose=fsync != "commit", queue_size=limits.queue_size)
        if disk is not None:
            disk.put_at_once(draft)
        draft.settle()
        super().__init__(held, damage)
        if backend is None:
            self._writer = InstantWriter(held, lambda draft: OutboxBook(draft, limits))
        else:
            self._writer = GroupWriter(
                backend, lambda draft: OutboxBook(draft, limits), fsync=fsync, on_error=self._report
            )
