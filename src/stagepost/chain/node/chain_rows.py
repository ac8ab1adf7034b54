"""What a validator keeps of the chain, as rows: final blocks in order, one snapshot, what it said in agreement."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stagepost.chain.history import KeptBlock, KeptSessions, Snapshot
from stagepost.ground.storage.tables import Draft, Table
from stagepost.ground.wire.tl import Reader, Writer
from stagepost.remp.shard import BlockId, read_block_id

THE_GENESIS = "genesis"
THE_SNAPSHOT = 1


class RecordRow(msgspec.Struct, frozen=True, array_like=True):
    """`slot`: with the block of which it may go; None for as long as the session lives."""

    session_id: bytes
    slot: int | None
    frame: bytes


class SnapshotRow(msgspec.Struct, frozen=True, array_like=True):
    block_id: bytes
    master: bytes
    sessions: bytes
    states: tuple[tuple[bytes, bytes], ...]


BLOCKS: Table[int, KeptBlock] = Table("blocks", int, KeptBlock)
SNAPSHOTS: Table[int, SnapshotRow] = Table("snapshots", int, SnapshotRow)
RECORDS: Table[int, RecordRow] = Table("records", int, RecordRow)
GENESIS: Table[str, bytes] = Table("genesis", str, bytes)

TABLES = (BLOCKS, SNAPSHOTS, RECORDS, GENESIS)


class ChainBook:
    """How rows are changed. Everything here happens whole or not at all."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def put_genesis(self, genesis: bytes) -> None:
        self._draft.put(GENESIS, THE_GENESIS, genesis)

    def put_records(self, rows: Sequence[tuple[int, RecordRow]]) -> None:
        for number, row in rows:
            self._draft.put(RECORDS, number, row)

    def put_block(self, number: int, kept: KeptBlock, settled: Sequence[int]) -> None:
        """Along with it go the records that are of no use once it is there."""
        self._draft.put(BLOCKS, number, kept)
        self.drop_records(settled)

    def put_snapshot(self, row: SnapshotRow, covered: Sequence[int]) -> None:
        """Along with it go the blocks that it stands for."""
        self._draft.put(SNAPSHOTS, THE_SNAPSHOT, row)
        for number in covered:
            self._draft.drop(BLOCKS, number)

    def drop_blocks(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._draft.drop(BLOCKS, number)

    def drop_records(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._draft.drop(RECORDS, number)

    def finish(self) -> None:
        pass


def row_of(snapshot: Snapshot) -> SnapshotRow:
    states = tuple((_written(block_id), state) for block_id, state in snapshot.states)
    return SnapshotRow(_written(snapshot.block_id), snapshot.master, snapshot.sessions, states)


def snapshot_in(row: SnapshotRow) -> Snapshot:
    states = tuple((_read(block_id), state) for block_id, state in row.states)
    return Snapshot(_read(row.block_id), row.master, row.sessions, states)


def sessions_in(snapshot: Snapshot) -> frozenset[bytes]:
    """At work when it was taken."""
    return frozenset(one.session_id for one in KeptSessions.decode(snapshot.sessions).sessions)


def _written(block_id: BlockId) -> bytes:
    writer = Writer()
    block_id.write(writer)
    return writer.written()


def _read(data: bytes) -> BlockId:
    reader = Reader(data)
    block_id = read_block_id(reader)
    reader.expect_end()
    return block_id
