"""A validator of REMP: the chain and the queues of one node, joined.

    full nodes ─ links ─ Validator: queues, receipts ─ QueueBridge ─ ChainValidator: ledger, agreement ─ overlay ─ others
                              └──────────── channels of the same overlay ────────────────────────────────┘

    validator = RempValidator(genesis, seed, chain_store, session_store, public_keys, links, clock, random)
    overlay.start(validator.board)
    validator.start(overlay)
    links.start(validator.queues)
    await validator.close()

Queues speak over channels of the overlay that the chain has anyway, so a session begins without new links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random

from stagepost.catchain.effects import Deliver
from stagepost.catchain.member import Member as QueueMember
from stagepost.chain.agreement.effects import RecoveredVotes
from stagepost.chain.agreement.member import Member as AgreementMember
from stagepost.chain.declined import Switches
from stagepost.chain.genesis import Genesis
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.node.agreement_runner import Notice
from stagepost.chain.node.own_memory import OwnMemory
from stagepost.chain.node.store import ChainStore
from stagepost.chain.node.validator import Answer, ChainOptions, ChainValidator
from stagepost.errors import DecodeError
from stagepost.ground.loop.clock import Clock
from stagepost.ground.statemachine.lifecycle import StartAnswers
from stagepost.ground.wire.tl import key_id
from stagepost.remp.ledger import CollatedBlock, LedgerEvent, LedgerSession
from stagepost.remp.links.overlay import Answered, Overlay, OverlayEvents, ValidatorLinks
from stagepost.remp.links.switchboard import Channel, Switchboard
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.session_switch import CATCHAINS_OF_LIFE
from stagepost.validator.queue_bridge import QueueBridge
from stagepost.validator.session_plan import SessionEvent, SessionOptions, SessionPlan
from stagepost.validator.session_store import SessionStore
from stagepost.validator.sessions import OnAsked, Validator

LOOK_AGAIN_MIN_S, LOOK_AGAIN_MAX_S = 0.02, 1.0
"""Seconds, at least and at most, between two looks at whether a candidate's messages have been announced by
now; longer, the longer it lasts.
"""


class QueueChannel:
    """A queue's overlay: one channel of the network's overlay."""

    def __init__(self, board: Switchboard, channel_id: bytes, channel: Channel) -> None:
        self._board = board
        self._channel_id = channel_id
        self._channel = channel

    def push(self, peer: int, frame: bytes) -> bool:
        return self._channel.push(peer, frame)

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        self._channel.ask(peer, query, answered, timeout_s)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        self._channel.refuse(peer, rule, text)

    async def close(self) -> None:
        self._board.close(self._channel_id)


class RempValidator:
    """`full_node_keys`: public keys by key id, of the full nodes that are served; None for all that have
    links. `on_notice` and `on_event` get events of agreement and of queues for people and watchers; `on_asked` records that a
    full node asks for a challenge.
    """

    def __init__(
        self,
        genesis: Genesis,
        seed: bytes,
        chain_store: ChainStore,
        session_store: SessionStore,
        public_keys: Sequence[bytes],
        links: ValidatorLinks,
        clock: Clock,
        random: Random,
        *,
        full_node_keys: Mapping[bytes, bytes] | None = None,
        chain_options: ChainOptions | None = None,
        session_options: SessionOptions | None = None,
        switches: Switches | None = None,
        memory: OwnMemory | None = None,
        on_events: Callable[[Sequence[LedgerEvent]], None] = lambda events: None,
        on_notice: Callable[[LedgerSession, Notice], None] = lambda session, notice: None,
        on_event: Callable[[SessionPlan, SessionEvent], None] = lambda plan, event: None,
        on_asked: OnAsked = lambda full_node, asked: None,
    ) -> None:
        self._session_store = session_store
        self._clock = clock
        self._taken: dict[bytes, list[ExternalMessage]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._on_events = on_events
        self._on_event = on_event
        self.chain = ChainValidator(
            genesis,
            seed,
            chain_store,
            public_keys,
            clock,
            Random(random.getrandbits(64)),
            collator=self,
            check_messages=self._check_messages,
            on_events=self._heard,
            on_notice=self._noticed,
            options=chain_options,
            switches=switches,
            memory=memory,
        )
        self._on_notice = on_notice
        self.queues = Validator(
            seed,
            session_store,
            links,
            self._make_overlay,
            clock,
            Random(random.getrandbits(64)),
            self._parse,
            options=session_options,
            full_node_keys=full_node_keys,
            on_event=self._queue_spoke,
            on_asked=on_asked,
        )
        self._keys = keys = {key_id(key): key for key in public_keys}
        self.bridge = QueueBridge(
            self.ledger,
            self.queues,
            self.chain.public_key,
            keys,
            clock,
            lambda: self.ledger.master.configuration.skew_ms,
            self.chain.memory,
            lambda: self.ledger.master.configuration.rates,
        )

    @property
    def ledger(self) -> EmbeddedLedger:
        return self.chain.ledger

    @property
    def board(self) -> Switchboard:
        """The receiver of the overlay's events."""
        return self.chain.board

    def start(self, overlay: Overlay) -> None:
        self.chain.start(overlay)
        waiting = self.ledger.following.known.values()
        self.bridge.start((applied.block_id, applied.messages) for applied in waiting)
        self._take_up_earlier()

    def _noticed(self, session: LedgerSession, notice: Notice) -> None:
        if isinstance(notice, RecoveredVotes) and self.chain.memory.note is not None:
            # We have lived before, and forgotten it.
            self.queues.mute()
        self._on_notice(session, notice)

    def remember_sessions(self) -> None:
        """Note the older sessions in which this validator has begun to speak: its memory of them is complete from now on."""
        members: list[tuple[bytes, AgreementMember | QueueMember]] = [
            *((one, runner.member) for one, runner in self.chain.sessions.items()),
            *((one, runner.member) for one, runner in self.queues.current.items()),
        ]
        for session_id, member in members:
            if member.is_started and member.options.answers is not StartAnswers.QUORUM:
                self.chain.memory.spoke(session_id)

    def add_member(self, public_key: bytes) -> None:
        """Know a further member of the network, which the overlay has behind the others."""
        self._keys[key_id(public_key)] = public_key
        self.chain.follower.add_member(public_key)

    def stop(self) -> None:
        """Stop at once, as a crash would."""
        for timer in self._timers:
            timer.cancel()
        self.queues.stop()
        self.chain.stop()

    async def close(self) -> None:
        # The chain stops before the queues' store closes: a rotation in between would begin sessions that nothing can hold.
        self.stop()
        await self.queues.close()
        await self.chain.close()

    def _parse(self, data: bytes) -> ExternalMessage:
        parsed = self.ledger.parse(data)
        ahead_max_ms = self.ledger.master.configuration.expiry_ahead_max_ms
        self.bridge.expiries.note(parsed, self._clock.unix_s() + ahead_max_ms / 1_000)
        return parsed.message

    def _take_up_earlier(self) -> None:
        """Offer the messages that full nodes sent for sessions that ended before this run: this node had
        confirmed to hold them. Each message of which it may have sent receipts must come to an end.
        """
        final_ids = {message.message_id for final in self.ledger.history(0) for message in final.messages}
        lowest = self.ledger.master_session().master_catchain_seqno - CATCHAINS_OF_LIFE + 1
        for session_id, seqno in self._session_store.sessions.items():
            if session_id in self.queues.sessions:
                continue
            content = self._session_store.look_at(session_id)
            for row in content.bodies:
                came_under = seqno if row.known_seqno is None else row.known_seqno
                if row.full_node and came_under >= lowest:
                    try:
                        self.bridge.offer_again(self._parse(row.body), row)
                    except DecodeError:
                        continue  # the chain has gone over to another form of messages
            self.queues.owe(session_id, content, final_ids)

    # Events

    def _heard(self, events: Sequence[LedgerEvent]) -> None:
        self.bridge.heard(events)
        self._on_events(events)

    def _queue_spoke(self, plan: SessionPlan, event: SessionEvent) -> None:
        if isinstance(event, Deliver):
            session_id = self.bridge.session_of(plan.session_id)
            if session_id is not None and self.bridge.has_messages(session_id):
                self.chain.messages_wait(session_id)
        self._on_event(plan, event)

    # The collator

    def has_messages(self, session: LedgerSession) -> bool:
        return self.bridge.has_messages(session.session_id)

    def has_expired(self, session: LedgerSession, after_ms: int, until_ms: int) -> bool:
        return self.bridge.expiries.has_any(session.shard, after_ms, until_ms)

    def take(self, session: LedgerSession) -> list[ExternalMessage]:
        taken = self.bridge.take(session.session_id)
        if taken:
            self._taken[session.session_id] = taken
            # If no block is made of these messages, no call reports it.
            asyncio.get_running_loop().call_soon(self._give_back, session.session_id)
        return taken

    def collated(self, session: LedgerSession, collated: CollatedBlock) -> None:
        taken = self._taken.pop(session.session_id, [])
        self.bridge.collated(session.session_id, taken, collated.reports)

    def _give_back(self, session_id: bytes) -> None:
        taken = self._taken.pop(session_id, None)
        if taken is not None:
            self.bridge.collated(session_id, taken, ())

    # Candidates of others

    def _check_messages(
        self, session: LedgerSession, messages: Sequence[ExternalMessage], answer: Answer
    ) -> None:
        self._look_at(session.session_id, messages, answer, LOOK_AGAIN_MIN_S)

    def _look_at(
        self, session_id: bytes, messages: Sequence[ExternalMessage], answer: Answer, pause_s: float
    ) -> None:
        """Answer for a candidate once all its messages have been announced to us; look again every `pause_s`
        seconds or later.

        A message of which we have not heard may be on its way. Until it is here we do not answer, which is no
        vote for the candidate; a refusal could not be taken back when others have agreed on it meanwhile.
        """
        is_over = self.ledger.chain(session_id) is None
        if not is_over and self.bridge.has_unknown(session_id, messages):
            longer_s = min(2 * pause_s, LOOK_AGAIN_MAX_S)
            self._after(pause_s, lambda: self._look_at(session_id, messages, answer, longer_s))
        else:
            answer(self.bridge.fault_in(session_id, messages))

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            act()

        timer = asyncio.get_running_loop().call_later(seconds, due)
        self._timers.add(timer)

    # Links

    def _make_overlay(self, plan: SessionPlan, events: OverlayEvents) -> QueueChannel:
        channel = self.board.open(plan.session_id, plan.public_keys, events)
        # The queue has started by then.
        asyncio.get_running_loop().call_soon(self.board.hand_over_early, plan.session_id)
        return QueueChannel(self.board, plan.session_id, channel)
