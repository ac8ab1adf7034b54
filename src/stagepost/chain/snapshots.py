"""Restart of a ledger: from the last snapshot, or from the genesis, and then through every block stored after
it.
"""

from __future__ import annotations

from stagepost.chain.declined import Switches
from stagepost.chain.execution import MasterView
from stagepost.chain.following import CLOSING, FollowedChain, OnMaster
from stagepost.chain.genesis import Genesis
from stagepost.chain.history import (
    History,
    KeptBlock,
    KeptSession,
    KeptSessions,
    KeptView,
    MemoryHistory,
    Snapshot,
)
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.master_block import MASTER_BLOCK_ID, MasterBlock, decode_master_block
from stagepost.chain.master_state import decode_master_state
from stagepost.chain.shard_block import SHARD_BLOCK_ID, ShardBlock, decode_shard_block
from stagepost.chain.shard_state import ShardState, decode_state
from stagepost.errors import StorageError
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.shard import BlockId


def snapshot_of(ledger: EmbeddedLedger) -> Snapshot:
    """Take a snapshot after the last final master block. Shard blocks that wait for the masterchain are not
    in it: they are stored themselves.
    """
    following = ledger.following
    sessions = tuple(
        KeptSession(
            entry.session.session_id,
            following.chains[entry.session.session_id].base_hash,
            following.previous.get(entry.session.session_id, ()),
        )
        for entry in following.master.shards
    )
    views = tuple(
        KeptView(
            view.block_id,
            view.catchain_seqno,
            view.time_ms,
            view.is_crowded,
            tuple(sorted(view.sessions)),
        )
        for view in following.views.values()
    )
    master = following.master
    of_master = KeptSession(
        master.session.session_id,
        following.master_hash,
        following.previous.get(master.session.session_id, ()),
    )
    kept = KeptSessions(following.master_hash, (*sessions, of_master), views)
    states = tuple((block_id, state.encode()) for block_id, state in following.states.items())
    return Snapshot(master.block_id, master.encode(), kept.encode(), states)


def restored(
    genesis: Genesis,
    history: History,
    switches: Switches | None = None,
    on_master: OnMaster = lambda kept, applied: None,
) -> EmbeddedLedger:
    """Return the ledger as it was when the last block was stored; it has no events to report. `on_master` hears of
    every stored block of the masterchain. `StorageError` if the stored blocks are not of this chain.
    """
    ledger = EmbeddedLedger(genesis, MemoryHistory(), switches)
    following = ledger.following
    snapshot = history.snapshot()
    if snapshot is not None:
        _start_from(following, snapshot, _state_hashes(history))
    following.on_master = on_master
    for kept in history.blocks():
        if _is_new(following, kept):
            following.finalised(kept)
        elif kept.payload[:4] in (CLOSING, constructor_bytes(MASTER_BLOCK_ID)):
            on_master(kept, None)
    following.events.clear()
    following.kept = history
    return ledger


def _state_hashes(history: History) -> dict[BlockId, bytes]:
    """Return the hashes of the states that the stored blocks name."""
    found: dict[BlockId, bytes] = {}
    for kept in history.blocks():
        if kept.payload == CLOSING:
            continue
        block = _decoded(kept)
        found[block.block_id(kept.payload)] = block.state_hash
    return found


def _decoded(kept: KeptBlock) -> ShardBlock | MasterBlock:
    is_of_shard = kept.payload[:4] == constructor_bytes(SHARD_BLOCK_ID)
    return decode_shard_block(kept.payload) if is_of_shard else decode_master_block(kept.payload)


def _start_from(following: FollowedChain, snapshot: Snapshot, hashes: dict[BlockId, bytes]) -> None:
    master = decode_master_state(snapshot.master, snapshot.block_id)
    if master.network != following.master.network:
        raise StorageError(
            f"the snapshot is of network {master.network.hex()}, this is {following.master.network.hex()}",
            advice="give the genesis that the data folder was made with",
        )
    _compare(snapshot.block_id, master.hash, hashes)
    kept = KeptSessions.decode(snapshot.sessions)
    following.master, following.master_hash = master, kept.master
    following.states = {block_id: _state(block_id, data, hashes) for block_id, data in snapshot.states}
    following.previous = {one.session_id: one.previous for one in kept.sessions if one.previous}
    following.views = {
        view.block_id.seqno: MasterView(
            view.block_id,
            view.catchain_seqno,
            view.time_ms,
            frozenset(view.sessions),
            view.is_crowded,
            master.dues,
        )
        for view in kept.views
    }
    bases = {one.session_id: one.base for one in kept.sessions}
    following.chains = {}
    for entry in master.shards:
        following.start_chain(entry, bases[entry.session.session_id])


def _state(block_id: BlockId, data: bytes, hashes: dict[BlockId, bytes]) -> ShardState:
    state = decode_state(data, block_id)
    _compare(block_id, state.hash, hashes)
    return state


def _compare(block_id: BlockId, state_hash: bytes, hashes: dict[BlockId, bytes]) -> None:
    """Compare a state's hash with its block. A state before the first block has its own hash as root hash."""
    if state_hash != hashes.get(block_id, block_id.root_hash):
        raise StorageError(
            f"the snapshot's state after block {block_id.seqno} of shard {block_id.shard:016x} is not the one in it",
            advice="take the snapshot away, and begin from the blocks alone",
        )


def _is_new(following: FollowedChain, kept: KeptBlock) -> bool:
    """Return whether the snapshot does not contain the block. Blocks are stored in order, so a session that
    is not at work has ended before.
    """
    if kept.payload == CLOSING:
        return False
    block = _decoded(kept)
    if isinstance(block, MasterBlock):
        return block.seqno > following.master.seqno
    chain = following.chains.get(kept.session_id)
    return chain is not None and block.seqno > chain.top.seqno
