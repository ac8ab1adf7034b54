"""The bridge between the ledger and the queues of one validator: events of the chain go to the queues, their
messages to the collator.

    ledger events → heard → candidate_seen, shard_committed, master_committed, switch → queues → receipts
    agreement asks → take → collate → collated; → fault_in (another validator's candidate)

A queue has an id of its own, since previous validators take part in it; this module maps the ledger's
sessions to queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from stagepost.catchain.budgets import Rates
from stagepost.chain.node.own_memory import OwnMemory
from stagepost.full_node.staged_sending import LOOK_AHEAD_S
from stagepost.ground.loop.clock import Clock
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.ledger import (
    CandidateBuilt,
    CandidateLost,
    CandidateRefused,
    Ledger,
    LedgerEvent,
    LedgerSession,
    MasterApplied,
    ParsedMessage,
    ShardCommitted,
    ShardDropped,
)
from stagepost.remp.message import ExternalMessage, Origin, header_of
from stagepost.remp.queue.collation import Report, UnusedMessage
from stagepost.remp.queue.message_cache import Standing
from stagepost.remp.queue.message_states import FINAL, place_of
from stagepost.remp.queue.state import SKEW_MS
from stagepost.remp.receipts.message_status import Accepted
from stagepost.remp.receipts.status import Level
from stagepost.remp.sessions import session_id as id_of
from stagepost.remp.shard import BlockId, Shard
from stagepost.validator.session_plan import SessionPlan, queue_plan, queue_session_id
from stagepost.validator.session_runner import SessionRunner
from stagepost.validator.session_store import BodyRow
from stagepost.validator.sessions import Validator

TAKEN_MAX = 1_000
"""Messages, at most, that a collator is given for one block: as many as a block holds, unless the chain is
configured otherwise.
"""

COMMITTED_MAX = 65_536
"""Messages, at most, that are remembered from shard blocks that no master block holds yet; a queue that is
behind learns late of further ones.
"""

BLOCKS_MAX = 1_024
"""Blocks, at most, that were committed of late and that agreement may still ask us to check."""

EXPIRIES_MAX = 7_200
"""Seconds, at most, at which known messages expire; the earliest ones are forgotten first."""

EXPIRING_MAX = 256
"""Accounts, at most, that are noted for one second: a block passes all messages of its shard."""


class KnownExpiries:
    """The seconds at which messages expire that this validator knows, with some of their accounts."""

    def __init__(self) -> None:
        self._accounts: dict[int, dict[tuple[int, bytes], None]] = {}

    def note(self, parsed: ParsedMessage, latest_s: float) -> None:
        """Note when a message expires, unless that is after `latest_s`: no block takes it yet."""
        if parsed.expires_at_s is None or parsed.expires_at_s > latest_s:
            return
        accounts = self._accounts.setdefault(parsed.expires_at_s, {})
        if len(accounts) < EXPIRING_MAX:
            accounts[parsed.message.workchain, parsed.message.account] = None
        while len(self._accounts) > EXPIRIES_MAX:
            del self._accounts[min(self._accounts)]

    def has_any(self, shard: Shard, after_ms: int, until_ms: int) -> bool:
        """Return whether a message of `shard` expired after `after_ms` and no later than `until_ms`."""
        return any(
            shard.holds(*account)
            for second, accounts in self._accounts.items()
            if after_ms < second * 1_000 <= until_ms
            for account in accounts
        )


class QueueBridge:
    """`keys`: public keys by key id, of all present validators and of recent ones. `skew_ms` returns how far clocks
    of honest members differ, and `rates` how much a member may write, by the configuration in force: a new one begins
    new sessions.
    """

    def __init__(
        self,
        ledger: Ledger,
        validator: Validator,
        own_key: bytes,
        keys: Mapping[bytes, bytes],
        clock: Clock,
        skew_ms: Callable[[], int] = lambda: SKEW_MS,
        memory: OwnMemory | None = None,
        rates: Callable[[], Rates] = Rates,
    ) -> None:
        self._rates = rates
        self._memory = memory or OwnMemory()
        self._ledger = ledger
        self._validator = validator
        self._own_key = own_key
        self._keys = keys
        self._clock = clock
        self._skew_ms = skew_ms
        self._started_ms = 0
        self._queue_ids: dict[bytes, bytes] = {}
        self._committed: dict[bytes, BlockId] = {}
        self._committed_lists: dict[tuple[bytes, ...], None] = {}
        self.expiries = KnownExpiries()
        validator.serves_soon = self._serves_soon

    def start(self, waiting: Iterable[tuple[BlockId, Sequence[ExternalMessage]]] = ()) -> None:
        """Start from what the ledger knows. History comes first: a queue that knows less than the chain would
        collate a message again.

        `waiting`: shard blocks that no master block holds yet, with their messages.
        """
        now = self._clock.unix_s()
        self._started_ms = int(now * 1_000)
        cache = self._validator.cache
        master = self._ledger.master_session()
        seqno = master.master_catchain_seqno
        self._validator.master_advanced(seqno, master.from_ms)
        for final in self._ledger.history(cache.window.lowest):
            for message in final.messages:
                cache.index_final(message, final.master_catchain_seqno, final.block_id, final.master_id, now)
        for block_id, messages in waiting:
            self._note_committed(block_id, [message.message_id for message in messages])
            for message in messages:
                if cache.get(message.message_id) is None:
                    # We may have reported it before: no full node is to hear again that it is in the queue.
                    header = header_of(message, Origin(ZERO_INT256, -1, 0), seqno)
                    status = Accepted(Level.SHARDCHAIN, block_id)
                    cache.give_body(cache.add(header, status, Standing.OWN, now), message)
        for session in self._ledger.sessions():
            plan = self._plan(session)
            if plan is not None:
                self._validator.begin_session(plan)

    # What the chain says

    def heard(self, events: Iterable[LedgerEvent]) -> None:
        """Pass events to the queues, in the order of the ledger."""
        for event in events:
            self._hear(event)

    def _hear(self, event: LedgerEvent) -> None:
        now = self._clock.unix_s()
        runner = None if isinstance(event, MasterApplied) else self._runner(event.session_id)
        match event:
            case CandidateBuilt(_, block_id, message_ids, is_own):
                if runner is not None and not is_own:
                    runner.perform(runner.queue.candidate_seen(block_id, message_ids, now))
            case CandidateLost(_, block_id):
                if runner is not None:
                    runner.perform(runner.queue.candidate_lost(block_id, now))
            case CandidateRefused(_, block_id, replayed):
                if runner is not None:
                    runner.perform(runner.queue.candidate_refused(block_id, now, replayed))
            case ShardCommitted(_, block_id, message_ids):
                self._note_committed(block_id, message_ids)
                if runner is not None:
                    runner.perform(runner.queue.shard_committed(block_id, message_ids, now))
            case ShardDropped(_, block_id, message_ids):
                for message_id in message_ids:
                    self._committed.pop(message_id, None)
                for one in self._runners_with(message_ids) if runner is None else [runner]:
                    one.perform(one.queue.shard_dropped(block_id, message_ids, now))
            case MasterApplied():
                self._master_applied(event)

    def _master_applied(self, event: MasterApplied) -> None:
        now = self._clock.unix_s()
        cache = self._validator.cache
        for final in event.blocks:
            seqno = final.master_catchain_seqno
            for message in final.messages:
                self._committed.pop(message.message_id, None)
                cache.index_final(message, seqno, final.block_id, final.master_id, now)
            for runner in self._validator.sessions.values():
                runner.perform(
                    runner.queue.master_committed(
                        final.block_id, final.master_id, final.messages, now, masterchain_seqno=seqno
                    )
                )
        if event.catchain_seqno > cache.window.current:
            self._validator.master_advanced(event.catchain_seqno, event.time_ms)
        self._rotate(event)

    def _rotate(self, event: MasterApplied) -> None:
        # A node that catches up on the chain may have spoken in such a session before its restart.
        is_fresh = event.time_ms > self._started_ms
        following: dict[bytes, list[SessionPlan]] = {}
        fresh: list[SessionPlan] = []
        for session in event.started:
            plan = None if session.facts.workchain < 0 else self._plan(session)
            if plan is not None:
                fresh.append(plan)
                for facts in session.previous:
                    following.setdefault(id_of(facts), []).append(plan)
        for ended in event.ended:
            queue_id = self._queue_ids.pop(ended, None)
            if queue_id is not None and queue_id in self._validator.sessions:
                self._validator.switch(queue_id, following.get(ended, []), are_fresh=is_fresh)
        for plan in fresh:
            if plan.session_id not in self._validator.sessions:
                self._validator.begin_session(plan, is_fresh=is_fresh)

    # The collator

    def has_messages(self, session_id: bytes) -> bool:
        runner = self._runner(session_id)
        return runner is not None and runner.queue.has_collatable

    def take(self, session_id: bytes) -> list[ExternalMessage]:
        """Return messages for a candidate of ours; the caller must call `collated` afterwards."""
        runner = self._runner(session_id)
        if runner is None:
            return []
        now = self._clock.unix_s()
        messages, effects = runner.queue.take(now, TAKEN_MAX)
        runner.perform(effects)
        found: list[ExternalMessage] = []
        for message in messages:
            block_id = self._committed.get(message.message_id)
            if block_id is None:
                found.append(message)
            else:
                # It was announced here after the block with it had been committed.
                runner.perform(runner.queue.shard_committed(block_id, [message.message_id], now))
        return found

    def collated(
        self,
        session_id: bytes,
        taken: Sequence[ExternalMessage],
        reports: Iterable[tuple[bytes, Report]],
    ) -> None:
        """Pass the collator's reports to the queue. A taken message without a report returns to where it
        stood.
        """
        runner = self._runner(session_id)
        if runner is None:
            return
        said: dict[bytes, Report] = {message.message_id: UnusedMessage() for message in taken}
        said.update(reports)
        runner.perform(runner.queue.collated(said.items(), self._clock.unix_s()))

    # Candidates of others

    def has_unknown(self, session_id: bytes, messages: Sequence[ExternalMessage]) -> bool:
        """Return whether one of `messages` has not been announced to us yet, or whether there is no queue for
        this session yet.

        Agreement may be faster than the queue. No honest validator collates a message that has not been
        announced, so we are about to hear of it, and of its place in the order. A candidate brings the bytes
        of its messages along.
        """
        runner = self._runner(session_id)
        if runner is None:
            return True
        now = self._clock.unix_s()
        cache = self._validator.cache
        for message in messages:
            runner.perform(runner.queue.body_came(message, now))
        message_ids = [message.message_id for message in messages]
        return any(cache.get(one) is None for one in message_ids) or runner.queue.has_unannounced(message_ids)

    def fault_in(self, session_id: bytes, messages: Sequence[ExternalMessage]) -> str | None:
        """Return why the queue declines a candidate with these messages, in this order; None if it does not."""
        runner = self._runner(session_id)
        if runner is None:
            return "this validator has no queue of the session"
        message_ids = tuple(message.message_id for message in messages)
        if message_ids in self._committed_lists:
            return None  # others were faster: it is that block, or the ledger knows it for a replay
        return runner.queue.check_candidate(message_ids)

    def session_of(self, queue_id: bytes) -> bytes | None:
        """Return the ledger's session that a queue belongs to, while it is at work; otherwise None."""
        return next((session for session, one in self._queue_ids.items() if one == queue_id), None)

    # What was left over from sessions that are over

    def offer_again(self, message: ExternalMessage, row: BodyRow) -> bool:
        """Offer a message that a full node sent under a session that ended while this node was down. Return
        whether a queue took it.
        """
        cached = self._validator.cache.get(message.message_id)
        if cached is not None and place_of(cached.status) == FINAL:
            return False
        for runner in self._validator.current.values():
            if runner.plan.shard.holds(message.workchain, message.account):
                runner.offer(message, row.full_node, row.hand_over, row.known_seqno)
                return True
        return False

    # Details

    def _serves_soon(self, message: ExternalMessage) -> bool:
        """Return whether a session of this validator serves the message's account soon. Full nodes look as far ahead by
        their own clocks.
        """
        now_ms = int(self._clock.unix_s() * 1_000)
        until_ms = now_ms + int(LOOK_AHEAD_S * 1_000) + self._skew_ms()
        coming = self._ledger.coming(message.workchain, message.account, now_ms, until_ms)
        return any(self._own_key in session.public_keys for session in coming)

    def _plan(self, session: LedgerSession) -> SessionPlan | None:
        plan = queue_plan(session, self._own_key, self._keys, self._skew_ms(), self._rates())
        if plan is not None:
            self._queue_ids[session.session_id] = queue_session_id(session)
            answers = self._memory.answers(session, plan.session_id)
            plan = msgspec.structs.replace(plan, answers=answers)
        return plan

    def _runner(self, session_id: bytes) -> SessionRunner | None:
        queue_id = self._queue_ids.get(session_id)
        return None if queue_id is None else self._validator.sessions.get(queue_id)

    def _runners_with(self, message_ids: Sequence[bytes]) -> list[SessionRunner]:
        """Return the runners whose queues hold one of the messages. Those at work come first: a waiting
        message must be freed there.
        """
        runners = {**self._validator.current, **self._validator.sessions}
        return [
            runner
            for runner in runners.values()
            if any(message_id in runner.queue for message_id in message_ids)
        ]

    def _note_committed(self, block_id: BlockId, message_ids: Sequence[bytes]) -> None:
        self._committed_lists[tuple(message_ids)] = None
        while len(self._committed_lists) > BLOCKS_MAX:
            del self._committed_lists[next(iter(self._committed_lists))]
        for message_id in message_ids:
            self._committed[message_id] = block_id
        while len(self._committed) > COMMITTED_MAX:
            del self._committed[next(iter(self._committed))]
