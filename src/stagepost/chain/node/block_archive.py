"""Archive of a chain: final blocks of ended sessions on disk, by session and place. None of them is held in memory.

A full node moves blocks here when a snapshot stands for them, so that its memory does not grow with the chain, and a node that
joins can still ask for them from the genesis on. One thread reads and writes; the event loop waits for no disk.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from stagepost.chain.history import KeptBlock
from stagepost.errors import StorageError, TlDecodeError
from stagepost.ground.storage.damage import replace_damaged
from stagepost.ground.storage.layout import (
    Beginning,
    StoreLayout,
    UnreadableLayout,
    create,
    read_only,
    refuse_other_layout,
)
from stagepost.ground.storage.sqlite_file import Connect, DamagedFile, SqliteFile, connect, is_damage
from stagepost.ground.storage.tables import DamagedRow, Row, RowTable, UnknownRow, checksum_of

log = logging.getLogger(__name__)

ARCHIVE_FILE = "archive.sqlite"
WHAT = "archive of the chain"
ROWS_PRUNED_AT_ONCE = 10_000
"""Rows, at most, that one call of `put` removes: a node that comes back after weeks removes the rest with the next calls."""

_PLACE = Struct(">32sIq")


class ArchivedBlock(NamedTuple):
    """A final block of the session `kept.session_id`; its first block has place 0. `covered_ms`: time of the snapshot that
    stands for the block.
    """

    place: int
    covered_ms: int
    kept: KeptBlock


class ArchiveRows(RowTable[bytes, ArchivedBlock]):
    """Rows of the archive, with a checksum over session, place, time and block."""

    def __init__(self) -> None:
        super().__init__(
            "blocks",
            bytes,
            "session BLOB NOT NULL, place INTEGER NOT NULL, covered_ms INTEGER NOT NULL, content BLOB NOT NULL, "
            "checksum BLOB NOT NULL, PRIMARY KEY (session, place)",
        )

    def write(self, key: bytes, value: ArchivedBlock) -> Row:
        content = value.kept.encode()
        checksum = _checksum(key, value.place, value.covered_ms, content)
        return key, value.place, value.covered_ms, content, checksum

    def read(self, row: Row) -> tuple[bytes, ArchivedBlock]:
        session_id, place, covered_ms, content, checksum = row
        if not (isinstance(session_id, bytes) and isinstance(place, int) and isinstance(covered_ms, int)):
            raise DamagedRow("a column has the wrong type")
        if not isinstance(content, bytes) or checksum != _checksum(session_id, place, covered_ms, content):
            raise DamagedRow(f"the checksum of block {place} of session {session_id.hex()} does not fit")
        try:
            return session_id, ArchivedBlock(place, covered_ms, KeptBlock.decode(content))
        except TlDecodeError as error:
            raise UnknownRow(
                f"block {place} of session {session_id.hex()} is whole, but cannot be decoded"
            ) from error


def _checksum(session_id: bytes, place: int, covered_ms: int, content: bytes) -> bytes:
    return checksum_of(_PLACE.pack(session_id, place, covered_ms), content)


ROWS = ArchiveRows()
LAYOUT = StoreLayout(
    {
        ROWS.name: ROWS.schema,
        "blocks_by_time": f"CREATE INDEX blocks_by_time ON {ROWS.name} (covered_ms)",
    },
    (),
    Beginning(1, "it was made before the archive had a version", "move the file elsewhere"),
)


class BlockArchive:
    """Archive in one file. `keep_ms`: for how long blocks stay after the snapshot that stands for them; None for ever.
    `damage` has a sentence for a file that was set aside when the archive was opened."""

    def __init__(self, folder: Path, *, keep_ms: int | None = None, connect: Connect = connect) -> None:
        self._path = folder / ARCHIVE_FILE
        self._keep_ms = keep_ms
        self._connect = connect
        self.damage: tuple[str, ...] = ()
        self._file: SqliteFile | None = self._opened()
        self._thread = ThreadPoolExecutor(1, "chain-archive")

    def put(self, blocks: Sequence[ArchivedBlock], done: Callable[[StorageError | None], None]) -> None:
        """Write the blocks, and call `done` on the event loop: with None once the disk has them. Blocks that these outlived
        by `keep_ms` go.
        """
        loop = asyncio.get_running_loop()

        def told(outcome: Future[None]) -> None:
            error = outcome.exception()
            fault = error if isinstance(error, StorageError) else None
            if error is not None and fault is None:
                log.error("the archive of the chain failed", exc_info=error)
                fault = StorageError(f"the {WHAT} {self._path} failed: {error}")
            with suppress(RuntimeError):  # the loop has ended: the blocks are still in the store
                loop.call_soon_threadsafe(done, fault)

        self._thread.submit(self._write, blocks).add_done_callback(told)

    async def read(self, session_id: bytes, first: int, count_max: int, bytes_max: int) -> list[KeptBlock]:
        """Return the blocks of a session from place `first` on, in order and without a gap: at most `count_max`, and no
        further one behind `bytes_max` bytes. What cannot be read ends the list.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._read, session_id, first, count_max, bytes_max)

    async def close(self) -> None:
        """Finish what was asked for, and close the file."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._let_go)
        self._thread.shutdown()

    # In the thread

    def _write(self, blocks: Sequence[ArchivedBlock]) -> None:
        try:
            file = self._file = self._file or self._opened()
            file.begin()
            file.run(
                "REPLACE INTO blocks VALUES (?, ?, ?, ?, ?)",
                [ROWS.write(one.kept.session_id, one) for one in blocks],
            )
            if self._keep_ms is not None:
                newest_ms = max((one.covered_ms for one in blocks), default=0)
                file.call(
                    "DELETE FROM blocks WHERE (session, place) IN "
                    "(SELECT session, place FROM blocks WHERE covered_ms < ? LIMIT ?)",
                    (newest_ms - self._keep_ms, ROWS_PRUNED_AT_ONCE),
                )
            file.commit()
        except (sqlite3.Error, OSError) as error:
            self._let_go()
            raise StorageError(
                f"the {WHAT} {self._path} cannot be written: {error}",
                advice="check the disk and the space left on it",
            ) from error

    def _read(self, session_id: bytes, first: int, count_max: int, bytes_max: int) -> list[KeptBlock]:
        found: list[KeptBlock] = []
        size = 0
        try:
            file = self._file = self._file or self._opened()
            rows = file.rows(
                "SELECT * FROM blocks WHERE session = ? AND place >= ? ORDER BY place LIMIT ?",
                *(session_id, first, count_max),
            )
            for row in rows:
                block = ROWS.read(row)[1]
                if block.place != first + len(found):
                    raise DamagedRow(f"block {first + len(found)} of session {session_id.hex()} is missing")
                found.append(block.kept)
                size += len(block.kept.payload) + len(block.kept.certificate)
                if size > bytes_max:
                    break
        except (sqlite3.Error, OSError, DamagedRow, StorageError) as error:
            log.error("a block cannot be read from the archive of the chain", extra={"reason": str(error)})
        return found

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # Opening

    def _opened(self) -> SqliteFile:
        try:
            if not self._path.exists():
                create(self._path, self._connect, LAYOUT, ())
            with read_only(self._path) as connection:
                refuse_other_layout(connection, self._path, LAYOUT, WHAT)
            return SqliteFile(self._path, self._connect)
        except (UnreadableLayout, DamagedFile, sqlite3.Error) as error:
            if isinstance(error, sqlite3.Error) and not is_damage(error):
                raise StorageError(f"the {WHAT} {self._path} cannot be opened: {error}") from error
            old = replace_damaged(self._path, lambda fresh: create(fresh, self._connect, LAYOUT, ()))
            self.damage += (
                f"{self._path.name} could not be read ({error}); it is kept as {old.name}; nodes that join "
                "must ask another full node for the blocks in it",
            )
            return SqliteFile(self._path, self._connect)
        except OSError as error:
            raise StorageError(
                f"the {WHAT} {self._path} cannot be opened: {error.strerror}",
                advice="check who may write the folder, and the disk",
            ) from error
