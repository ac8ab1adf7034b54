"""What a validator keeps of its sessions, as rows: blocks of the graph in the order in which they came, and bodies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stagepost.ground.storage.tables import AnyTable, Draft, Held, Table


class BlockRow(msgspec.Struct, frozen=True, array_like=True):
    session_id: bytes
    frame: bytes


class BodyRow(msgspec.Struct, frozen=True, array_like=True):
    """`full_node` is empty for a body that came from another member: nothing was promised to anybody for it."""

    session_id: bytes
    message_id: bytes
    body: bytes
    full_node: bytes = b""


class StatementRow(msgspec.Struct, frozen=True, array_like=True):
    """Receipts that were signed together, packed as they are sent, and under which catchain of the masterchain."""

    catchain_seqno: int
    receipts: bytes


BLOCKS: Table[int, BlockRow] = Table("blocks", int, BlockRow)
BODIES: Table[bytes, BodyRow] = Table("bodies", bytes, BodyRow)
SESSIONS: Table[bytes, int] = Table("sessions", bytes, int)
"""By session id: the catchain of the masterchain under which the session began."""

STATEMENTS: Table[int, StatementRow] = Table("statements", int, StatementRow)
"""In the order in which they were made."""

TABLES = (BLOCKS, BODIES, SESSIONS, STATEMENTS)


class SessionContent(msgspec.Struct, frozen=True):
    """What the disk holds of one session."""

    frames: tuple[bytes, ...] = ()
    bodies: tuple[BodyRow, ...] = ()
    is_suspect: bool = False
    """Rows were damaged or missing: some may have been of this session, and some of those our own blocks."""


class SessionBook:
    """How rows are changed. Everything here happens whole or not at all."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def begin(self, session_id: bytes, masterchain_seqno: int) -> None:
        if self._draft.get(SESSIONS, session_id) is None:
            self._draft.put(SESSIONS, session_id, masterchain_seqno)

    def put_block(self, number: int, row: BlockRow) -> None:
        self._draft.put(BLOCKS, number, row)

    def put_body(self, row: BodyRow) -> None:
        """The first that a full node was told of stays; others' copies do not replace it."""
        key = body_key(row.session_id, row.message_id)
        before = self._draft.get(BODIES, key)
        if before is None or (row.full_node and not before.full_node):
            self._draft.put(BODIES, key, row)

    def put_statements(self, number: int, rows: Sequence[StatementRow]) -> None:
        for place, row in enumerate(rows):
            self._draft.put(STATEMENTS, number + place, row)

    def remove_statements(self, held: Held, before: int) -> None:
        """Those of older catchains."""
        rows = {**held[STATEMENTS.name], **self._draft.changes.get(STATEMENTS.name, {})}
        for number, row in rows.items():
            if row is not None and row.catchain_seqno < before:
                self._draft.drop(STATEMENTS, number)

    def remove(self, held: Held, sessions: Sequence[bytes]) -> None:
        """Sessions that are over, with all that is kept of them."""
        gone = frozenset(sessions)
        tables: tuple[AnyTable, ...] = (BLOCKS, BODIES)
        for table in tables:
            rows = {**held[table.name], **self._draft.changes.get(table.name, {})}
            for key, row in rows.items():
                if row is not None and row.session_id in gone:
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
