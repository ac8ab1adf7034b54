"""A validator in one session: graph and queue on links, disk and clock.

    full nodes → offer ─ queue ─ member ─ store ─ overlay → others
    others → pushed, asked ─ member ─ store ─ queue ─ tell → full nodes

Calls, not tasks: an event is handled in the same turn of the loop, and one timer wakes both cores. A receipt
leaves when the message that it is for cannot be lost any more, a block when it is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple, TypeAlias

import msgspec

from stagepost.catchain.block import UPDATE_ID
from stagepost.catchain.effects import (
    Ask,
    BlameReport,
    Deliver,
    Effect,
    Halt,
    Persist,
    RecoveryReport,
    RefusalReport,
    Reply,
    Send,
)
from stagepost.catchain.graph import Graph
from stagepost.catchain.member import Member
from stagepost.catchain.quorum_watch import QuorumWatch
from stagepost.errors import DecodeError, TlDecodeError
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.alarm import Alarm
from stagepost.ground.loop.clock import Clock
from stagepost.ground.loop.pacer import pacer
from stagepost.ground.statemachine.lifecycle import StartAnswers
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES, constructor_bytes, key_id
from stagepost.remp.links.overlay import RESYNC_WAIT_S, Overlay
from stagepost.remp.message import BODY_ID, QUERY_ID, ExternalMessage, MessageBody, MessageQuery
from stagepost.remp.queue.body_search import ASK_AGAIN_S
from stagepost.remp.queue.effects import (
    AnswerChallenge,
    AskForBody,
    BroadcastBody,
    Introduce,
    QueueEffect,
    SpeakSoon,
    Tell,
    Telling,
)
from stagepost.remp.queue.message_cache import MessageCache, Standing
from stagepost.remp.queue.message_states import ENTERING, place_of
from stagepost.remp.queue.records import UNSIGNED, HandOver, date_rules
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.queue.state import Vouches
from stagepost.remp.receipts.message_status import MessageStatus
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.statements import StatementLink, empty_chain
from stagepost.validator.held_messages import EarlyBodies, PostponedMessages
from stagepost.validator.session_plan import Parse, SessionCounters, SessionEvent, SessionOptions, SessionPlan
from stagepost.validator.session_store import BodyRow, SessionStore

QUORUM_EVERY_S = 2.0
"""Seconds between two looks at whether enough members are heard of."""

_BLOCK, _BODY, _QUERY = (constructor_bytes(one) for one in (UPDATE_ID, BODY_ID, QUERY_ID))


NewestLink: TypeAlias = Callable[[bytes, bytes, Callable[[StatementLink], None]], None]


class EarlierReceipts(NamedTuple):
    """`said`: the last receipts of messages from an earlier run of this node, until a session resumes the
    messages; `repeat` sends receipts as they are, each to the full node beside it.
    """

    said: dict[bytes, tuple[Receipt, ...]]
    repeat: Callable[[list[tuple[bytes, Receipt]]], None]


class SessionRunner:
    """`tell` gets receipts to be dated, signed and sent; `on_event` gets events for people and watchers.
    `vouches` checks the full node's signature in a header. `newest` hands over the
    newest link of our receipts of a message in a session, as soon as the link is on disk. `on_quorum` is called when
    `awaits_quorum` ends by answers.
    """

    def __init__(
        self,
        plan: SessionPlan,
        seed: bytes,
        cache: MessageCache,
        store: SessionStore,
        clock: Clock,
        random: Random,
        parse: Parse,
        tell: Callable[[Sequence[Telling]], None],
        options: SessionOptions | None = None,
        on_event: Callable[[SessionEvent], None] = lambda event: None,
        resuming: EarlierReceipts | None = None,
        vouches: Vouches | None = None,
        newest: NewestLink = lambda session_id, message_id, then: then(empty_chain(session_id, message_id)),
        on_quorum: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan = plan
        self.counters = SessionCounters()
        self.options = options or SessionOptions()
        dates = date_rules(plan.starts_ms, plan.skew_ms, plan.rates)
        self.graph = Graph(
            plan.incarnation, plan.public_keys, self.options.rules, verify=ed25519.verify, dates=dates
        )
        self.queue = ReliableQueue(plan.queue_session, cache, self.options.queue, vouches)
        self._seed = seed
        self._cache = cache
        self._store = store
        self._clock = clock
        self._random = random
        self._parse = parse
        self._tell = tell
        member = self.options.member
        self.awaits_quorum = member.start_wait_s > 0 and member.answers is StartAnswers.QUORUM
        """True until a quorum has shown what this validator said here before, or the session is over."""
        self._on_event = on_event
        self._early = EarlyBodies()
        self._held_back = PostponedMessages(self._release)
        self._newest = newest
        self._on_quorum = on_quorum
        self._resuming = resuming or EarlierReceipts({}, lambda spoken: None)
        self._replies: dict[int, Callable[[bytes], None]] = {}
        self._reply_number = 0
        self._alarm = Alarm(clock, self._wake)
        self._is_timer_due = False
        self._is_stopped = False
        self._quorum_at = 0.0
        self._overlay: Overlay
        self._member: Member
        self._quorum: QuorumWatch

    @property
    def member(self) -> Member:
        return self._member

    @property
    def writes_failed(self) -> int:
        return self._store.writes_failed

    def start(self, overlay: Overlay) -> None:
        """Start from what the disk holds. No event may come in before."""
        self._overlay = overlay
        content = self._store.load(self.plan.session_id)
        self._store.begin(self.plan.session_id, self.plan.masterchain_seqno)
        options = self.options.member
        if content.is_suspect:
            options = msgspec.structs.replace(options, start_wait_s=max(options.start_wait_s, RESYNC_WAIT_S))
        self._member = Member(
            self.graph,
            self.plan.index,
            self._seed,
            lambda is_due, account: self.queue.next_payload(self._clock.unix_s(), account, is_due=is_due),
            self._random,
            self._clock.mono_s(),
            options,
            current=self.plan.current,
            unix_ms=lambda: int(self._clock.unix_s() * 1_000),
            pressure=pacer().pressure,
        )
        self._quorum = QuorumWatch(self._member, self._clock.mono_s(), current=self.plan.current)
        self._perform(self._member.restore(content.frames, self._clock.mono_s()))
        for row in content.bodies:
            message = self._parse(row.body)
            if message.message_id in self.queue:
                self._do(self.queue.body_came(message, self._clock.unix_s()))
            if row.full_node and not self._is_told(message.message_id, row.full_node):
                # A receipt may have been given for it, while the block that was to announce it never was, or names
                # another full node.
                seqno = row.known_seqno
                is_alive = seqno is not None and seqno in self._cache.window
                self._offer_now(message, row.full_node, row.hand_over, seqno if is_alive else None)
        self._set_timer()

    def release_all(self) -> None:
        """Announce all held messages: the session is about to end, so none is left to other members any more."""
        for message_id in self._held_back.ids():
            self._release(message_id)

    def stop(self) -> None:
        """Send nothing any more. Records on their way to the disk still get there."""
        self._is_stopped = True
        self._alarm.cancel()
        self._held_back.clear()

    # From full nodes

    def offer(
        self,
        message: ExternalMessage,
        full_node: bytes,
        hand_over: HandOver = UNSIGNED,
        masterchain_seqno: int | None = None,
    ) -> None:
        """Take a message of a full node, with its checked `hand_over`. A message that is fully known is dropped; one that another member is
        about to announce is held back for a moment. `masterchain_seqno` is the catchain under which it came, if not the
        present one.
        """
        message_id = message.message_id
        cached = self._cache.get(message_id)
        if message_id in self._held_back:
            return
        if (
            cached is not None
            and cached.body is not None
            and full_node in cached.origins
            and message_id in self.queue
        ):
            return
        is_announced_soon = message_id in self._early and message_id not in self.queue
        now_seqno = self._cache.window.current
        is_present = masterchain_seqno is None
        if (
            is_present
            and is_announced_soon
            and self._held_back.hold(message, full_node, hand_over, now_seqno)
        ):
            self.counters.held_back += 1
            return
        self._offer_now(message, full_node, hand_over, masterchain_seqno)
        self._set_timer()

    def _release(self, message_id: bytes) -> None:
        held = self._held_back.take(message_id)
        if held is not None and not self._is_stopped:
            self._offer_now(held.message, held.full_node, held.hand_over, held.masterchain_seqno)
            self._set_timer()

    def _offer_now(
        self,
        message: ExternalMessage,
        full_node: bytes,
        hand_over: HandOver,
        masterchain_seqno: int | None = None,
    ) -> None:
        self.counters.offered += 1
        cached = self._cache.get(message.message_id)
        is_new = message.message_id not in self.queue or cached is None or cached.body is None
        # Whoever hears of a message must hear of its end, also after a restart.
        is_first_heard = cached is None or full_node not in cached.origins
        effects = self.queue.offer(message, full_node, self._clock.unix_s(), hand_over, masterchain_seqno)
        self._early.take(message.message_id)
        if (is_new or is_first_heard) and message.message_id in self.queue:
            # The receipts of the message are stored behind its body, and leave when both are on disk.
            self._store.put_body(self._row(message, full_node, hand_over))
        self._do(effects)

    def _is_told(self, message_id: bytes, full_node: bytes) -> bool:
        """Return whether the queue tells the full node of the message, or was told that the message is processed."""
        cached = self._cache.get(message_id) if message_id in self.queue else None
        if cached is None:
            return False
        return full_node in cached.origins or cached.standing is Standing.FORWARDED_FINAL

    # From other members

    def pushed(self, peer: int, frame: bytes) -> None:
        if self._is_stopped:
            return
        tag = frame[:CONSTRUCTOR_BYTES]
        if tag == _BLOCK:
            self._perform(self._member.frame_received(peer, frame, self._clock.mono_s()))
        elif tag == _BODY:
            self._body_came(peer, MessageBody.decode(frame).message)
        else:
            raise TlDecodeError(f"member {peer} pushed {tag.hex()}, neither a block nor a body", offset=0)
        self._set_timer()

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        if self._is_stopped:
            return
        if query[:CONSTRUCTOR_BYTES] == _QUERY:
            self.counters.bodies_answered += 1
            reply(MessageBody(self._body_of(MessageQuery.decode(query).message_id)).encode())
            return
        self._reply_number += 1
        self._replies[self._reply_number] = reply
        self._perform(self._member.query_received(peer, self._reply_number, query, self._clock.mono_s()))
        self._replies.pop(self._reply_number, None)
        self._set_timer()

    def linked(self, peer: int) -> None:
        """Ask the peer for missing bodies now; the member asks for missed blocks within moments anyway."""
        if not self._is_stopped:
            self.perform(self.queue.member_reached(self._clock.unix_s()))

    def _body_of(self, message_id: bytes) -> bytes:
        """Return the bytes of a message; empty if they are not here."""
        cached = self._cache.get(message_id)
        if cached is not None and cached.body is not None:
            return cached.body.body
        held = self._held_back.get(message_id)
        return b"" if held is None else held.body

    def _body_came(self, peer: int, body: bytes) -> None:
        message = self._parse(body)
        cached = self._cache.get(message.message_id)
        if cached is None:
            self._early.put(peer, message, self._clock.mono_s())
        elif cached.body is None:
            self._store.put_body(self._row(message))
            self._do(self.queue.body_came(message, self._clock.unix_s()))

    def _body_answered(self, peer: int, message_id: bytes, answer: bytes | None) -> None:
        if self._is_stopped:
            return
        try:
            body = b"" if answer is None else MessageBody.decode(answer).message
            if body and self._parse(body).message_id != message_id:
                raise TlDecodeError(f"member {peer} sent another body than the requested one", offset=0)
        except DecodeError as error:
            self._refuse(RefusalReport(peer, "WrongBody", error.text))
            body = b""
        if body:
            self._body_came(peer, body)
        else:
            self._do(self.queue.body_not_had(message_id, self._clock.unix_s()))
        self._set_timer()

    # What the graph wants done

    def _perform(self, effects: Sequence[Effect]) -> None:
        overlay = self._overlay
        for effect in effects:
            match effect:
                case Send(peer, frame):
                    self.counters.blocks_pushed += 1
                    self.counters.pushes_dropped += not overlay.push(peer, frame)
                case Persist(block_hash, frame):
                    written = partial(self._block_written, block_hash)
                    self._store.put_block(self.plan.session_id, frame, written)
                case Deliver(source, _, _, payload, floor_ms, unanswered):
                    now = self._clock.unix_s()
                    self._do(self.queue.block_delivered(source, payload, now, floor_ms, unanswered))
                    self._on_event(effect)
                    self._release_announced()
                case Ask(peer, number, query):
                    overlay.ask(peer, query, partial(self._answered, peer, number), self._query_timeout_s)
                case Reply(_, number, answer):
                    self._replies[number](answer)
                case BlameReport(source):
                    self._do(self.queue.member_blamed(source, self._clock.unix_s()))
                    self._on_event(effect)
                case RefusalReport():
                    self._refuse(effect)
                case RecoveryReport() | Halt():
                    self._on_event(effect)

    @property
    def _query_timeout_s(self) -> float:
        return self.options.member.sync.query_timeout_s

    def _answered(self, peer: int, number: int, answer: bytes | None) -> None:
        if not self._is_stopped:
            self._perform(self._member.answered(peer, number, answer, self._clock.mono_s()))
            self._set_timer()

    def _refuse(self, refused: RefusalReport) -> None:
        self.counters.refused[refused.rule] += 1
        self._overlay.refuse(refused.peer, refused.rule, refused.text)
        self._on_event(refused)

    def _block_written(self, block_hash: bytes) -> None:
        if self._is_stopped:
            return
        self._perform(self._member.stored(block_hash, self._clock.mono_s()))
        self._set_timer()

    # What the queue wants done

    def _do(self, effects: Sequence[QueueEffect]) -> None:
        tells: list[Telling] = []
        resumed: dict[bytes, list[Telling]] = {}
        for effect in effects:
            match effect:
                case Tell(_, message_id) | Introduce(_, message_id):
                    if message_id in self._resuming.said:
                        resumed.setdefault(message_id, []).append(effect)
                    else:
                        tells.append(effect)
                case SpeakSoon():
                    self._perform(self._member.speak_soon(self._clock.mono_s()))
                case BroadcastBody(_, body):
                    frame = MessageBody(body).encode()
                    for peer in self.plan.others:
                        self.counters.bodies_pushed += 1
                        self.counters.pushes_dropped += not self._overlay.push(peer, frame)
                case AskForBody(member, message_id):
                    self._find_body(member, message_id)
                case AnswerChallenge(session_id, message_id):
                    self._newest(session_id, message_id, self._answer)
        if tells:
            self._tell(tells)
        for message_id, told in resumed.items():
            self._resume(message_id, told)

    def challenge(self, accused: int, last: StatementLink) -> None:
        """Challenge member `accused` to show its newest receipt of the message that `last` is about."""
        if accused != self.plan.index:
            self.perform(self.queue.challenge(key_id(self.plan.public_keys[accused]), last))

    def _answer(self, newest: StatementLink) -> None:
        if not self._is_stopped:
            self.counters.challenges_answered += 1
            self.perform(self.queue.answer(newest))

    def _resume(self, message_id: bytes, tells: list[Telling]) -> None:
        """Resume a message that entered the queue again after a restart, as if it were new.

        The full nodes may not have got its last receipts, so these are sent again as they were; further
        receipts must follow from them.
        """
        said = self._resuming.said.pop(message_id)
        full_nodes = dict.fromkeys(one.full_node for one in tells)
        self._resuming.repeat([(full_node, receipt) for full_node in full_nodes for receipt in said])
        if all(place_of(_status_in(one)) in ENTERING for one in tells):
            self._do(self.queue.resume(message_id, said[-1].status))
        else:
            self._do(tells)

    def perform(self, effects: Sequence[QueueEffect]) -> None:
        """Perform the effects of a call to the queue by the collator, the chain or the switch."""
        self._do(effects)
        self._set_timer()

    def close_open(self, effects: Sequence[QueueEffect]) -> None:
        """Report to full nodes, after `stop`, what became of their messages; send nothing to other members."""
        tells = [effect for effect in effects if isinstance(effect, Tell | Introduce)]
        if tells:
            self._tell(tells)

    def _find_body(self, member: int, message_id: bytes) -> None:
        message = self._body_at_hand(message_id)
        if message is not None:
            self._store.put_body(self._row(message))
            self._do(self.queue.body_came(message, self._clock.unix_s()))
            return
        self.counters.bodies_asked += 1
        answered = partial(self._body_answered, member, message_id)
        self._overlay.ask(member, MessageQuery(message_id).encode(), answered, ASK_AGAIN_S)

    def _body_at_hand(self, message_id: bytes) -> ExternalMessage | None:
        came_at = self._early.since(message_id)
        if came_at is not None:
            self._held_back.note_lag(self._clock.mono_s() - came_at)
        held = self._held_back.get(message_id)
        if held is not None:
            return held
        stored = self._store.found_body(message_id)
        return self._early.take(message_id) if stored is None else self._parse(stored)

    def _release_announced(self) -> None:
        """Offer each held message that another member has announced meanwhile, so that our own full node
        becomes an origin of it.
        """
        for message_id in [one for one in self._held_back.ids() if one in self.queue]:
            self._release(message_id)

    # Disk and time

    def _row(
        self, message: ExternalMessage, full_node: bytes = b"", hand_over: HandOver = UNSIGNED
    ) -> BodyRow:
        session_id, message_id = self.plan.session_id, message.message_id
        cached = self._cache.get(message_id)
        seqno = -1 if cached is None else cached.header.masterchain_seqno
        of_node = full_node, hand_over.at_ms, hand_over.signature
        return BodyRow(session_id, message_id, message.body, *of_node, seqno)

    def _set_timer(self) -> None:
        """Set the timer once for all that happens in one turn of the loop."""
        if not self._is_timer_due and not self._is_stopped:
            self._is_timer_due = True
            asyncio.get_running_loop().call_soon(self._set_timer_now)

    def _set_timer_now(self) -> None:
        self._is_timer_due = False
        if self._is_stopped:
            return
        at = self._member.next_wake
        queue_wake = self.queue.next_wake
        if queue_wake is not None:
            at = min(at, self._clock.mono_s() + queue_wake - self._clock.unix_s())
        self._alarm.set(at)

    def _wake(self) -> None:
        now = self._clock.mono_s()
        self._perform(self._member.tick(now))
        if self.awaits_quorum and self._member.is_started:
            self.awaits_quorum = False
            self._on_quorum()
        self._do(self.queue.tick(self._clock.unix_s()))
        if now >= self._quorum_at:
            self._quorum_at = now + QUORUM_EVERY_S
            report = self._quorum.look(now)
            if report is not None:
                self._on_event(report)
        self._set_timer()


def _status_in(telling: Telling) -> MessageStatus:
    return telling.status if isinstance(telling, Tell) else telling.statuses[-1]
