"""Store of a validator's sessions: on disk with one fsync for everything that waits, or on a simulated disk.

Nothing is sent that a crash could make us forget: blocks of our own and messages that a full node was told we have
are written first, and `written` says when.

What a validator keeps of its sessions, as rows: blocks of the graph in the order in which they came, and bodies.

What one session writes, until it is written: a disk that fails delays, and makes nothing be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stagepost.chain.node.store import NETWORK_BEGINS
from stagepost.errors import StorageError
from stagepost.ground.storage.group_writer import Backend, FileBackend, GroupWriter, Written
from stagepost.ground.storage.owned_folder import open_owned
from stagepost.ground.storage.simulated_disk import MemoryBackend, TablesDisk
from stagepost.ground.storage.sqlite_file import Connect, connect
from stagepost.ground.storage.tables import AnyTable, Draft, Held, Table
from stagepost.ground.wire.tl import INT256_BYTES
from stagepost.remp.queue.message_cache import LET_GO_CATCHAINS, LET_GO_MAX
from stagepost.remp.queue.records import HandOver


class BlockRow(msgspec.Struct, frozen=True, array_like=True):
    session_id: bytes
    frame: bytes


class BodyRow(msgspec.Struct, frozen=True, array_like=True):
    """`full_node` is empty for a body that came from another member: nothing was promised to anybody for it.
    `handed_at_ms` and `signature` are of the hand-over by that full node. `masterchain_seqno`: the catchain from which the
    message's life is counted; -1 in rows of earlier releases, where it is not known.
    """

    session_id: bytes
    message_id: bytes
    body: bytes
    full_node: bytes = b""
    handed_at_ms: int = 0
    signature: bytes = b""
    masterchain_seqno: int = -1

    @property
    def known_seqno(self) -> int | None:
        return None if self.masterchain_seqno < 0 else self.masterchain_seqno

    @property
    def hand_over(self) -> HandOver:
        return HandOver(self.handed_at_ms, self.signature)


class LinkRow(msgspec.Struct, frozen=True, array_like=True):
    """Place of a receipt in its chain; number 0 for a receipt without one."""

    session_id: bytes = b""
    number: int = 0
    before: bytes = b""


class StatementRow(msgspec.Struct, frozen=True, array_like=True):
    """Receipts that were signed together, packed as they are sent, and under which catchain of the masterchain.
    `links`: the link of each of them; none at all in rows of earlier releases. `over`: ids of messages, one behind the
    other, whose receipts were removed under that catchain; the row has no receipts then.
    """

    catchain_seqno: int
    receipts: bytes
    links: tuple[LinkRow, ...] = ()
    over: bytes = b""

    @property
    def ids_over(self) -> frozenset[bytes]:
        starts = range(0, len(self.over), INT256_BYTES)
        return frozenset(self.over[start : start + INT256_BYTES] for start in starts)


BLOCKS: Table[int, BlockRow] = Table("blocks", int, BlockRow)
BODIES: Table[bytes, BodyRow] = Table("bodies", bytes, BodyRow)
SESSIONS: Table[bytes, int] = Table("sessions", bytes, int)
"""By session id: the catchain of the masterchain under which the session began."""

STATEMENTS: Table[int, StatementRow] = Table("statements", int, StatementRow)
"""In the order in which they were made."""

TABLES = (BLOCKS, BODIES, SESSIONS, STATEMENTS)


class SessionContent(msgspec.Struct, frozen=True):
    """Content of the disk for one session."""

    frames: tuple[bytes, ...] = ()
    bodies: tuple[BodyRow, ...] = ()
    is_suspect: bool = False
    """Rows were damaged or missing: some may have been of this session, and some of those our own blocks."""


class SessionBook:
    """Changes of rows, each of which happens whole or not at all."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def begin(self, session_id: bytes, masterchain_seqno: int) -> None:
        if self._draft.get(SESSIONS, session_id) is None:
            self._draft.put(SESSIONS, session_id, masterchain_seqno)

    def put_block(self, number: int, row: BlockRow) -> None:
        self._draft.put(BLOCKS, number, row)

    def put_body(self, row: BodyRow) -> None:
        """The first that a full node was told of stays; others' copies do not replace it. A further full node has a
        row of its own.
        """
        key = body_key(row.session_id, row.message_id)
        before = self._draft.get(BODIES, key)
        if before is None or (row.full_node and not before.full_node):
            self._draft.put(BODIES, key, row)
        elif row.full_node and row.full_node != before.full_node:
            self._draft.put(BODIES, key + row.full_node, row)

    def put_statements(self, number: int, rows: Sequence[StatementRow]) -> None:
        for place, row in enumerate(rows):
            self._draft.put(STATEMENTS, number + place, row)

    def remove_statements(self, before: int, number: int, removed: StatementRow) -> None:
        """Drop the statements of catchains older than `before`, and keep what `removed` says of them, as many ids for as many
        catchains as a queue remembers.
        """
        self._draft.put(STATEMENTS, number, removed)
        over_bytes = 0
        for key, row in sorted(self._draft.items(STATEMENTS), reverse=True):
            over_bytes += len(row.over)
            is_recent = row.catchain_seqno >= removed.catchain_seqno - LET_GO_CATCHAINS
            if row.over:
                if key != number and not (is_recent and over_bytes <= LET_GO_MAX * INT256_BYTES):
                    self._draft.drop(STATEMENTS, key)
            elif row.catchain_seqno < before:
                self._draft.drop(STATEMENTS, key)

    def remove(self, sessions: Sequence[bytes]) -> None:
        """Drop sessions that are over, with all that is kept of them."""
        gone = frozenset(sessions)
        tables: tuple[AnyTable, ...] = (BLOCKS, BODIES)
        for table in tables:
            for key, row in self._draft.items(table):
                if row.session_id in gone:
                    self._draft.drop(table, key)
        for session_id in gone:
            self._draft.drop(SESSIONS, session_id)

    def finish(self) -> None:
        pass


