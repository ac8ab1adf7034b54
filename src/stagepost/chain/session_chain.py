"""The blocks of one shard session, as one validator knows them: candidates, and the chain of those that are final."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stagepost.chain.configuration import Configuration
from stagepost.chain.declined import DeclinedCandidate, Rule
from stagepost.chain.execution import MasterView
from stagepost.chain.shard_blocks import AppliedBlock, check_block, make_block
from stagepost.chain.shard_state import ShardState
from stagepost.errors import LocalProtocolError
from stagepost.remp.ledger import CollatedBlock
from stagepost.remp.message import ExternalMessage
from stagepost.remp.shard import BlockId

CANDIDATES_MAX = 1_024
"""Blocks of a session that are not final, at most; a further one displaces the oldest."""


class SessionChain:
    """`base` is the state after the last block that the masterchain holds, `base_hash` the hash of its
    candidate; the session's id, as long as there is no such block.
    """

    def __init__(
        self, session_id: bytes, configuration: Configuration, base: ShardState, base_hash: bytes
    ) -> None:
        self.session_id = session_id
        self.configuration = configuration
        self.base_hash = base_hash
        self._states: dict[bytes, ShardState] = {base_hash: base}
        self._candidates: dict[bytes, AppliedBlock] = {}
        self._by_id: dict[BlockId, AppliedBlock] = {}
        self._top = base
        self.own: set[BlockId] = set()
        self.final: list[tuple[bytes, AppliedBlock]] = []

    @property
    def top(self) -> ShardState:
        """The state after the last final block."""
        return self._top

    @property
    def top_hash(self) -> bytes:
        """Hash of the last final candidate."""
        return self.final[-1][0] if self.final else self.base_hash

    def state_after(self, candidate: bytes) -> ShardState | None:
        """Return the state after a candidate; None if it is not known here, or lost its place."""
        return self._states.get(candidate)

    def make(
        self, parent: bytes, view: MasterView, messages: Iterable[ExternalMessage], now_ms: int
    ) -> tuple[AppliedBlock, CollatedBlock] | None:
        """Make a candidate. Return None if the parent is not known here, or if the session has ended in this
        view.
        """
        state = self._states.get(parent)
        if state is None or self.session_id not in view.sessions:
            return None
        applied, collated = make_block(state, self.session_id, self.configuration, view, messages, now_ms)
        self._remember(applied)
        self.own.add(applied.block_id)
        return applied, collated

    def check(
        self,
        candidate: bytes,
        parent: bytes,
        views: Mapping[int, MasterView],
        payload: bytes,
        now_ms: int | None,
    ) -> AppliedBlock | DeclinedCandidate:
        known = self._candidates.get(candidate)
        if known is not None:
            return known
        state = self._states.get(parent)
        if state is None:
            return DeclinedCandidate(Rule.WRONG_PARENT, f"candidate {parent.hex()} is not known here")
        result = self._known_by_id(payload, state) or check_block(
            state, self.session_id, self.configuration, views, payload, now_ms
        )
        if isinstance(result, AppliedBlock):
            self._remember(result)
            self._candidates[candidate] = result
            self._states[candidate] = result.state
            while len(self._candidates) > CANDIDATES_MAX:
                self._forget(next(iter(self._candidates)))
        return result

    def finalise(self, candidate: bytes, applied: AppliedBlock) -> list[AppliedBlock]:
        """Make the candidate the last final block. Return the blocks that have lost their place to it."""
        self.final.append((candidate, applied))
        self._top = applied.state
        self._states[candidate] = applied.state
        self._by_id.pop(applied.block_id, None)
        lost = [one for one in self._by_id.values() if one.block.seqno <= applied.block.seqno]
        for known, one in list(self._candidates.items()):
            if one.block.seqno <= applied.block.seqno:
                self._candidates.pop(known)
                if known != candidate:
                    self._states.pop(known, None)
        for one in lost:
            self.lose(one.block_id)
        self.own.discard(applied.block_id)
        if len(self.final) > 1:
            self._states.pop(self.final[-2][0], None)
        else:
            self._states.pop(self.base_hash, None)
        return lost

    def commit(self, blocks: Iterable[AppliedBlock]) -> None:
        """Note that the masterchain holds these blocks, which are the first of the final ones."""
        for applied in blocks:
            candidate, first = self.final[0]
            if first.block_id != applied.block_id:
                raise LocalProtocolError(
                    f"block {applied.block_id} is committed where {first.block_id} is the next final one",
                    reason="CommitOutOfOrder",
                )
            self.final.pop(0)
            self.base_hash = candidate

    def open_candidates(self) -> list[AppliedBlock]:
        return list(self._by_id.values())

    def lose(self, block_id: BlockId) -> None:
        """Forget a candidate that will never be final."""
        self._by_id.pop(block_id, None)
        self.own.discard(block_id)

    def _known_by_id(self, payload: bytes, state: ShardState) -> AppliedBlock | None:
        """Return a block that we made or checked under another candidate's hash; None if there is none."""
        for one in reversed(self._by_id.values()):
            if one.payload == payload:
                return one if one.block.previous == state.previous else None
        return None

    def _remember(self, applied: AppliedBlock) -> None:
        self._by_id[applied.block_id] = applied
        while len(self._by_id) > CANDIDATES_MAX:
            self.lose(next(iter(self._by_id)))

    def _forget(self, candidate: bytes) -> None:
        self._candidates.pop(candidate)
        self._states.pop(candidate, None)
