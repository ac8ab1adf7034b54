"""The message store on disk: one SQLite file, one writing thread, one fsync for everything that waits.

Messages that are put while the disk is busy join the next transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stagepost.dmq.node.message_store import StoredMessage, StoredState, Written, write_and_wait
from stagepost.dmq.node.stored_rows import FACTS, HIGHEST_MS, NOTES, TABLES, MessageDraftBook, state_of
from stagepost.errors import StorageError
from stagepost.ground.files.owner_lock import OwnerLock
from stagepost.ground.storage.group_writer import FileBackend, GroupWriter, WriterCounters
from stagepost.ground.storage.sqlite_file import Connect, beside, connect
from stagepost.ground.storage.table_file import TableFile

WHAT = "message store"


class SqliteStore:
    """Message store in a file; `StorageError` from the constructor if another process has the file, or if the folder
    cannot be used."""

    def __init__(self, path: Path, *, connect: Connect = connect) -> None:
        lock = OwnerLock(beside(path, ".lock"))
        try:
            self._file = TableFile(path, TABLES, WHAT, notes=NOTES, connect=connect)
        except BaseException:
            lock.release()
            raise
        self._writer = GroupWriter(
            FileBackend(self._file, WHAT, lock.release), MessageDraftBook, on_error=lambda error: None
        )

    @property
    def counters(self) -> WriterCounters:
        return self._writer.counters

    @property
    def commit_s(self) -> float:
        """Seconds spent waiting for the disk, mostly in fsync."""
        return self._file.commit_s

    @property
    def fault(self) -> str | None:
        error = self._writer.fault
        return None if error is None else error.text

    def load(self) -> StoredState:
        state = state_of(self._file.held, self._file.damage)
        # The rows may know a later time than the note, which never goes back.
        self._file.held[FACTS.name][HIGHEST_MS] = state.highest_ms
        return state

    async def put(self, records: Sequence[StoredMessage]) -> None:
        await write_and_wait(self, records)

    def write(self, records: Sequence[StoredMessage], written: Written) -> None:
        if not records:
            return written(None)
        try:
            self._writer.ask(lambda book: book.put(records), written)
        except StorageError as closed:
            written(closed)

    def forget(self, records: Sequence[StoredMessage], unix_s: float) -> None:
        self._writer.soon(lambda book: book.forget(records, int(unix_s * 1_000)))

    def reset_time(self, unix_s: float) -> None:
        self._writer.soon(lambda book: book.reset_time(int(unix_s * 1_000)))

    async def close(self) -> None:
        """Write everything that was given; then the file has no log, and the next owner may come."""
        await self._writer.close()
