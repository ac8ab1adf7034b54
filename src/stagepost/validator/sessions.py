"""A validator: its sessions one after the other, one cache and one store for all of them, its links to full
nodes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol

import msgspec

from stagepost.catchain.effects import RecoveryReport
from stagepost.errors import DecodeError, ErrorCode, TlDecodeError
from stagepost.ground.loop.clock import Clock
from stagepost.ground.statemachine.lifecycle import StartAnswers
from stagepost.remp.links.overlay import Overlay, OverlayEvents, ValidatorLinks
from stagepost.remp.message import ExternalMessage, RempMessage, names_its_sender
from stagepost.remp.queue.effects import QueueEffect, Telling
from stagepost.remp.queue.message_cache import ExpiredMessages, MessageCache
from stagepost.remp.queue.message_states import OPEN, place_of
from stagepost.remp.queue.records import UNSIGNED, HandOver
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.queue.session_switch import CATCHAINS_OF_LIFE, to_forward
from stagepost.remp.receipts.statements import AskedChallenge, is_asked_challenge
from stagepost.validator.asked_challenges import AskedChallenges
from stagepost.validator.held_messages import EarlyMessage, EarlyMessages
from stagepost.validator.links import FULL_NODES_MAX
from stagepost.validator.owed_receipts import OwedReceipts
from stagepost.validator.receipts import ReceiptSender, Statements
from stagepost.validator.session_plan import Parse, SessionEvent, SessionOptions, SessionPlan
from stagepost.validator.session_runner import EarlierReceipts, SessionRunner
from stagepost.validator.session_store import BodyRow, SessionContent, SessionStore

LINGER_S = 15.0
"""Seconds for which this validator stays in a session that is over: messages that others still bring there
are handed on to the sessions that follow. Of two switches in quick succession, messages would otherwise miss
the second.
"""

HAND_ON_EVERY_S = 1.0
HOLD_MAX_S = 30.0
"""Seconds after a start for which receipts wait, at most, for the answers of quorums: a session whose members are gone
must not keep the receipts of others back.
"""

LIVES_MUTED = 2
"""Lives of a message, after which nobody asks for receipts of one that came before."""


class ClosableOverlay(Overlay, Protocol):
    async def close(self) -> None:
        """Close the links of the session: it is over."""


MakeOverlay = Callable[[SessionPlan, OverlayEvents], ClosableOverlay]
OnSessionEvent = Callable[[SessionPlan, SessionEvent], None]
OnAsked = Callable[[bytes, AskedChallenge], None]


class ValidatorCounters(msgspec.Struct):
    """`refused` counts, by code, the messages of full nodes that were not taken; `forgotten` those that left the cache when
    their time was over; `early` those that were kept for a session that begins soon."""

    messages: int = 0
    without_session: int = 0
    early: int = 0
    forgotten: int = 0
    refused: Counter[str] = msgspec.field(default_factory=Counter)


class _EndedSession(msgspec.Struct, frozen=True):
    """A session that is over and that this validator has not left yet."""

    leave_at: float
    following: tuple[bytes, ...]


class Validator:
    """`full_node_keys`: public keys by key id. Where it is given, only these full nodes are listened to, and
    every message must be signed by the full node that sends it; otherwise the link alone vouches for it. `on_asked` records
    that a full node asks for a challenge, before it is made; `StorageError` if it cannot.
    """

    def __init__(
        self,
        seed: bytes,
        store: SessionStore,
        links: ValidatorLinks,
        make_overlay: MakeOverlay,
        clock: Clock,
        random: Random,
        parse: Parse,
        *,
        cache: MessageCache | None = None,
        options: SessionOptions | None = None,
        full_node_keys: Mapping[bytes, bytes] | None = None,
        on_event: OnSessionEvent = lambda plan, event: None,
        on_asked: OnAsked = lambda full_node, asked: None,
    ) -> None:
        self.cache = cache or MessageCache()
        self.counters = ValidatorCounters()
        self.statements = Statements(store, lambda: self.cache.window.current)
        for seqno, message_ids in self.statements.over.items():
            self.cache.note_let_go(message_ids, seqno)
        self.receipts = ReceiptSender(seed, links, clock, self.statements)
        self.asked = AskedChallenges(
            self.receipts.source_id, clock, self._has_sent, lambda to, said: links.tell(to, said), on_asked
        )
        self._seed = seed
        self._store = store
        self._make_overlay = make_overlay
        self._clock = clock
        self._random = random
        self._parse = parse
        self._options = options or SessionOptions()
        self.owed = OwedReceipts(
            self.cache, self.statements, self._tell, self._options.queue.message_timeout_s
        )
        self._full_node_keys = full_node_keys
        self._on_event = on_event
        self._sessions: dict[bytes, tuple[SessionRunner, ClosableOverlay]] = {}
        self._has_lived_before = bool(store.sessions)
        if store.damage:
            # Receipts may be among what was lost, and a chain that misses one must not go on.
            self.mute()
        self._current: list[bytes] = []
        self._ended: dict[bytes, _EndedSession] = {}
        # Left, but messages that were received there are still open: each of them must come to an end.
        self._left: dict[bytes, SessionRunner] = {}
        self._care_timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._early = EarlyMessages(FULL_NODES_MAX)
        self._held_tellings: list[tuple[bytes, Sequence[Telling]]] = []
        """Receipts to be, by session and in order, which wait for the answers of quorums after a restart."""
        self._holds_until = clock.mono_s() + HOLD_MAX_S
        self._hold_timer: asyncio.TimerHandle | None = None
        self.serves_soon: Callable[[ExternalMessage], bool] = lambda message: False
        """Function that returns whether a session of this validator for the message's account begins soon."""

    # Sessions

    @property
    def sessions(self) -> dict[bytes, SessionRunner]:
        """The sessions that this validator takes part in, and those that are over and not left yet, by id."""
        return {session_id: runner for session_id, (runner, _) in self._sessions.items()}

    @property
    def current(self) -> dict[bytes, SessionRunner]:
        """The sessions that are not over, by id, the newest first."""
        return {session_id: self._sessions[session_id][0] for session_id in self._current}

    def begin_session(self, plan: SessionPlan, *, is_fresh: bool = False) -> SessionRunner:
        """Join the session, and take messages of its shard from now on, if we validate there.

        `is_fresh`: the session begins while we run. No member can remember anything of us there, so we need
        not listen first.
        """

        def on_event(event: SessionEvent) -> None:
            if isinstance(event, RecoveryReport):
                # An older disk that nobody told us of: it lacks receipts as well as blocks.
                self.mute()
            self.asked.heard(plan, event)
            self._on_event(plan, event)

        if plan.masterchain_seqno > self.cache.window.current:
            self.master_advanced(plan.masterchain_seqno, plan.starts_ms)
        full_nodes = self._full_node_keys
        self.owed.forget(plan.session_id)
        self.statements.chains.session_began(plan.session_id, plan.masterchain_seqno)
        runner = SessionRunner(
            plan,
            self._seed,
            self.cache,
            self._store,
            self._clock,
            Random(self._random.getrandbits(64)),
            self._parse,
            partial(self._tell, plan.session_id),
            self._options_for(plan, is_fresh),
            on_event,
            EarlierReceipts(self.statements.earlier, self.receipts.repeat),
            None if full_nodes is None else lambda header: names_its_sender(header, full_nodes),
            self.statements.newest,
            self._release_tellings,
        )
        overlay = self._make_overlay(plan, runner)
        self._sessions[plan.session_id] = runner, overlay
        runner.start(overlay)
        self.asked.began(plan, runner.graph, runner.challenge)
        # The newest that holds an account is asked first.
        self._current.insert(0, plan.session_id)
        if plan.index in plan.current:
            self._offer_early(runner)
        return runner

    def _tell(self, session_id: bytes, tellings: Sequence[Telling]) -> None:
        """Sign receipts, or let them wait in order. After a restart they wait until each session has heard a quorum: that
        shows whether our disk is an older one, which lacks receipts that we signed, and then none is signed.
        """
        self._held_tellings.append((session_id, tellings))
        self._release_tellings()
        if self._held_tellings and self._hold_timer is None:
            loop, left_s = asyncio.get_running_loop(), self._holds_until - self._clock.mono_s()
            self._hold_timer = loop.call_later(left_s, self._end_hold)

    def _end_hold(self) -> None:
        # The clock may stand just before the time that the timer was set to.
        self._holds_until = self._clock.mono_s()
        self._release_tellings()

    def _release_tellings(self) -> None:
        """Sign the receipts that waited, unless a session still awaits a quorum."""
        is_late = self._clock.mono_s() >= self._holds_until
        if is_late or not any(runner.awaits_quorum for runner, _ in self._sessions.values()):
            held, self._held_tellings = self._held_tellings, []
            for session_id, tellings in held:
                self.receipts.tell(session_id, tellings)

    def _options_for(self, plan: SessionPlan, is_fresh: bool) -> SessionOptions:
        options = self._options
        if plan.answers is not StartAnswers.QUORUM:
            if plan.answers is StartAnswers.GAP:
                self.mute()
            member = msgspec.structs.replace(options.member, answers=plan.answers)
        elif is_fresh and plan.session_id not in self._store.sessions:
            member = msgspec.structs.replace(options.member, start_wait_s=0.0)
        else:
            return options
        return msgspec.structs.replace(options, member=member)

    def mute(self) -> None:
        """Sign no receipts for as long as messages live that this validator may have spoken of and has forgotten."""
        self.receipts.mute(LIVES_MUTED * self._options.queue.message_timeout_s)

    def _offer_early(self, runner: SessionRunner) -> None:
        """Put the messages that full nodes sent ahead of this session into its queue, except those that ended meanwhile."""
        shard = runner.plan.shard
        for one in self._early.take(
            lambda message: shard.holds(message.workchain, message.account), self._clock.mono_s()
        ):
            message_id = one.message.message_id
            cached = self.cache.get(message_id)
            is_alive = one.masterchain_seqno in self.cache.window and not self.cache.was_let_go(message_id)
            if is_alive and (cached is None or place_of(cached.status) in OPEN):
                runner.offer(one.message, one.full_node, one.hand_over, one.masterchain_seqno)

    def switch(
        self, session_id: bytes, following: Sequence[SessionPlan], *, are_fresh: bool = False
    ) -> list[SessionRunner]:
        """End a session: its open and its processed messages go into those that follow it, and so do messages
        that come late. This validator leaves the session a while after.
        """
        old, _ = self._sessions[session_id]
        old.awaits_quorum = False
        self.asked.ended(session_id)
        self._release_tellings()
        old.release_all()
        old.perform(old.queue.session_ended(self._clock.unix_s()))
        runners: list[SessionRunner] = []
        for plan in following:
            joined = self._sessions.get(plan.session_id)
            runner = self.begin_session(plan, is_fresh=are_fresh) if joined is None else joined[0]
            self._forward(old, runner)
            runners.append(runner)
        self._current.remove(session_id)
        followers = tuple(plan.session_id for plan in following)
        self._ended[session_id] = _EndedSession(self._clock.mono_s() + LINGER_S, followers)
        self._care_later()
        return runners

    def _care_later(self) -> None:
        if self._care_timer is None and (self._ended or self._left or self.owed):
            loop = asyncio.get_running_loop()
            self._care_timer = loop.call_later(HAND_ON_EVERY_S, self._care_for_ended)

    def _care_for_ended(self) -> None:
        """Hand on messages that came late, leave sessions whose time has come, and close the messages that
        are still open there or owed from an earlier run.
        """
        self._care_timer = None
        self.owed.settle(self.cache.window.current, self._clock.unix_s())
        for session_id, ended in list(self._ended.items()):
            runner, _ = self._sessions[session_id]
            for following in ended.following:
                joined = self._sessions.get(following)
                if joined is not None:
                    self._forward(runner, joined[0])
            if self._clock.mono_s() >= ended.leave_at:
                self._left[session_id] = runner
                self.end_session(session_id)
        self._close_left(lambda queue: queue.tick(self._clock.unix_s()))
        self._care_later()

    def _close_left(self, close: Callable[[ReliableQueue], list[QueueEffect]]) -> None:
        for session_id, runner in list(self._left.items()):
            runner.close_open(close(runner.queue))
            if not runner.queue.open_count:
                del self._left[session_id]

    def _forward(self, old: SessionRunner, new: SessionRunner) -> None:
        plan = new.plan
        forwarding = to_forward(
            old.queue,
            plan.masterchain_seqno,
            plan.shard,
            new.queue.__contains__,
        )
        for message in forwarding.bodies:
            self._store.put_body(BodyRow(plan.session_id, message.message_id, message.body))
        new.perform(new.queue.forward_into(forwarding.records, forwarding.bodies, self._clock.unix_s()))

    def end_session(self, session_id: bytes) -> None:
        """Leave the session. Its rows on disk are deleted when its messages have expired."""
        runner, overlay = self._sessions.pop(session_id)
        self.asked.ended(session_id)
        if self._ended.pop(session_id, None) is None:
            self._current.remove(session_id)
        runner.stop()
        self._release_tellings()
        self.statements.chains.session_ended(session_id)
        closing = asyncio.get_running_loop().create_task(overlay.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def master_advanced(self, masterchain_seqno: int, time_ms: int) -> ExpiredMessages:
        """Advance the clock of all messages: a master block of `time_ms` rotated. Return the messages that expired."""
        now = self._clock.unix_s()
        is_after_restart = self._has_lived_before
        if is_after_restart:
            self._has_lived_before = False
            self.cache.forgotten_seqno = masterchain_seqno
        self.owed.settle(masterchain_seqno, now)
        collected = self.cache.advance(masterchain_seqno, time_ms)
        self.counters.forgotten += collected.total
        for runner, _ in self._sessions.values():
            runner.perform(runner.queue.lives_over(collected.messages, now))
        self._close_left(lambda queue: queue.lives_over(collected.messages, now))
        if not is_after_restart:  # otherwise `owe` has not read the rows of earlier sessions yet
            self._forget_sessions(masterchain_seqno)
            self._forget_statements(masterchain_seqno - CATCHAINS_OF_LIFE)
        return collected

    def _forget_statements(self, masterchain_seqno: int) -> None:
        """Forget the receipts of older catchains, except of messages of which receipts are still to be signed."""
        kept = {one.message_id for _, tellings in self._held_tellings for one in tellings}
        kept.update(self.owed.message_ids())
        self.cache.note_let_go(self.statements.forget_before(masterchain_seqno, kept))

    def _forget_sessions(self, masterchain_seqno: int) -> None:
        """Remove from the store the sessions of which no message is open any more."""
        in_use = (self._sessions, self._left, self.owed)
        over = [
            session_id
            for session_id, seqno in self._store.sessions.items()
            if seqno + CATCHAINS_OF_LIFE <= masterchain_seqno and not any(session_id in one for one in in_use)
        ]
        if over:
            self._store.remove(over)

    def owe(self, session_id: bytes, content: SessionContent, final_ids: Iterable[bytes]) -> None:
        """Close in due course what an earlier run left open in a session that is over, except `final_ids`."""
        self.owed.add(session_id, content, final_ids, self._clock.unix_s())
        self._care_later()

    def stop(self) -> None:
        """Send nothing any more."""
        if self._care_timer is not None:
            self._care_timer.cancel()
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        for runner, _ in self._sessions.values():
            runner.stop()
        self.receipts.stop()

    async def close(self) -> None:
        """Leave all sessions as they are: a restart finds them on disk."""
        self.stop()
        for session_id in list(self._sessions):
            self.end_session(session_id)
        await asyncio.gather(*self._closing)
        await self._store.close()

    # Full nodes

    def message_came(self, full_node: bytes, message: bytes) -> None:
        """Take a boxed message of a full node, or what it asks for. A `DecodeError` raised here closes the link by name."""
        is_asking = is_asked_challenge(message)
        self.counters.messages += not is_asking
        try:
            if is_asking:
                self.asked.came(full_node, AskedChallenge.decode(message))
            else:
                self._take(full_node, RempMessage.decode(message))
        except DecodeError as error:
            self.counters.refused[error.code] += 1
            raise

    def full_node_linked(self, full_node: bytes) -> None:
        self.receipts.full_node_linked(full_node)

    def _has_sent(self, full_node: bytes, message_id: bytes) -> bool:
        """Return whether the full node has sent a message that we remember, to us or to another validator."""
        cached = self.cache.get(message_id)
        return cached is not None and full_node in cached.origins

    def _take(self, full_node: bytes, sent: RempMessage) -> None:
        """Check a message and take it: cheap checks first, the signature last."""
        message = self._parse(sent.message)
        if message.message_id != sent.message_id:
            raise TlDecodeError(
                f"full node {full_node.hex()} sent message {message.message_id.hex()} under the id "
                f"{sent.message_id.hex()}",
                code=ErrorCode.MSG_BAD_ID,
            )
        runner = self._runner_for(message.workchain, message.account)
        if runner is None:
            self._keep_early(full_node, message, sent)
            return
        cached, hand_over = self.cache.get(message.message_id), UNSIGNED
        if cached is None or full_node not in cached.origins or cached.body is None:
            hand_over = self._checked_hand_over(full_node, sent)
        runner.offer(message, full_node, hand_over)

    def _keep_early(self, full_node: bytes, message: ExternalMessage, sent: RempMessage) -> None:
        """Keep a message for a session of ours that begins soon; drop it if there is none."""
        if self.cache.get(message.message_id) is not None or not self.serves_soon(message):
            # A message that we know is handed on by the session that we know it from.
            self.counters.without_session += 1
            return
        hand_over = self._checked_hand_over(full_node, sent)
        seqno = self.cache.window.current
        self._early.put(EarlyMessage(message, full_node, hand_over, seqno, self._clock.mono_s()))
        self.counters.early += 1

    def _checked_hand_over(self, full_node: bytes, sent: RempMessage) -> HandOver:
        """Return what proves to others that the full node sent the message; nothing if its key is not known here."""
        if self._full_node_keys is None:
            return UNSIGNED
        public_key = self._full_node_keys.get(full_node)
        if public_key is None or not sent.is_signed_by(public_key):
            who = "an unknown full node" if public_key is None else "full node"
            raise TlDecodeError(
                f"message {sent.message_id.hex()} is not signed by {who} {full_node.hex()} that sent it",
                code=ErrorCode.PROTOCOL_REQUEST,
            )
        return HandOver(sent.timestamp_ms, sent.signature)

    def _runner_for(self, workchain: int, account: bytes) -> SessionRunner | None:
        """Return the newest session that serves the account. A previous member of it takes messages, too, and announces
        them there: a full node that has not heard of the switch yet sends to the session before.
        """
        for session_id in self._current:
            runner, _ = self._sessions[session_id]
            if runner.plan.shard.holds(workchain, account):
                return runner
        return None