def body_key(session_id: bytes, message_id: bytes) -> bytes:
    return session_id + message_id


def contents_of(held: Held, *, is_suspect: bool) -> dict[bytes, SessionContent]:
    """By session."""
    frames: dict[bytes, list[bytes]] = {}
    bodies: dict[bytes, list[BodyRow]] = {}
    blocks: dict[int, BlockRow] = held[BLOCKS.name]
    for number in sorted(blocks):
        frames.setdefault(blocks[number].session_id, []).append(blocks[number].frame)
    for row in held[BODIES.name].values():
        bodies.setdefault(row.session_id, []).append(row)
    return {
        session_id: SessionContent(
            tuple(frames.get(session_id, ())), tuple(bodies.get(session_id, ())), is_suspect
        )
        for session_id in {*frames, *bodies}
    }


STORE_FILE = "sessions.sqlite"


class SessionStore:
    """Blocks, bodies and receipts of a validator's sessions. `damage` has one sentence for each thing that was wrong when the
    store was opened. One owner at a time.

    Changes reach the disk in the order in which they were asked for. `written` is called when a change, and with it every
    earlier one, cannot be lost any more; a disk that refuses delays the call."""

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

    def look_at(self, session_id: bytes) -> SessionContent:
        """Return what the store held when it was opened, and keep it: a session that the chain has not reached again looks as
        if it was over, and may begin after all.
        """
        return self._found.get(session_id, SessionContent(is_suspect=bool(self.damage)))

    def load(self, session_id: bytes) -> SessionContent:
        """Return what the store held when it was opened, for the session that goes on from it. Callable once."""
        return self._found.pop(session_id, SessionContent(is_suspect=bool(self.damage)))

    def found_body(self, message_id: bytes) -> bytes | None:
        """Return a body of any session that the store held when it was opened: forwarded messages come back in another session."""
        return self._found_bodies.get(message_id)

    def begin(self, session_id: bytes, masterchain_seqno: int) -> None:
        if session_id not in self._seqnos:
            self._seqnos[session_id] = masterchain_seqno
            self._writer.soon(lambda book: book.begin(session_id, masterchain_seqno))

    def put_block(self, session_id: bytes, frame: bytes, written: Written) -> None:
        number, self._next_number = self._next_number, self._next_number + 1
        row = BlockRow(session_id, frame)
        self._writer.owe(lambda book: book.put_block(number, row), written)

    def put_body(self, row: BodyRow) -> None:
        """Store a body soon, or with the receipts or the block that follow it."""
        self._writer.soon(lambda book: book.put_body(row))

    @property
    def statements(self) -> list[StatementRow]:
        """Return the statements on disk, in the order in which they were made."""
        rows: dict[int, StatementRow] = self._held[STATEMENTS.name]
        return [rows[number] for number in sorted(rows)]

    def put_statements(self, rows: Sequence[StatementRow], written: Written) -> None:
        number, self._next_statement = self._next_statement, self._next_statement + len(rows)
        self._writer.owe(lambda book: book.put_statements(number, rows), written)

    def remove_statements(self, before: int, removed: StatementRow) -> None:
        """Remove the statements of older catchains of the masterchain; `removed` names their messages."""
        number, self._next_statement = self._next_statement, self._next_statement + 1
        self._writer.soon(lambda book: book.remove_statements(before, number, removed))

    def remove(self, sessions: Sequence[bytes]) -> None:
        for session_id in sessions:
            self._seqnos.pop(session_id, None)
            for row in self._found.pop(session_id, SessionContent()).bodies:
                self._found_bodies.pop(row.message_id, None)
        gone = tuple(sessions)
        self._writer.soon(lambda book: book.remove(gone))

    async def close(self) -> None:
        await self._writer.close()

    @property
    def writes_failed(self) -> int:
        return self._writer.counters.failures

    @property
    def fault(self) -> StorageError | None:
        """Return why the last write failed; None if it went well."""
        return self._writer.fault

    def _report(self, error: StorageError) -> None:
        if self.on_error is not None:
            self.on_error(error)


def open_session_store(folder: Path, *, connect: Connect = connect) -> SessionStore:
    """`LockConflict` if another process has the folder, `StorageError` if it cannot be used."""
    file, lock = open_owned(folder, STORE_FILE, TABLES, "store of sessions", connect, NETWORK_BEGINS)
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
