"""The chain in a data folder as another process sees it: read beside the validator that writes it, and
nothing believed.

Every block is replayed from the genesis or the snapshot, and every certificate is verified with the keys of
the session that gave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stagepost.chain.following import CLOSING
from stagepost.chain.genesis import Genesis
from stagepost.chain.history import KeptBlock, Snapshot, after
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.master_block import decode_master_block
from stagepost.chain.master_state import MASTER_SHARD
from stagepost.chain.node.final_proof import FinalChain, Proof, final_block
from stagepost.chain.node.store import (
    BLOCKS,
    GENESIS,
    NETWORK_BEGINS,
    SNAPSHOTS,
    STORE_FILE,
    TABLES,
    THE_GENESIS,
    THE_SNAPSHOT,
    snapshot_in,
)
from stagepost.chain.shard_block import decode_shard_block, id_of
from stagepost.chain.snapshots import restored
from stagepost.errors import StagepostError, StorageError
from stagepost.ground.storage.owned_folder import holder
from stagepost.ground.storage.table_file import read_beside
from stagepost.remp.ledger import LedgerSession, MasterApplied
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import BlockId


class SessionSummary(msgspec.Struct, frozen=True):
    """`height`: the number of its last block in its shard; `certificates` by kind. `fault`: why its proofs do
    not hold; `is_checked`: False for a session that ended before the snapshot, whose validators this reader
    does not know.
    """

    session_id: str
    shard: str
    catchain_seqno: int | None
    validators: int | None
    is_at_work: bool
    blocks: int
    height: int
    last_slot: int
    certificates: dict[str, int]
    is_checked: bool
    fault: str | None = None
    unproved: int = 0
    """Blocks at the end of the session that were known as final when the process stopped, by a later block
    that was not written any more.
    """


class ShardSummary(msgspec.Struct, frozen=True):
    """`height` is that of the last block in the masterchain, `final` that of the last final block."""

    shard: str
    session_id: str
    catchain_seqno: int
    height: int
    final: int
    state_hash: str


class ChainSummary(msgspec.Struct, frozen=True):
    folder: str
    network: str
    name: str
    master_height: int
    master_catchain_seqno: int
    master_time_ms: int
    master_state_hash: str
    from_snapshot: int | None
    blocks: int
    shards: tuple[ShardSummary, ...]
    sessions: tuple[SessionSummary, ...]
    damage: tuple[str, ...] = ()

    @property
    def faults(self) -> list[str]:
        bad = [f"session {one.session_id}: {one.fault}" for one in self.sessions if one.fault is not None]
        return [*self.damage, *bad]


def chain_folders(data: Path) -> list[Path]:
    """Return the folders with a chain: this one, or those of the validators in it."""
    found = [data, data / "chain", *sorted(data.glob("*")), *sorted(data.glob("*/chain"))]
    folders = [folder for folder in dict.fromkeys(found) if (folder / STORE_FILE).exists()]
    if not folders:
        raise StorageError(
            f"there is no chain in {data}", advice="give the data folder of a validator or a full node"
        )
    return folders


class ChainContent(msgspec.Struct, frozen=True):
    """A `History` that was read, and stores nothing."""

    genesis: Genesis
    kept: tuple[KeptBlock, ...]
    taken: Snapshot | None
    damage: tuple[str, ...] = ()

    def keep_block(self, kept: KeptBlock) -> None:
        """Do nothing: a replayed block stays where it is."""

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        """Do nothing: a reader takes no snapshot."""

    def drop_after(self, session_id: bytes, candidate: bytes) -> Sequence[KeptBlock]:
        """Return the blocks, and delete nothing."""
        return after([one for one in self.kept if one.session_id == session_id], candidate)

    def blocks(self) -> Iterable[KeptBlock]:
        return self.kept

    def snapshot(self) -> Snapshot | None:
        return self.taken


def read_chain(folder: Path) -> ChainContent:
    """Read the chain; `StorageError` if there is none, or none that can be read."""
    in_use = holder(folder) is not None
    found = read_beside(
        folder / STORE_FILE, TABLES, "store of the chain", is_in_use=in_use, begins=NETWORK_BEGINS
    )
    genesis = found.held[GENESIS.name].get(THE_GENESIS)
    if genesis is None:
        raise StorageError(
            f"the chain in {folder} has no genesis", advice="wait until its validator has begun"
        )
    blocks, unfit = _fitting(found.held[BLOCKS.name])
    if unfit:
        found.damage.append(f"{unfit} final blocks are left out: those before them are missing")
    row = found.held[SNAPSHOTS.name].get(THE_SNAPSHOT)
    return ChainContent(
        Genesis.decode(genesis),
        tuple(blocks),
        None if row is None else snapshot_in(row),
        tuple(found.damage),
    )


def _fitting(rows: dict[int, KeptBlock]) -> tuple[list[KeptBlock], int]:
    """Return the blocks that follow the one before them in their session, and the number of those that do
    not.
    """
    tops: dict[bytes, bytes] = {}
    blocks: list[KeptBlock] = []
    for number in sorted(rows):
        kept = rows[number]
        if Proof.decode(kept.certificate).parent == tops.get(kept.session_id, kept.session_id):
            tops[kept.session_id] = kept.candidate
            blocks.append(kept)
    return blocks, len(rows) - len(blocks)


def read_ledger(folder: Path) -> EmbeddedLedger:
    """Return the ledger after the last block. `StorageError` if there is no chain, or none that can be read."""
    return _played(read_chain(folder))[0]


def show_chain(folder: Path) -> ChainSummary:
    content = read_chain(folder)
    ledger, sessions = _played(content)
    master = ledger.master
    at_work = {master.session.session_id, *ledger.following.chains}
    return ChainSummary(
        str(folder),
        content.genesis.hash.hex(),
        content.genesis.name,
        master.seqno,
        master.catchain_seqno,
        master.time_ms,
        master.hash.hex(),
        None if content.taken is None else content.taken.block_id.seqno,
        len(content.kept),
        tuple(_shards(ledger)),
        tuple(_sessions(content.kept, sessions, at_work)),
        content.damage,
    )


def _played(content: ChainContent) -> tuple[EmbeddedLedger, dict[bytes, LedgerSession]]:
    """Return the ledger after the last block, and all sessions that the replay met."""
    at = -1
    if content.taken is not None:
        at = next(
            (place for place, kept in enumerate(content.kept) if _id_of(kept) == content.taken.block_id), -1
        )
    ledger = restored(content.genesis, ChainContent(content.genesis, content.kept[: at + 1], content.taken))
    sessions = {one.session_id: one for one in (ledger.master_session(), *ledger.sessions())}
    for kept in content.kept[at + 1 :]:
        try:
            ledger.finalised(kept.session_id, kept.candidate, kept.payload, kept.certificate)
        except StagepostError as error:
            raise StorageError(
                f"the chain does not replay: {error.text}", advice="fetch it anew from other validators"
            ) from error
        for event in ledger.events():
            if isinstance(event, MasterApplied):
                sessions |= {one.session_id: one for one in event.started}
    return ledger, sessions


def _id_of(kept: KeptBlock) -> BlockId | None:
    if kept.payload == CLOSING:
        return None
    return id_of(kept.payload) or decode_master_block(kept.payload).block_id(kept.payload)


def _shards(ledger: EmbeddedLedger) -> Iterable[ShardSummary]:
    for entry in ledger.master.shards:
        chain = ledger.following.chains[entry.session.session_id]
        yield ShardSummary(
            _name(entry.shard),
            entry.session.session_id.hex(),
            entry.session.catchain_seqno,
            entry.seqno,
            chain.top.seqno,
            chain.top.hash.hex(),
        )


def _sessions(
    kept: Sequence[KeptBlock], known: dict[bytes, LedgerSession], at_work: set[bytes]
) -> Iterable[SessionSummary]:
    of_session: dict[bytes, list[KeptBlock]] = {session_id: [] for session_id in known}
    for one in kept:
        of_session.setdefault(one.session_id, []).append(one)
    committed = _committed(kept)
    for session_id, blocks in of_session.items():
        session = known.get(session_id)
        shard, height = _place(blocks)
        proofs = [Proof.decode(one.certificate).certificate for one in blocks]
        kinds = Counter(certificate.kind.name.lower() for certificate in proofs)
        yield SessionSummary(
            session_id.hex(),
            _name(shard if session is None else session.shard),
            None if session is None else session.catchain_seqno,
            None if session is None else len(session.public_keys),
            session_id in at_work,
            len(blocks),
            height,
            proofs[-1].slot if proofs else 0,
            dict(kinds),
            session is not None,
            *((None, 0) if session is None else _checked(session, blocks, committed)),
        )


def _checked(
    session: LedgerSession, blocks: Sequence[KeptBlock], committed: set[BlockId]
) -> tuple[str | None, int]:
    """Verify every certificate, and that each block is final by its own, by a later one's, or by the
    masterchain.

    Return what is wrong, or None, and the number of blocks at the end whose later block is not here: a
    process may be stopped between the two.
    """
    chain = FinalChain(session.session_id, session.public_keys)
    try:
        for number, kept in enumerate(blocks, start=1):
            if chain.offered(number, final_block(kept).encode(), committed) is None:
                return f"blocks {chain.count + 1} to {number - 1} have no proof that they are final", 0
    except StagepostError as error:
        return error.text, 0
    return None, len(blocks) - chain.count


def _committed(kept: Sequence[KeptBlock]) -> set[BlockId]:
    found: set[BlockId] = set()
    for one in kept:
        if one.payload != CLOSING and id_of(one.payload) is None:
            found |= {block_id for commit in decode_master_block(one.payload).commits for block_id in commit}
    return found


def _place(blocks: Sequence[KeptBlock]) -> tuple[Shard, int]:
    for kept in reversed(blocks):
        if kept.payload == CLOSING:
            continue
        if id_of(kept.payload) is not None:
            block = decode_shard_block(kept.payload)
            return block.shard, block.seqno
        return MASTER_SHARD, decode_master_block(kept.payload).seqno
    return MASTER_SHARD, 0


def _name(shard: Shard) -> str:
    return f"{shard.workchain}:{shard.prefix:016x}"
