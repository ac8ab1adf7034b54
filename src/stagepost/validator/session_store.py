"""Where a validator keeps its sessions: on disk with one fsync for everything that waits, or on a simulated disk.

Nothing is sent that a crash could make us forget: blocks of our own and messages that a full node was told we have
are written first, and `written` says when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stagepost.delivery.stores.owned_folder import open_owned
from stagepost.errors import StorageError
from stagepost.ground.storage.group_writer import Backend, FileBackend, GroupWriter
from stagepost.ground.storage.simulated_disk import MemoryBackend, TablesDisk
from stagepost.ground.storage.sqlite_file import Connect, connect
from stagepost.ground.storage.tables import Held
from stagepost.validator.session_rows import (
    BLOCKS,
    BODIES,
    SESSIONS,
    STATEMENTS,
    TABLES,
    BlockRow,
    BodyRow,
    SessionBook,
    SessionContent,
    StatementRow,
    contents_of,
)

STORE_FILE = "sessions.sqlite"

Written = Callable[[StorageError | None], None]
"""Called once, on the event loop: it cannot be lost any more, or it was not written."""


class SessionStore:
    """`damage` has one sentence for each thing that was wrong when it was opened. One owner at a time."""

    def __init__(self, held: Held, damage: Sequence[str], backend: Backend) -> None:
        self.damage = tuple(damage)
        self.on_error: Callable[[StorageError], None] | None = None
        self._held = held
        self._next_number = max(held[BLOCKS.name], default=0) + 1
        self._next_statement = max(held[STATEMENTS.name], default=0) + 1
        self._seqnos: dict[bytes, int] = dict(held[SESSIONS.name])
        self._found = contents_of(held, is_suspect=bool(damage))
        self._found_bodies = {row.message_id: row.body for row in held[BODIES.name].values()}
        self._writer = GroupWriter(backend, SessionBook, on_error=self._report)

    @property
    def sessions(self) -> dict[bytes, int]:
        """The sessions of which anything is kept, each with the master catchain under which it began."""
        return dict(self._seqnos)

    def load(self, session_id: bytes) -> SessionContent:
        """What was there when the store was opened: once."""
        return self._found.pop(session_id, SessionContent(is_suspect=bool(self.damage)))

    def found_body(self, message_id: bytes) -> bytes | None:
        """Of any session, if it was there when the store was opened: forwarded messages come back under another one."""
        return self._found_bodies.get(message_id)

    def begin(self, session_id: bytes, masterchain_seqno: int) -> None:
        if session_id not in self._seqnos:
            self._seqnos[session_id] = masterchain_seqno
            self._writer.soon(lambda book: book.begin(session_id, masterchain_seqno))

    def put_block(self, session_id: bytes, frame: bytes, written: Written) -> None:
        number, self._next_number = self._next_number, self._next_number + 1
        row = BlockRow(session_id, frame)
        self._ask(lambda book: book.put_block(number, row), written)

    def put_body(self, row: BodyRow, written: Written | None = None) -> None:
        """Without `written`: soon, for what others have, too."""
        if written is None:
            self._writer.soon(lambda book: book.put_body(row))
        else:
            self._ask(lambda book: book.put_body(row), written)

    @property
    def statements(self) -> list[StatementRow]:
        """Those that are on disk, in the order in which they were made."""
        rows: dict[int, StatementRow] = self._held[STATEMENTS.name]
        return [rows[number] for number in sorted(rows)]

    def put_statements(self, rows: Sequence[StatementRow], written: Written) -> None:
        number, self._next_statement = self._next_statement, self._next_statement + len(rows)
        self._ask(lambda book: book.put_statements(number, rows), written)

    def remove_statements(self, before: int) -> None:
        """Those of older catchains of the masterchain."""
        self._writer.soon(lambda book: book.remove_statements(self._held, before))

    def remove(self, sessions: Sequence[bytes]) -> None:
        for session_id in sessions:
            self._seqnos.pop(session_id, None)
            for row in self._found.pop(session_id, SessionContent()).bodies:
                self._found_bodies.pop(row.message_id, None)
        gone = tuple(sessions)
        self._writer.soon(lambda book: book.remove(self._held, gone))

    async def close(self) -> None:
        await self._writer.close()

    def _ask(self, act: Callable[[SessionBook], None], written: Written) -> None:
        self._writer.ask(act, written)

    def _report(self, error: StorageError) -> None:
        if self.on_error is not None:
            self.on_error(error)


def open_session_store(folder: Path, *, connect: Connect = connect) -> SessionStore:
    """`ErrQueueLocked` if another process has the folder, `StorageError` if it cannot be used."""
    file, lock = open_owned(folder, STORE_FILE, TABLES, "store of sessions", connect)
    return SessionStore(file.held, file.damage, FileBackend(file, "sessions", lock.release, rests=True))


class SessionsDisk(TablesDisk):
    """Outlives the stores on it: `crash` is a power cut, `kill` the end of a process alone."""

    def __init__(self, sync_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(TABLES, sync_s)


class MemorySessionStore(SessionStore):
    """On a simulated disk. `is_safe=False` is a planted defect: it answers before it has synced."""

    def __init__(self, disk: SessionsDisk, *, is_safe: bool = True) -> None:
        backend = MemoryBackend(disk, is_safe=is_safe)
        super().__init__(backend.held, (), backend)
