"""The data that a validator must store to go on after a restart: every final block with its certificate, and
now and then a state.

The shell has the disk; this module says what the shell stores, and must return in the order of storing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from stagepost.chain.configuration import BLOCK_BYTES_MAX
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id
from stagepost.remp.sessions import Member, SessionFacts
from stagepost.remp.shard import BLOCK_ID_BYTES, BlockId, read_block_id

CERTIFICATE_BYTES_MAX = 512 * 1024
SESSIONS_KEPT_MAX = 1 << 17
VIEWS_KEPT_MAX = 1 << 20
MEMBERS_MAX = 4_096

_BLOCK_ID = constructor_id(
    "stagepost.chain.keptBlock session:int256 candidate:int256 payload:bytes certificate:bytes = stagepost.chain.Kept"
)
_SESSIONS_ID = constructor_id(
    "stagepost.chain.keptSessions master:int256 sessions:(vector stagepost.chain.keptSession) "
    "views:(vector stagepost.chain.keptView) = stagepost.chain.Kept"
)
_SESSION_BYTES_MIN = 68
_VIEW_BYTES_MIN = BLOCK_ID_BYTES + 20
_FACTS_BYTES_MIN = 56
_MEMBER_BYTES = 72


class KeptBlock(msgspec.Struct, frozen=True):
    """A stored final block. `candidate` is its hash in the agreement; `certificate` proves it, and only the
    agreement reads it. A block without a payload closed a session of the masterchain: its certificate may be
    the proof of the block before.
    """

    session_id: bytes
    candidate: bytes
    payload: bytes
    certificate: bytes

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(_BLOCK_ID)
        writer.write_int256(self.session_id)
        writer.write_int256(self.candidate)
        writer.write_bytes(self.payload)
        writer.write_bytes(self.certificate)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> KeptBlock:
        reader = Reader(data)
        reader.read_constructor(_BLOCK_ID)
        kept = cls(
            reader.read_int256(),
            reader.read_int256(),
            reader.read_bytes(BLOCK_BYTES_MAX, "payload"),
            reader.read_bytes(CERTIFICATE_BYTES_MAX, "certificate"),
        )
        reader.expect_end()
        return kept


class KeptSession(msgspec.Struct, frozen=True):
    """`base`: the candidate of its last block that the masterchain holds. `previous`: the sessions whose work
    it continues.
    """

    session_id: bytes
    base: bytes
    previous: tuple[SessionFacts, ...]


class KeptView(msgspec.Struct, frozen=True):
    """A master block that shard blocks may still refer to."""

    block_id: BlockId
    catchain_seqno: int
    time_ms: int
    is_crowded: bool
    sessions: tuple[bytes, ...]


class KeptSessions(msgspec.Struct, frozen=True):
    """`master`: the candidate of the master block that the snapshot was taken after."""

    master: bytes
    sessions: tuple[KeptSession, ...]
    views: tuple[KeptView, ...]

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(_SESSIONS_ID)
        writer.write_int256(self.master)
        writer.write_vector_count(len(self.sessions))
        for session in self.sessions:
            writer.write_int256(session.session_id)
            writer.write_int256(session.base)
            writer.write_vector_count(len(session.previous))
            for facts in session.previous:
                facts.write(writer)
        writer.write_vector_count(len(self.views))
        for view in self.views:
            view.block_id.write(writer)
            writer.write_unsigned_int(view.catchain_seqno)
            writer.write_long(view.time_ms)
            writer.write_unsigned_int(view.is_crowded)
            writer.write_vector_count(len(view.sessions))
            for session_id in view.sessions:
                writer.write_int256(session_id)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> KeptSessions:
        reader = Reader(data)
        reader.read_constructor(_SESSIONS_ID)
        master = reader.read_int256()
        count = reader.read_vector_count(SESSIONS_KEPT_MAX, _SESSION_BYTES_MIN)
        sessions = tuple(_read_session(reader) for _ in range(count))
        count = reader.read_vector_count(VIEWS_KEPT_MAX, _VIEW_BYTES_MIN)
        views = tuple(_read_view(reader) for _ in range(count))
        reader.expect_end()
        return cls(master, sessions, views)


class Snapshot(msgspec.Struct, frozen=True):
    """All that is needed to go on from a master block: its state, the states of the blocks that shards stand upon, and
    what is known of sessions. Its parts are kept together or not at all.

    `checkpoint`, of a node that makes proofs: the newest key block at that moment, as verifiers keep it; `key_blocks`:
    the parts of proofs that lead from the genesis to it. Both are empty at other nodes.
    """

    block_id: BlockId
    master: bytes
    sessions: bytes
    states: tuple[tuple[BlockId, bytes], ...]
    checkpoint: bytes = b""
    key_blocks: tuple[bytes, ...] = ()


class History(Protocol):
    """A store of blocks and snapshots. Blocks are stored before anybody acts upon them.

    A block may be deleted only if a snapshot covers it: if it was stored before the snapshot's master block,
    and is not of a session that was at work then. The blocks whose states the snapshot holds must stay, for
    they prove these states.
    """

    def keep_block(self, kept: KeptBlock) -> None: ...

    def keep_snapshot(self, snapshot: Snapshot) -> None: ...

    def drop_after(self, session_id: bytes, candidate: bytes) -> Sequence[KeptBlock]:
        """Delete and return the blocks of a session that were stored after `candidate`; all of them if that is the
        session's id. No final master block may hold one of them.
        """
        ...

    def blocks(self) -> Iterable[KeptBlock]:
        """Return the blocks in the order in which they were stored."""
        ...

    def snapshot(self) -> Snapshot | None:
        """Return the last snapshot; None if there is none."""
        ...


class MemoryHistory:
    """A history in memory that keeps everything."""

    def __init__(self) -> None:
        self._blocks: list[KeptBlock] = []
        self._snapshot: Snapshot | None = None

    def keep_block(self, kept: KeptBlock) -> None:
        self._blocks.append(kept)

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def drop_after(self, session_id: bytes, candidate: bytes) -> Sequence[KeptBlock]:
        dropped = after([one for one in self._blocks if one.session_id == session_id], candidate)
        self._blocks = [one for one in self._blocks if one not in dropped]
        return dropped

    def blocks(self) -> Iterable[KeptBlock]:
        return tuple(self._blocks)

    def snapshot(self) -> Snapshot | None:
        return self._snapshot


def after(blocks: Sequence[KeptBlock], candidate: bytes) -> Sequence[KeptBlock]:
    """Return the blocks of one session, in order, that stand behind `candidate`."""
    place = next((place for place, one in enumerate(blocks, start=1) if one.candidate == candidate), 0)
    return tuple(blocks[place:])


def _read_session(reader: Reader) -> KeptSession:
    session_id, base = reader.read_int256(), reader.read_int256()
    count = reader.read_vector_count(SESSIONS_KEPT_MAX, _FACTS_BYTES_MIN)
    return KeptSession(session_id, base, tuple(_read_facts(reader) for _ in range(count)))


def _read_view(reader: Reader) -> KeptView:
    block_id, catchain_seqno = read_block_id(reader), reader.read_unsigned_int()
    time_ms, is_crowded = reader.read_long(), reader.read_unsigned_int()
    if is_crowded > 1:
        raise TlDecodeError(
            f"the view before offset {reader.offset} has {is_crowded} for `is_crowded`; it is 0 or 1"
        )
    count = reader.read_vector_count(SESSIONS_KEPT_MAX, 32)
    return KeptView(
        block_id, catchain_seqno, time_ms, bool(is_crowded), tuple(reader.read_int256() for _ in range(count))
    )


def _read_facts(reader: Reader) -> SessionFacts:
    workchain, shard, vertical = reader.read_int(), reader.read_unsigned_long(), reader.read_int()
    key_block, catchain, config_hash = reader.read_int(), reader.read_int(), reader.read_int256()
    count = reader.read_vector_count(MEMBERS_MAX, _MEMBER_BYTES)
    members = tuple(
        Member(reader.read_int256(), reader.read_int256(), reader.read_long()) for _ in range(count)
    )
    return SessionFacts(workchain, shard, vertical, key_block, catchain, config_hash, members)
