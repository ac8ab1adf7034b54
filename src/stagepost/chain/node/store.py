"""Store of a validator's chain: final blocks with their proofs, a snapshot, and the validator's votes in agreement.

One file and one fsync for everything that waits. What was said in agreement is written before it is spoken; it goes in
the same transaction that brings the final block which makes it useless. Final blocks are written in the order in which
the ledger takes them in: a crash takes the last of them at most, and those come again, out of our own records or from
others, for whoever voted for them has them on disk.

What a validator keeps of the chain, as rows: final blocks in order, one snapshot, what it said in agreement.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from stagepost.chain.agreement.effects import Record
from stagepost.chain.following import CLOSING
from stagepost.chain.genesis import Genesis
from stagepost.chain.history import KeptBlock, KeptSessions, Snapshot, after
from stagepost.chain.master_block import decode_master_block
from stagepost.chain.node.block_archive import ArchivedBlock, BlockArchive
from stagepost.chain.node.final_proof import Proof, final_block
from stagepost.chain.shard_block import id_of
from stagepost.errors import StorageError
from stagepost.ground.storage.group_writer import Backend, FileBackend, GroupWriter, Written
from stagepost.ground.storage.layout import Beginning
from stagepost.ground.storage.owned_folder import open_owned
from stagepost.ground.storage.simulated_disk import MemoryBackend, TablesDisk
from stagepost.ground.storage.sqlite_file import Connect, connect
from stagepost.ground.storage.tables import Draft, Held, Table
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
    """A snapshot; rows of releases without the last two columns have them empty."""

    block_id: bytes
    master: bytes
    sessions: bytes
    states: tuple[tuple[bytes, bytes], ...]
    checkpoint: bytes = b""
    key_blocks: tuple[bytes, ...] = ()


BLOCKS: Table[int, KeptBlock] = Table("blocks", int, KeptBlock)
SNAPSHOTS: Table[int, SnapshotRow] = Table("snapshots", int, SnapshotRow)
RECORDS: Table[int, RecordRow] = Table("records", int, RecordRow)
GENESIS: Table[str, bytes] = Table("genesis", str, bytes)

TABLES = (BLOCKS, SNAPSHOTS, RECORDS, GENESIS)

NETWORK_BEGINS = Beginning(
    2,
    "its chain was made before network version 1, and this release cannot continue it",
    "give the new network a data folder of its own; topics, tables and outboxes in the old one stay readable",
)
"""Files of validators from network version 1 on. Its hashes differ from all before, so nothing is migrated."""


class ChainBook:
    """Changes of rows, each of which happens whole or not at all."""

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
    return SnapshotRow(
        _written(snapshot.block_id),
        snapshot.master,
        snapshot.sessions,
        states,
        snapshot.checkpoint,
        snapshot.key_blocks,
    )


def snapshot_in(row: SnapshotRow) -> Snapshot:
    states = tuple((_read(block_id), state) for block_id, state in row.states)
    return Snapshot(_read(row.block_id), row.master, row.sessions, states, row.checkpoint, row.key_blocks)


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


STORE_FILE = "chain.sqlite"


class ChainStore:
    """A `History`. `damage` has one sentence for each thing that was wrong when it was opened: then some of what we said
    may be missing. `keeps_all`: a snapshot replaces nothing, and the chain can be replayed from its genesis. `archive`:
    blocks that a snapshot stands for go there; the store neither holds nor loads them any more. `makes_proofs`: they go only
    with a snapshot that has a checkpoint."""

    def __init__(
        self,
        held: Held,
        damage: Sequence[str],
        backend: Backend,
        genesis: Genesis,
        *,
        keeps_all: bool = False,
        archive: BlockArchive | None = None,
        makes_proofs: bool = True,
    ) -> None:
        _require_same(held, genesis)
        self.damage = tuple(damage) + (archive.damage if archive is not None else ())
        self.keeps_all = keeps_all
        self._archive = archive
        self._makes_proofs = makes_proofs
        self._archive_fault: StorageError | None = None
        self.on_error: Callable[[StorageError], None] | None = None
        self._writer = GroupWriter(backend, ChainBook, on_error=self._report)
        row = held[SNAPSHOTS.name].get(THE_SNAPSHOT)
        self._snapshot = None if row is None else snapshot_in(row)
        self._blocks: dict[int, KeptBlock] = {}
        self._ids: dict[int, BlockId | None] = {}
        self._slots: dict[bytes, list[int]] = {}
        self._of_session: dict[bytes, list[KeptBlock]] = {}
        blocks: dict[int, KeptBlock] = dict(held[BLOCKS.name])
        unfit = [number for number in sorted(blocks) if not self._take(number, blocks[number])]
        self._next_block = max(blocks, default=0) + 1
        records: dict[int, RecordRow] = dict(held[RECORDS.name])
        self._next_record = max(records, default=0) + 1
        self._records: dict[bytes, dict[int, int | None]] = {}
        self._found: dict[bytes, list[bytes]] = {}
        for number in sorted(records):
            one = records[number]
            self._records.setdefault(one.session_id, {})[number] = one.slot
            self._found.setdefault(one.session_id, []).append(one.frame)
        self._unfit = unfit
        self._genesis = None if THE_GENESIS in held[GENESIS.name] else genesis.encode()
        if unfit:
            self.damage += (f"{len(unfit)} final blocks were left out: those before them are missing",)

    @property
    def fault(self) -> StorageError | None:
        """Return why the disk refuses what is written now; None while it takes everything."""
        return self._writer.fault or self._archive_fault

    def begin(self) -> None:
        """On the event loop that everything is written from."""
        unfit, genesis = self._unfit, self._genesis
        if unfit:
            self._writer.soon(lambda book: book.drop_blocks(unfit))
        if genesis is not None:
            self._writer.soon(lambda book: book.put_genesis(genesis))

    # Final blocks: what the ledger asks of a history

    def keep_block(self, kept: KeptBlock) -> None:
        number = self._next_block
        if not self._take(number, kept):
            return  # it was kept before a restart that found it waiting for others
        self._next_block += 1
        slot = self._slots[kept.session_id][-1]
        said = self._records.get(kept.session_id, {})
        settled = [one for one, until in said.items() if until is not None and until <= slot]
        for one in settled:
            del said[one]
        self._writer.soon(lambda book: book.put_block(number, kept, settled))

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        row, covered = row_of(snapshot), self._covered_by(snapshot)
        if self._archive is None or not covered:
            self._let_go(covered)
            self._writer.soon(lambda book: book.put_snapshot(row, covered))
            return
        self._writer.soon(lambda book: book.put_snapshot(row, ()))
        places = {id(kept): place for known in self._of_session.values() for place, kept in enumerate(known)}
        blocks = [self._blocks[number] for number in covered]
        at_ms = max((view.time_ms for view in KeptSessions.decode(snapshot.sessions).views), default=0)
        self._archive.put(
            [ArchivedBlock(places[id(kept)], at_ms, kept) for kept in blocks],
            lambda fault: self._archived(covered, fault),
        )

    def _archived(self, covered: Sequence[int], fault: StorageError | None) -> None:
        """Let go of blocks that the archive has on disk. Where the disk refused, they go with the next snapshot."""
        self._archive_fault = fault
        if fault is not None:
            self._report(fault)
            return
        there = [number for number in covered if number in self._blocks]
        self._let_go(there)
        self._writer.soon(lambda book: book.drop_blocks(there))

    def _let_go(self, covered: Sequence[int]) -> None:
        for number in covered:
            kept = self._blocks.pop(number)
            del self._ids[number]
            self._of_session.pop(kept.session_id, None)
            self._slots.pop(kept.session_id, None)

    def drop_after(self, session_id: bytes, candidate: bytes) -> Sequence[KeptBlock]:
        known = self._of_session.get(session_id, [])
        dropped = after(known, candidate)
        if dropped:
            stay = len(known) - len(dropped)
            del known[stay:], self._slots[session_id][stay:]
            numbers = [number for number, kept in self._blocks.items() if kept in dropped]
            for number in numbers:
                del self._blocks[number], self._ids[number]
            self._writer.soon(lambda book: book.drop_blocks(numbers))
        return dropped

    def blocks(self) -> Iterable[KeptBlock]:
        return tuple(self._blocks.values())

    def snapshot(self) -> Snapshot | None:
        return self._snapshot

    # Final blocks: what others ask for

    def of_session(self, session_id: bytes) -> Sequence[KeptBlock]:
        """In order, the first at place 0."""
        return self._of_session.get(session_id, ())

    @property
    def has_archive(self) -> bool:
        return self._archive is not None

    async def read_archive(
        self, session_id: bytes, first: int, count_max: int, bytes_max: int
    ) -> list[KeptBlock]:
        """Return blocks of a session that the archive has, from place `first` on; see `BlockArchive.read`."""
        if self._archive is None:
            return []
        return await self._archive.read(session_id, first, count_max, bytes_max)

    def archived(self, session_id: bytes, slot: int) -> bytes | None:
        """The record of the first final block of this slot or a later one."""
        slots = self._slots.get(session_id, [])
        place = bisect_left(slots, slot)
        return final_block(self._of_session[session_id][place]).encode() if place < len(slots) else None

    # Agreement

    @property
    def sessions(self) -> list[bytes]:
        """Return the sessions of which the store holds votes."""
        return list(self._records)

    def load_records(self, session_id: bytes) -> list[bytes]:
        """Return what the store held when it was opened. Callable once."""
        return self._found.pop(session_id, [])

    def put_records(self, session_id: bytes, records: Sequence[Record], written: Written) -> None:
        rows: list[tuple[int, RecordRow]] = []
        said = self._records.setdefault(session_id, {})
        for record in records:
            said[self._next_record] = record.slot
            rows.append((self._next_record, RecordRow(session_id, record.slot, record.frame)))
            self._next_record += 1

        self._writer.owe(lambda book: book.put_records(rows), written)

    def end_session(self, session_id: bytes) -> None:
        """Forget the votes of a session that is over: the block that ended it stands before this change in the file."""
        self._found.pop(session_id, None)
        gone = list(self._records.pop(session_id, ()))
        if gone:
            self._writer.soon(lambda book: book.drop_records(gone))

    async def close(self) -> None:
        if self._archive is not None:
            await self._archive.close()
        await self._writer.close()

    # Details

    def _take(self, number: int, kept: KeptBlock) -> bool:
        """Return whether the block follows what is known of its session."""
        proof = Proof.decode(kept.certificate)
        known = self._of_session.setdefault(kept.session_id, [])
        if proof.parent != (known[-1].candidate if known else kept.session_id):
            return False
        known.append(kept)
        self._slots.setdefault(kept.session_id, []).append(proof.certificate.slot)
        self._blocks[number] = kept
        self._ids[number] = _id_of(kept.payload)
        return True

    def _covered_by(self, snapshot: Snapshot) -> list[int]:
        """Whole sessions that had ended before it, but for the blocks that prove its states."""
        if self.keeps_all or (self._archive is not None and self._makes_proofs and not snapshot.checkpoint):
            return []  # without a checkpoint, proofs of the next life begin at the first block
        order = next((number for number, one in self._ids.items() if one == snapshot.block_id), 0)
        at_work = sessions_in(snapshot)
        proving = {snapshot.block_id, *(block_id for block_id, _ in snapshot.states)}
        stay = {
            kept.session_id
            for number, kept in self._blocks.items()
            if number > order or kept.session_id in at_work or self._ids[number] in proving
        }
        return [number for number, kept in self._blocks.items() if kept.session_id not in stay]

    def _report(self, error: StorageError) -> None:
        if self.on_error is not None:
            self.on_error(error)


def _id_of(payload: bytes) -> BlockId | None:
    if payload == CLOSING:
        return None
    return id_of(payload) or decode_master_block(payload).block_id(payload)


def _require_same(held: Held, genesis: Genesis) -> None:
    there = held[GENESIS.name].get(THE_GENESIS)
    if there is not None and there != genesis.encode():
        other = Genesis.decode(there)
        raise StorageError(
            f"the chain in the data folder is {other.name} ({other.hash.hex()}), "
            f"this is {genesis.name} ({genesis.hash.hex()})",
            advice="give the genesis that the data folder was made with, or another folder",
        )


def open_chain_store(
    folder: Path,
    genesis: Genesis,
    *,
    keeps_all: bool = False,
    has_archive: bool = False,
    archive_keep_ms: int | None = None,
    makes_proofs: bool = True,
    connect: Connect = connect,
) -> ChainStore:
    """`LockConflict` if another process has the folder, `StorageError` if it cannot be used."""
    file, lock = open_owned(folder, STORE_FILE, TABLES, "store of the chain", connect, NETWORK_BEGINS)
    try:
        archive = BlockArchive(folder, keep_ms=archive_keep_ms, connect=connect) if has_archive else None
        backend = FileBackend(file, "chain", lock.release, rests=True)
        return ChainStore(
            *(file.held, file.damage, backend, genesis),
            keeps_all=keeps_all,
            archive=archive,
            makes_proofs=makes_proofs,
        )
    except BaseException:
        file.close()
        lock.release()
        raise


class ChainDisk(TablesDisk):
    """Outlives the stores on it: `crash` is a power cut, `kill` the end of a process alone."""

    def __init__(self, sync_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(TABLES, sync_s)


class MemoryChainStore(ChainStore):
    """On a simulated disk. `is_safe=False` is a planted defect: it answers before it has synced."""

    def __init__(
        self, disk: ChainDisk, genesis: Genesis, *, keeps_all: bool = False, is_safe: bool = True
    ) -> None:
        backend = MemoryBackend(disk, is_safe=is_safe)
        super().__init__(backend.held, (), backend, genesis, keeps_all=keeps_all)
