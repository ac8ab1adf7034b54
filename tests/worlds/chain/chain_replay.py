"""Replay of a chain from its genesis, block by block: an oracle that needs nothing but the blocks.

The replay knows nothing of sessions' candidates, of the time at which blocks became final, or of what a
validator remembers: only blocks in the masterchain count.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stagepost.chain.declined import DeclinedCandidate
from stagepost.chain.execution import MasterView
from stagepost.chain.genesis import Genesis, first_states
from stagepost.chain.master_block import MASTER_BLOCK_ID, decode_master_block
from stagepost.chain.master_blocks import check_master_block
from stagepost.chain.master_state import MasterState, ShardEntry
from stagepost.chain.shard_block import decode_shard_block
from stagepost.chain.shard_blocks import AppliedBlock, check_block
from stagepost.chain.shard_state import ShardState, start_state
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import BlockId


class ReplayedChain(msgspec.Struct, frozen=True):
    """`shards`: the state after each shard's last block in the masterchain; after a split, the parent's part
    of it. `order`: the blocks in the masterchain, in the order in which it committed them.
    """

    master: MasterState
    shards: dict[Shard, ShardState]
    order: tuple[AppliedBlock, ...]


def replay(genesis: Genesis, payloads: Iterable[bytes]) -> ReplayedChain:
    """Replay the blocks. `payloads` may come in any order, and may hold blocks that never were committed.

    Raise `DecodeError` if the chain is not sound: it names the first block that does not follow from those
    before it.
    """
    masters: dict[BlockId, list[bytes]] = {}
    shards: dict[BlockId, bytes] = {}
    for payload in payloads:
        if not payload:
            continue  # it closed a session, and changed nothing
        if payload[:4] == constructor_bytes(MASTER_BLOCK_ID):
            masters.setdefault(decode_master_block(payload).previous, []).append(payload)
        else:
            shards[decode_shard_block(payload).block_id(payload)] = payload
    return _Replay(genesis, shards).run(masters)


class _Replay:
    def __init__(self, genesis: Genesis, payloads: dict[BlockId, bytes]) -> None:
        first = first_states(genesis)
        self._payloads = payloads
        self._master = first.master
        self._views: dict[int, MasterView] = {0: first.master.view}
        self._states: dict[BlockId, ShardState] = {first.master.shards[0].tops[0]: first.shard}
        self._order: list[AppliedBlock] = []

    def run(self, masters: dict[BlockId, list[bytes]]) -> ReplayedChain:
        while following := masters.get(self._master.block_id):
            if len(set(following)) > 1:
                raise TlDecodeError(f"two master blocks follow number {self._master.seqno}")
            self._step(following[0])
        shards = {entry.shard: self._base(entry) for entry in self._master.shards}
        return ReplayedChain(self._master, shards, tuple(self._order))

    def _step(self, payload: bytes) -> None:
        block = decode_master_block(payload)
        known: dict[BlockId, AppliedBlock] = {}
        for commit in block.commits:
            for block_id in commit:
                known[block_id] = self._play(block_id)
        applied = check_master_block(
            self._master, self._master.session.session_id, known, payload, None, wanted=None
        )
        if isinstance(applied, DeclinedCandidate):
            raise TlDecodeError(f"master block {block.seqno} does not follow: {applied.reason}")
        self._order += known.values()
        self._master = applied.state
        self._views[applied.state.seqno] = applied.state.view
        tops = {source.block_id for entry in self._master.shards for source in entry.sources}
        self._states = {block_id: self._states[block_id] for block_id in tops}

    def _play(self, block_id: BlockId) -> AppliedBlock:
        name = f"block {block_id.seqno} of shard {block_id.shard:016x}"
        payload = self._payloads.get(block_id)
        if payload is None:
            raise TlDecodeError(f"{name} is in the masterchain and not among the blocks")
        block = decode_shard_block(payload)
        entry = self._master.entry_of(block.shard)
        if entry is None:
            raise TlDecodeError(f"{name} is of a shard that is not there")
        is_first = block.previous == entry.tops
        state = self._base(entry) if is_first else self._states.get(block.previous[0])
        if state is None:
            raise TlDecodeError(f"{name} stands upon a block that the masterchain does not hold")
        applied = check_block(
            state, entry.session.session_id, self._master.configuration, self._views, payload, None
        )
        if isinstance(applied, DeclinedCandidate):
            raise TlDecodeError(f"{name} does not follow: {applied.reason}")
        self._states[block_id] = applied.state
        return applied

    def _base(self, entry: ShardEntry) -> ShardState:
        """Return the state after the shard's last block, or, while the session has none, the state that it
        starts from: then the blocks that it stands upon have credited less than what was due when it started.
        """
        if all(source.credited_to >= entry.session.started_by for source in entry.sources):
            return self._states[entry.tops[0]]
        started_by = self._views[entry.session.started_by]
        return start_state(
            entry.shard,
            entry.sources,
            self._states,
            dues=started_by.dues,
            master_seqno=started_by.seqno,
            time_ms=started_by.time_ms,
        )
