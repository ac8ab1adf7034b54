"""The chain as one validator follows it: final blocks go in, in whatever order sessions bring them; states
and events come out.

Every validator follows every shard, for a session may start from any shard's blocks. Final blocks may come
early: a shard block that refers to a master block we have not seen waits for it, and a master block waits for
the shard blocks that it commits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

import msgspec

from stagepost.chain.configuration import Configuration
from stagepost.chain.declined import MAY_WAIT, DeclinedCandidate, Rule
from stagepost.chain.execution import MasterView
from stagepost.chain.genesis import FirstStates
from stagepost.chain.history import History, KeptBlock
from stagepost.chain.known_sessions import master_session, previous_of, shard_session
from stagepost.chain.master_block import decode_master_block
from stagepost.chain.master_blocks import AppliedMaster, check_master_block, provable
from stagepost.chain.master_state import MasterState, ShardEntry
from stagepost.chain.messages import read_message
from stagepost.chain.session_chain import CANDIDATES_MAX, SessionChain
from stagepost.chain.shard_block import decode_shard_block, id_of
from stagepost.chain.shard_blocks import AppliedBlock
from stagepost.chain.shard_state import ShardState, start_state
from stagepost.errors import LocalProtocolError
from stagepost.remp.ledger import (
    CandidateLost,
    FinalBlock,
    LedgerEvent,
    MasterApplied,
    ShardCommitted,
    ShardDropped,
)
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.session_switch import CATCHAINS_OF_LIFE
from stagepost.remp.sessions import SessionFacts
from stagepost.remp.shard import BlockId, Shard

WAITING_MAX = 10_000
"""Final blocks, at most, that wait for others; a node that is further behind must begin from a snapshot."""

CLOSING = b""
"""Payload of a candidate upon the block that ends a session of the masterchain: it is empty and changes
nothing. Agreement may need it to make that block final; a block of the new session cannot, and one of the old
session would come too late.
"""

ENDED_MAX = 4_096
"""Ended sessions, at most, that are remembered as ended."""

EVIDENCE_MAX = 64
"""Sessions, at most, whose bad block is kept as evidence; then the oldest evidence is forgotten."""


class CertifiedFault(msgspec.Struct, frozen=True):
    """A shard block that its session made final although it does not follow, or besides another one at its place: a
    quorum of that session lied. The masterchain commits only blocks that its members executed, so the block ends the
    work of its session and nothing else.
    """

    kept: KeptBlock
    reason: str


OnMaster = Callable[[KeptBlock, AppliedMaster | None], None]
"""Called with each final block of the masterchain, in order; without an applied block for one that closed a session."""


class FollowedChain:
    """`master_hash` is the candidate of the last final master block, or the id of the session that it started. `states`
    are those of the blocks that shards stand upon, `known` the final shard blocks that wait for the
    masterchain, `views` the master blocks that shard blocks may refer to. `evidence`: by session, the first final block
    of its that cannot be. Of such a session only those blocks count from then on that a final master block holds, and
    our master blocks commit none. `to_reopen`: sessions whose final blocks must be asked for anew."""

    def __init__(self, first: FirstStates, history: History) -> None:
        master = first.master
        self.kept = history
        self.events: list[LedgerEvent] = []
        self.final_blocks: deque[FinalBlock] = deque()
        self.master = master
        self.master_hash = master.session.session_id
        self.states: dict[BlockId, ShardState] = {master.shards[0].tops[0]: first.shard}
        self.views: dict[int, MasterView] = {master.seqno: master.view}
        self.chains: dict[bytes, SessionChain] = {}
        self.known: dict[BlockId, AppliedBlock] = {}
        self.previous: dict[bytes, tuple[SessionFacts, ...]] = {}
        self.evidence: dict[bytes, CertifiedFault] = {}
        self.to_reopen: list[bytes] = []
        self.on_master: OnMaster = lambda kept, applied: None
        self._masters: dict[bytes, AppliedMaster] = {}
        self._waiting: dict[bytes, deque[KeptBlock]] = {}
        self._ended: dict[bytes, None] = {}
        for entry in master.shards:
            self.open(entry)

    @property
    def view(self) -> MasterView:
        return self.views[self.master.seqno]

    def finalised(self, kept: KeptBlock) -> None:
        """Take the next final block of its session, proved by others: once, and in order within the session."""
        if kept.session_id in self._ended:
            if kept.payload == CLOSING:
                self.kept.keep_block(kept)  # its certificate may be what proves the block before it
                self.on_master(kept, None)
            else:
                self._drop(kept)
            return
        if kept.session_id in self.evidence and id_of(kept.payload) not in self._awaited():
            return  # its session is held by liars, and the masterchain does not have it
        if sum(map(len, self._waiting.values())) >= WAITING_MAX:
            raise LocalProtocolError(
                f"{WAITING_MAX} final blocks wait for others that never came",
                limit=WAITING_MAX,
                advice="begin from a snapshot of another validator",
            )
        self._waiting.setdefault(kept.session_id, deque()).append(kept)
        to_try = [kept.session_id]
        while to_try:
            session = to_try.pop()
            if self._advance(session):
                # The masterchain may wait for this shard block, or any session for this master block.
                is_of_shard = session in self.chains
                to_try += [self.master.session.session_id] if is_of_shard else list(self._waiting)
                to_try.append(session)

    def master_after(self, candidate: bytes) -> MasterState | None:
        if candidate == self.master_hash:
            return self.master
        applied = self._masters.get(candidate)
        return None if applied is None else applied.state

    def check_master(
        self,
        session: bytes,
        candidate: bytes,
        parent: bytes,
        payload: bytes,
        now_ms: int | None,
        wanted: Collection[bytes] | None,
    ) -> AppliedMaster | DeclinedCandidate:
        known = self._masters.get(candidate)
        if known is not None:
            return known
        state = self.master_after(parent)
        if state is None:
            return DeclinedCandidate(Rule.WRONG_PARENT, f"candidate {parent.hex()} is not known here")
        if payload == CLOSING and state.session.session_id != session:
            result: AppliedMaster | DeclinedCandidate = self._masters[parent]
        else:
            result = check_master_block(state, session, self.known, payload, now_ms, wanted=wanted)
            if now_ms is not None and isinstance(result, AppliedMaster):
                result = self._fault_in_commits(state, result) or result
        if isinstance(result, AppliedMaster):
            self._masters[candidate] = result
            while len(self._masters) > CANDIDATES_MAX:
                del self._masters[next(iter(self._masters))]
        return result

    def provable(
        self, state: MasterState, blocks: Sequence[AppliedBlock], wanted: Configuration | None
    ) -> Sequence[AppliedBlock]:
        """Return those of a shard's next blocks that a master block upon `state` may commit; see `master_blocks`."""
        times = [self._time_of(one) for block in blocks[:1] for one in block.block.previous]
        known = [time_ms for time_ms in times if time_ms is not None]
        return provable(blocks, min(known), state.configuration, wanted) if known else blocks

    def _time_of(self, block_id: BlockId) -> int | None:
        applied, state = self.known.get(block_id), self.states.get(block_id)
        if applied is not None:
            return applied.block.time_ms
        return None if state is None else state.parent_ms

    def _fault_in_commits(self, state: MasterState, applied: AppliedMaster) -> DeclinedCandidate | None:
        """Return the fault of a candidate, at first sight, after which nobody could prove some ends."""
        encoded = applied.block.configuration
        wanted = Configuration.decode(encoded) if encoded else None
        for blocks in applied.commits:
            count = len(self.provable(state, blocks, wanted))
            if count < len(blocks):
                return DeclinedCandidate(
                    Rule.OVER_LIMIT,
                    f"it commits {len(blocks)} blocks of shard {blocks[0].block.shard.prefix:016x}, and with more than "
                    f"{count} nobody could prove which messages were never executed",
                )
        return None

    def open(self, entry: ShardEntry) -> None:
        """Open a session that the present master block starts."""
        self.start_chain(entry, entry.session.session_id)

    def start_chain(self, entry: ShardEntry, base_hash: bytes) -> None:
        """Begin a session's chain at its last committed block; `base_hash` is the candidate of that, or the session's
        id while it has none.
        """
        session = entry.session.session_id
        base = self.base_of(entry) if base_hash == session else self.states[entry.tops[0]]
        self.chains[session] = SessionChain(session, self.master.configuration, base, base_hash)

    def base_of(self, entry: ShardEntry) -> ShardState:
        """Return the state that a session starts from."""
        started_by = self.views[entry.session.started_by]
        return start_state(
            entry.shard,
            entry.sources,
            self.states,
            dues=self.master.dues,
            master_seqno=started_by.seqno,
            time_ms=started_by.time_ms,
        )

    # One step

    def _advance(self, session: bytes) -> bool:
        """Apply the oldest final block of a session, if everything that it needs is there. Return whether it
        was applied.
        """
        waiting = self._waiting.get(session)
        if not waiting:
            self._waiting.pop(session, None)
            return False
        chain = self.chains.get(session)
        if session == self.master.session.session_id:
            is_done = self._advance_master(waiting[0])
        elif chain is not None:
            is_done = self._advance_shard(chain, waiting[0])
        else:
            return False  # of a session that we have not seen the start of
        if is_done:
            waiting.popleft()
        return is_done

    def _advance_shard(self, chain: SessionChain, kept: KeptBlock) -> bool:
        applied = chain.check(kept.candidate, chain.top_hash, self.views, kept.payload, None)
        if isinstance(applied, DeclinedCandidate):
            if applied.rule not in MAY_WAIT:
                self._pass_over(CertifiedFault(kept, applied.reason))
            return False
        self.kept.keep_block(kept)
        for lost in chain.finalise(kept.candidate, applied):
            self.events.append(CandidateLost(chain.session_id, lost.block_id))
        self.known[applied.block_id] = applied
        self.events.append(ShardCommitted(chain.session_id, applied.block_id, applied.message_ids))
        return True

    def _pass_over(self, fault: CertifiedFault) -> None:
        """Keep a certified bad block as evidence. Nothing of its session is applied any more; the masterchain
        ends the session in time, and the next one starts from what was committed.
        """
        self._waiting.pop(fault.kept.session_id, None)
        self.accuse(fault)

    def accuse(self, fault: CertifiedFault) -> None:
        """Keep the first evidence against a shard's session."""
        self.evidence.setdefault(fault.kept.session_id, fault)
        self.to_reopen.append(fault.kept.session_id)
        while len(self.evidence) > EVIDENCE_MAX:
            del self.evidence[next(iter(self.evidence))]

    def _awaited(self) -> set[BlockId]:
        """Return the shard blocks in final master blocks that wait for them."""
        waiting = self._waiting.get(self.master.session.session_id, ())
        payloads = (kept.payload for kept in waiting if kept.payload != CLOSING)
        return {one for payload in payloads for ids in decode_master_block(payload).commits for one in ids}

    def _give_way(self, kept: KeptBlock) -> None:
        """Go back to the last committed block in each shard of which a final master block holds another block than
        the one that is here: the shard's session made two blocks final at one place.
        """
        for ids in decode_master_block(kept.payload).commits:
            entry = self.master.entry_of(Shard(ids[0].workchain, ids[0].shard))
            chain = None if entry is None else self.chains.get(entry.session.session_id)
            if entry is None or chain is None:
                continue
            waiting = self._waiting.get(chain.session_id, ())
            here = [one.block_id for _, one in chain.final] + [id_of(one.payload) for one in waiting]
            if any(one != named for one, named in zip(here, ids, strict=False)):
                self._go_back(entry, chain)

    def _go_back(self, entry: ShardEntry, chain: SessionChain) -> None:
        session = chain.session_id
        waiting = self._waiting.get(session, ())
        self._drop_open(chain)
        dropped = self.kept.drop_after(session, chain.base_hash)
        self._waiting.pop(session, None)
        self.start_chain(entry, chain.base_hash)
        self.accuse(
            CertifiedFault((*dropped, *waiting)[0], "the masterchain holds another block at its place")
        )

    def _advance_master(self, kept: KeptBlock) -> bool:
        applied = self.check_master(
            kept.session_id, kept.candidate, self.master_hash, kept.payload, None, None
        )
        if isinstance(applied, DeclinedCandidate):
            _must_wait(applied, kept)
            self._give_way(kept)
            return False
        self.kept.keep_block(kept)
        self._apply_master(kept.candidate, applied)
        self.on_master(kept, applied)
        return True

    def _apply_master(self, candidate: bytes, applied: AppliedMaster) -> None:
        before, after = self.master, applied.state
        finals = self._commit(before, applied)
        self.master, self.master_hash = after, candidate
        self._masters = {known: one for known, one in self._masters.items() if one.block.seqno > after.seqno}
        self.views[after.seqno] = after.view
        self.previous |= previous_of(before, after)
        ended = [
            entry.session.session_id
            for entry in before.shards
            if entry.session.session_id not in self.view.sessions
        ]
        for session in ended:
            self._close(session)
        started = [entry for entry in after.shards if entry.session.session_id not in self.chains]
        for entry in started:
            self.open(entry)
        starting = [shard_session(after, entry, self.previous) for entry in started]
        if after.session != before.session:
            ended.append(before.session.session_id)
            starting.append(master_session(after, self.previous))
            self._end(before.session.session_id)
            self.master_hash = after.session.session_id  # what the first candidate of a session stands upon
        self._forget()
        self.final_blocks.extend(finals)
        self.events.append(
            MasterApplied(
                applied.block_id,
                after.catchain_seqno,
                after.time_ms,
                tuple(finals),
                tuple(ended),
                tuple(starting),
            )
        )

    def _commit(self, before: MasterState, applied: AppliedMaster) -> list[FinalBlock]:
        finals: list[FinalBlock] = []
        for blocks in applied.commits:
            self.chains[blocks[0].block.session_id].commit(blocks)
            for one in blocks:
                del self.known[one.block_id]
                finals.append(FinalBlock(one.block_id, applied.block_id, before.catchain_seqno, one.messages))
            self.states[blocks[-1].block_id] = blocks[-1].state
        return finals

    def _close(self, session: bytes) -> None:
        """Close an ended session: blocks that the masterchain did not take are dropped, and their messages
        are free again.
        """
        self._drop_open(self.chains.pop(session))
        self._end(session)

    def _drop_open(self, chain: SessionChain) -> None:
        for candidate in chain.open_candidates():
            self.events.append(CandidateLost(chain.session_id, candidate.block_id))
        for _, applied in chain.final:
            del self.known[applied.block_id]
            self.events.append(ShardDropped(chain.session_id, applied.block_id, applied.message_ids))
        for kept in self._waiting.get(chain.session_id, ()):
            self._drop(kept)

    def _end(self, session: bytes) -> None:
        self._waiting.pop(session, None)
        self._ended[session] = None
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def _drop(self, kept: KeptBlock) -> None:
        """Report a block as dropped that became final after its session had ended, or that arrived here after
        that.
        """
        block_id = id_of(kept.payload)
        if block_id is None:
            return  # of the masterchain, where a session's last block has none after it
        block = decode_shard_block(kept.payload)
        # Its own session may have taken what the present configuration does not.
        messages = read_messages(block.messages, takes_cells=True)
        ids = tuple(message.message_id for message in messages)
        self.events.append(ShardDropped(kept.session_id, block_id, ids))

    def _forget(self) -> None:
        """Forget the states, views and blocks that nothing stands upon any more."""
        state = self.master
        tops = {source.block_id for entry in state.shards for source in entry.sources}
        self.states = {block_id: one for block_id, one in self.states.items() if block_id in tops}
        oldest = min(entry.session.started_by for entry in state.shards)
        for seqno in [seqno for seqno in self.views if seqno < oldest]:
            del self.views[seqno]
        at_work = {state.session.session_id, *self.chains}
        self.previous = {session: facts for session, facts in self.previous.items() if session in at_work}
        finals = self.final_blocks
        while finals and finals[0].master_catchain_seqno + CATCHAINS_OF_LIFE < state.catchain_seqno:
            finals.popleft()


def read_messages(messages: tuple[bytes, ...], *, takes_cells: bool) -> tuple[ExternalMessage, ...]:
    return tuple(read_message(data, takes_cells=takes_cells).external for data in messages)


def _must_wait(declined: DeclinedCandidate, kept: KeptBlock) -> None:
    if declined.rule not in MAY_WAIT:
        raise LocalProtocolError(
            f"a block that validators have certified cannot be: {declined.reason} "
            f"(session {kept.session_id.hex()}, candidate {kept.candidate.hex()})"
        )
