"""The embedded chain as a ledger: the calls of the queue of external messages and of the agreement.

collate, collate_master → agreement → check → finalised → events, history
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from stagepost.chain import known_sessions
from stagepost.chain.accounts import Account, uid_place
from stagepost.chain.configuration import Configuration
from stagepost.chain.declined import MAY_WAIT, DeclinedCandidate, Rule, Switches
from stagepost.chain.following import CLOSING, FollowedChain, read_messages
from stagepost.chain.genesis import Genesis, first_states
from stagepost.chain.history import History, KeptBlock, MemoryHistory
from stagepost.chain.master_blocks import make_master_block
from stagepost.chain.master_state import MASTER_SHARD, MasterState, PlanKind, ShardEntry
from stagepost.chain.messages import cell_reader, read_message
from stagepost.chain.rotation import Plan
from stagepost.chain.session_chain import SessionChain
from stagepost.chain.shard_block import decode_shard_block, id_of
from stagepost.chain.shard_blocks import AppliedBlock, dry_run
from stagepost.chain.shard_state import dues_between
from stagepost.errors import DecodeError
from stagepost.remp.ledger import (
    CandidateBuilt,
    CandidateLost,
    CandidateRefused,
    CollatedBlock,
    DryRun,
    FinalBlock,
    LedgerEvent,
    LedgerSession,
    ParsedMessage,
)
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import BlockId


class NoAnswer(msgspec.Struct, frozen=True):
    """No validator is to hear our opinion of the candidate."""


Checked: TypeAlias = BlockId | DeclinedCandidate | NoAnswer


class EmbeddedLedger:
    """`wanted`: hashes of configurations that this validator is willing to change to. `takes_plans`: for which splits and
    merges after a state it votes.
    """

    def __init__(
        self, genesis: Genesis, history: History | None = None, switches: Switches | None = None
    ) -> None:
        if genesis.configuration.takes_cells:
            cell_reader()  # better now than with the first message
        self.genesis = genesis
        self.following = FollowedChain(first_states(genesis), MemoryHistory() if history is None else history)
        self.switches = switches or Switches()
        self.wanted: set[bytes] = set()
        self.takes_plans: Callable[[MasterState, Sequence[Plan]], bool] = lambda state, plans: True
        self._sessions: dict[Shard, LedgerSession] = {}
        self._sessions_of = self.master.seqno

    @property
    def master(self) -> MasterState:
        """The state after the last final block of the masterchain."""
        return self.following.master

    # Messages

    def parse(self, data: bytes) -> ParsedMessage:
        return read_message(data, takes_cells=self.master.configuration.takes_cells).parsed

    def dry_run(self, message: ExternalMessage, now_ms: int) -> DryRun:
        chain = self._chain_for(message.workchain, message.account)
        if chain is None:
            return DryRun(f"there is no account {message.workchain}:{message.account.hex()}")
        try:
            read = read_message(message.body, takes_cells=chain.configuration.takes_cells)
        except DecodeError as error:
            return DryRun(error.text)
        return dry_run(chain.top, chain.configuration, self.following.view, read, now_ms)

    def holds(self, message: ExternalMessage) -> bool:
        account = self.account(message.workchain, message.account)
        return account is not None and account.recent.get(message.message_id) is not None

    def holds_twin(self, message: ExternalMessage) -> bool:
        account = self.account(message.workchain, message.account)
        taken = None if account is None else account.recent.get(uid_place(message.uid))
        return taken is not None and taken.message_id != message.message_id

    def account(self, workchain: int, address: bytes) -> Account | None:
        """Return the account by the last final block of its shard; None if it has no balance and no memory."""
        chain = self._chain_for(workchain, address)
        return None if chain is None else chain.top.accounts.get(address)

    # Shards and sessions

    def shard_of(self, workchain: int, account: bytes) -> Shard | None:
        entry = self.master.entry_for(workchain, account)
        return None if entry is None else entry.shard

    def session(self, shard: Shard) -> LedgerSession | None:
        known = self._known_sessions()
        if shard not in known:
            entry = self.master.entry_of(shard)
            if entry is None:
                return None
            known[shard] = known_sessions.shard_session(self.master, entry, self.following.previous)
        return known[shard]

    def sessions(self) -> list[LedgerSession]:
        found = (self.session(entry.shard) for entry in self.master.shards)
        return [session for session in found if session is not None]

    def master_session(self) -> LedgerSession:
        known = self._known_sessions()
        if MASTER_SHARD not in known:
            known[MASTER_SHARD] = known_sessions.master_session(self.master, self.following.previous)
        return known[MASTER_SHARD]

    def coming(self, workchain: int, account: bytes, now_ms: int, until_ms: int) -> list[LedgerSession]:
        return known_sessions.coming(self.master, workchain, account, now_ms, until_ms)

    def chain(self, session: bytes) -> SessionChain | None:
        """Return the chain of a shard session that is at work; None for any other."""
        return self.following.chains.get(session)

    # Proposing

    def collate(
        self, session: bytes, parent: bytes, messages: Iterable[ExternalMessage], now_ms: int
    ) -> CollatedBlock | None:
        chain = self.chain(session)
        made = None if chain is None else chain.make(parent, self.following.view, messages, now_ms)
        if chain is None or made is None:
            return None
        applied, collated = made
        self._tell(CandidateBuilt(session, applied.block_id, applied.message_ids, is_own=True))
        if self.switches.loses(applied.block_id):
            chain.lose(applied.block_id)
            self._tell(CandidateLost(session, applied.block_id))
            return None
        return collated

    def collate_master(
        self,
        session: bytes,
        parent: bytes,
        now_ms: int,
        *,
        plans: Sequence[Plan] = (),
        configuration: Configuration | None = None,
    ) -> bytes | None:
        """Make a candidate for the masterchain upon `parent`; None if that block is not known, or is of
        another session.
        """
        state = self.following.master_after(parent)
        if state is None or session != self.master.session.session_id:
            return None
        if state.session.session_id != session:
            return CLOSING
        ready = [self.following.provable(state, self._ready(entry), configuration) for entry in state.shards]
        return make_master_block(state, ready, now_ms, plans=plans, configuration=configuration).payload

    def is_block_wanted(self, session: bytes, parent: bytes | None = None) -> bool:
        """Return whether a shard has something to do although nobody sends messages: a transfer has come for
        it.

        The question is asked upon `parent`, a candidate that need not be final, or upon the last final block.
        """
        chain = self.chain(session)
        if chain is None:
            return False
        top = chain.top if parent is None else chain.state_after(parent) or chain.top
        return any(dues_between(self.master.dues, top.master_seqno, self.master.seqno, top.shard))

    def is_master_block_wanted(self, now_ms: int, parent: bytes | None = None) -> bool:
        """Return whether there is something to commit, or the time of a session, plan or set has come.

        The question is asked upon `parent`, a candidate that need not be final, or upon the last final block.
        """
        state = self.master if parent is None else self.following.master_after(parent)
        if state is None or state.session.session_id != self.master.session.session_id:
            return False
        ends = [state.session.ends_ms, *(entry.session.ends_ms for entry in state.shards)]
        ends += [entry.plan_at_ms for entry in state.shards if entry.plan is not PlanKind.NONE]
        if state.configuration.next is not None:
            ends.append(state.configuration.next.from_ms)
        return now_ms >= min(ends) or any(self._ready(entry) for entry in state.shards)

    # Candidates of others

    def check(
        self, session: bytes, candidate: bytes, parent: bytes, payload: bytes, now_ms: int | None
    ) -> Checked:
        """Check a candidate of a shard or of the masterchain. Return its block id, or why it is declined.
        `now_ms`: the clock when it was first seen; None for one that a quorum has voted for.
        """
        if session == self.master.session.session_id:
            # Two thirds want what a quorum has voted for: who does not must follow, or nobody could go on.
            wanted = None if now_ms is None else self.wanted
            master = self.following.check_master(session, candidate, parent, payload, now_ms, wanted)
            if isinstance(master, DeclinedCandidate):
                return master
            state = None if now_ms is None or payload == CLOSING else self.following.master_after(parent)
            if state is not None and not self.takes_plans(state, master.block.plans):
                said = (
                    f"{one.kind.name.lower()} of shard {one.shard.prefix:016x}" for one in master.block.plans
                )
                return DeclinedCandidate(Rule.BAD_PLAN, f"nobody here asked for {', '.join(said)}")
            return master.block_id
        chain = self.chain(session)
        if chain is None:
            return DeclinedCandidate(Rule.WRONG_SESSION, f"session {session.hex()} is not at work here")
        result = chain.check(candidate, parent, self.following.views, payload, now_ms)
        if isinstance(result, DeclinedCandidate):
            block_id = id_of(payload)
            if block_id is not None and result.rule not in MAY_WAIT:
                self._tell(CandidateRefused(session, block_id, result.replayed))
            return result
        if self.switches.ignores(result.block_id):
            return NoAnswer()
        if self.switches.refuses(result.block_id):
            self._tell(CandidateRefused(session, result.block_id))
            return DeclinedCandidate(Rule.BY_SWITCH, "a test wants it refused")
        if result.block_id not in chain.own:
            self._tell(CandidateBuilt(session, result.block_id, result.message_ids, is_own=False))
        return result.block_id

    def messages_of(self, payload: bytes) -> tuple[ExternalMessage, ...]:
        block = decode_shard_block(payload)
        return read_messages(block.messages, takes_cells=self.master.configuration.takes_cells)

    # What is final

    def finalised(self, session: bytes, candidate: bytes, payload: bytes, certificate: bytes) -> None:
        """Take the next block of a session, proved by its validators: once, and in order within the session."""
        self.following.finalised(KeptBlock(session, candidate, payload, certificate))

    def events(self) -> list[LedgerEvent]:
        events, self.following.events = self.following.events, []
        return events

    def history(self, from_catchain_seqno: int) -> Iterator[FinalBlock]:
        finals = self.following.final_blocks
        return (one for one in finals if one.master_catchain_seqno >= from_catchain_seqno)

    # Details

    def _tell(self, event: LedgerEvent) -> None:
        self.following.events.append(event)

    def _known_sessions(self) -> dict[Shard, LedgerSession]:
        if self._sessions_of != self.master.seqno:
            self._sessions, self._sessions_of = {}, self.master.seqno
        return self._sessions

    def _chain_for(self, workchain: int, account: bytes) -> SessionChain | None:
        entry = self.master.entry_for(workchain, account)
        return None if entry is None else self.chain(entry.session.session_id)

    def _ready(self, entry: ShardEntry) -> list[AppliedBlock]:
        """Return the final blocks that follow the last committed block of the entry's shard; none of a session that
        made blocks final which cannot be, for others may know other ones.
        """
        is_held = entry.session.session_id in self.following.evidence
        chain = None if is_held else self.chain(entry.session.session_id)
        found: list[AppliedBlock] = []
        tops = entry.tops
        for _, applied in () if chain is None else chain.final:
            if applied.block.previous == tops:
                if self.switches.leaves_out(applied.block_id):
                    break
                found.append(applied)
                tops = (applied.block_id,)
        return found
