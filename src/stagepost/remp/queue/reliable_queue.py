"""The queue of external messages of one shard session, as one validator keeps it: events in, effects out.

    full node → offer ─┐                                 ┌→ take → collator → collated → shard and master blocks
    other validators → block_delivered, body_came → queue ┘            every step is told to the full node

Validators hear of one another's messages in blocks of a graph, each in an order of its own. So whatever they must
agree on is a set, a count or a minimum, never a first come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stagepost.catchain.budgets import AuthorAccount
from stagepost.remp.message import ExternalMessage, Origin, header_of
from stagepost.remp.queue.collation import Collation, Report
from stagepost.remp.queue.effects import QueueEffect, SpeakSoon, Tell
from stagepost.remp.queue.hearing import HELD_BACK, RecordIntake
from stagepost.remp.queue.message_cache import ORIGINS_MAX, CachedMessage, MessageCache, Standing
from stagepost.remp.queue.message_states import COLLATABLE, OPEN, Event, place_of
from stagepost.remp.queue.records import UNSIGNED, HandOver, LinkAnswer, LinkChallenge, Record
from stagepost.remp.queue.state import OVERLOADED, QueueOptions, QueueSession, QueueState, Vouches
from stagepost.remp.receipts.message_status import MessageStatus, New, Rejected
from stagepost.remp.receipts.statements import StatementLink
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId

HELD_BACK_S = 0.1
"""Seconds after which records that our budget held back are tried again."""

NOTHING_WRITTEN = AuthorAccount()


class ReliableQueue:
    """`cache` belongs to the node: its queues share it, one after the other."""

    def __init__(
        self,
        session: QueueSession,
        cache: MessageCache,
        options: QueueOptions | None = None,
        vouches: Vouches | None = None,
    ) -> None:
        self.session = session
        self.cache = cache
        self._state = QueueState(session, cache, options or QueueOptions(), vouches)
        self._intake = RecordIntake(self._state)
        self._collation = Collation(self._state)
        self._payload_number = 0
        self._speak_at: float | None = None

    # What is known

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._state.entries

    @property
    def known_ids(self) -> frozenset[bytes]:
        """The ids of all living messages that any member ever put into this queue."""
        return frozenset(self._state.entries)

    @property
    def open_count(self) -> int:
        return self._state.open_count

    @property
    def has_collatable(self) -> bool:
        """Return whether `take` would return a message. Messages that wait for their body or for an
        announcement do not count.
        """
        return self._collation.has_collatable

    def entries(self) -> list[CachedMessage]:
        """Return the messages of this queue in the order of their arrival here."""
        return [entry.cached for entry in self._state.entries.values()]

    def status(self, message_id: bytes) -> MessageStatus | None:
        cached = self.cache.get(message_id)
        return None if cached is None else cached.status

    def rejected_by(self, message_id: bytes) -> frozenset[int]:
        """Return the indexes of the present validators whose collators have refused the message."""
        entry = self._state.entries.get(message_id)
        return frozenset() if entry is None else frozenset(entry.rejected_by)

    @property
    def next_wake(self) -> float | None:
        """Time at which `tick` must be called at the latest, in seconds; None if nothing waits."""
        times = [self._intake.search.next_wake, self._speak_at]
        oldest_s = self._state.oldest_open_s()
        if oldest_s is not None:
            times.append(oldest_s + self._state.options.message_timeout_s)
        return min((at for at in times if at is not None), default=None)

    # From full nodes

    def offer(
        self,
        message: ExternalMessage,
        source_key_id: bytes,
        now: float,
        hand_over: HandOver = UNSIGNED,
        masterchain_seqno: int | None = None,
    ) -> list[QueueEffect]:
        """Take a message that a full node sent, with its checked `hand_over`. A message that other validators have announced is
        announced again only if they did not name this full node: all are to tell it. `masterchain_seqno` is the catchain under which it came, if not the present one: its life is counted
        from it.
        """
        seqno = self._state.masterchain_seqno if masterchain_seqno is None else masterchain_seqno
        state = self._state
        origin = Origin(source_key_id, self.session.index, int(now * 1_000), hand_over)
        cached = self.cache.get(message.message_id)
        if cached is None:
            if state.pending.is_held_back:
                return [self._refusal(source_key_id, message.message_id, HELD_BACK)]
            if not state.make_room(source_key_id):
                return [*state.taken(), self._refusal(source_key_id, message.message_id, OVERLOADED)]
            header = header_of(message, origin, seqno)
            cached = self.cache.add(header, New(), Standing.OWN, now)
            cached.add_origin(origin, is_direct=True)
            state.tell(cached, New())
        elif cached.standing is Standing.FORWARDED_FINAL:
            # Other validators say that it was processed. We have no proof, and this full node waits for the message.
            cached.add_origin(origin, is_direct=True)
            self._intake.reopen(cached, header_of(message, origin, seqno))
            state.put(cached.header)
        elif cached.add_origin(origin, is_direct=True):
            state.introduce(cached, source_key_id)
            is_believed = hand_over != UNSIGNED and len(cached.origins) <= ORIGINS_MAX
            if is_believed and place_of(cached.status) in OPEN:
                state.put(header_of(message, origin, seqno))
        self._intake.body_is_here(cached, message)
        is_new_here = message.message_id not in state.entries
        if is_new_here:
            state.enter(cached, source_key_id)
            state.put(cached.header)
            state.broadcast(cached)
        state.entries[message.message_id].is_ours = True
        return state.taken()

    def _refusal(self, full_node: bytes, message_id: bytes, reason: str) -> Tell:
        self.cache.note_refused(message_id, full_node)
        return Tell(full_node, message_id, Rejected(Level.QUEUE, reason))

    # From other validators

    def next_payload(
        self, now: float, account: AuthorAccount = NOTHING_WRITTEN, *, is_due: bool = False
    ) -> bytes | None:
        """Return the payload of our next block, which follows the blocks of `account`; None if no record may go, and no
        block `is_due` without one.
        """
        self._payload_number += 1
        pending = self._state.pending
        payload = pending.next_payload(self._payload_number, int(now * 1_000), account, is_due=is_due)
        self._speak_at = now + HELD_BACK_S if pending.is_held_back else None
        return payload

    def block_delivered(
        self,
        source: int,
        payload: bytes,
        now: float,
        floor_ms: int | None = None,
        unanswered: Sequence[bytes] = (),
    ) -> list[QueueEffect]:
        """Apply the payload of a block that member `source` made; `source` may be this validator itself. Nothing in
        it counts as earlier than `floor_ms`, in Unix milliseconds. `unanswered` are the subjects of challenges that its
        author has to answer.
        """
        self._intake.block_delivered(source, payload, now, floor_ms, unanswered)
        return self._state.taken()

    def challenge(self, accused: bytes, last: StatementLink) -> list[QueueEffect]:
        """Ask the member with key id `accused` for its newest receipt of the message that `last` is about; once for each
        message, session and member. The member's own blocks convict it if it goes on without an answer.
        """
        self._intake.challenge(LinkChallenge(accused, last))
        return self._state.taken()

    def answer(self, newest: StatementLink) -> list[QueueEffect]:
        """Answer a challenge with the newest link of our receipts of its message, which must be on disk."""
        self._state.put(LinkAnswer(newest))
        return self._state.taken()

    def body_came(self, message: ExternalMessage, now: float) -> list[QueueEffect]:
        """Take a body that came by broadcast or as an answer. A body that no member has announced is dropped:
        otherwise anybody could fill the memory of this node.
        """
        cached = self.cache.get(message.message_id)
        if cached is not None:
            self._intake.body_is_here(cached, message)
        return self._state.taken()

    def body_not_had(self, message_id: bytes, now: float) -> list[QueueEffect]:
        """Note that the member asked for the body does not have it, or cannot be asked."""
        self._intake.body_not_had(message_id, now)
        return self._state.taken()

    def member_reached(self, now: float) -> list[QueueEffect]:
        """Note that a member can be reached again: it may have the bodies that are missing here."""
        self._intake.search.ask_soon(now)
        self._intake.ask_again(now)
        return self._state.taken()

    def member_blamed(self, source: int, now: float) -> list[QueueEffect]:
        self._intake.member_blamed(source)
        return self._state.taken()

    # The collator and other validators' candidates

    def take(self, now: float, count_max: int) -> tuple[list[ExternalMessage], list[QueueEffect]]:
        """Return at most `count_max` messages for the next block, in order, and the effects."""
        return self._collation.take(count_max), self._state.taken()

    def collated(self, reports: Iterable[tuple[bytes, Report]], now: float) -> list[QueueEffect]:
        """Apply the collator's report on each message that it took."""
        self._collation.collated(reports)
        return self._state.taken()

    def check_candidate(self, message_ids: Sequence[bytes]) -> str | None:
        """Return why a candidate with these external messages must be declined; None if it may stand."""
        return self._collation.check_candidate(message_ids)

    def has_unannounced(self, message_ids: Iterable[bytes]) -> bool:
        """Return whether this queue holds one of `message_ids` that no catchain block has announced yet."""
        return self._collation.has_unannounced(message_ids)

    def candidate_seen(
        self, block_id: BlockId, message_ids: Sequence[bytes], now: float
    ) -> list[QueueEffect]:
        """Note that the candidate of another validator holds these messages."""
        self._collation.candidate_seen(block_id, message_ids)
        return self._state.taken()

    def candidate_lost(self, block_id: BlockId, now: float) -> list[QueueEffect]:
        """Note that a candidate was lost and nobody is to blame: its messages return to the queue."""
        self._collation.candidate_lost(block_id)
        return self._state.taken()

    def candidate_refused(
        self, block_id: BlockId, now: float, replayed: Sequence[bytes] = ()
    ) -> list[QueueEffect]:
        """Note that validators refused a candidate. Its messages may be collated again, except `replayed`,
        which were the reason.
        """
        self._collation.candidate_refused(block_id, replayed)
        return self._state.taken()

    # The chain

    def shard_committed(
        self, block_id: BlockId, message_ids: Sequence[bytes], now: float
    ) -> list[QueueEffect]:
        self._collation.shard_committed(block_id, message_ids)
        return self._state.taken()

    def shard_dropped(self, block_id: BlockId, message_ids: Sequence[bytes], now: float) -> list[QueueEffect]:
        """Note that the masterchain went on without the shard block."""
        self._collation.shard_dropped(block_id, message_ids)
        return self._state.taken()

    def master_committed(
        self,
        block_id: BlockId,
        master_id: BlockId,
        messages: Sequence[ExternalMessage],
        now: float,
        *,
        masterchain_seqno: int | None = None,
    ) -> list[QueueEffect]:
        """Note that a master block holds the shard block, so that these messages are final.

        `masterchain_seqno` is the catchain of the master block, if it is not the present one: the time for
        which the messages are remembered is counted from it.
        """
        seqno = self._state.masterchain_seqno if masterchain_seqno is None else masterchain_seqno
        for message in messages:
            self.cache.index_final(message, seqno, block_id, master_id, now)
            self._intake.search.end(message.message_id)
            cached = self.cache.get(message.message_id)
            assert cached is not None, "it was indexed just now"
            self._state.set_status(cached, cached.status)
        return self._state.taken()

    # After a crash

    def resume(self, message_id: bytes, said: MessageStatus) -> list[QueueEffect]:
        """Restore what this validator reported last, in an earlier run, of a message that entered the queue
        again.

        A closed message stays closed. The fate of a candidate that was undecided then is not known here, so
        its message returns to the queue.
        """
        state, cached = self._state, self.cache.get(message_id)
        if cached is not None and place_of(cached.status) in COLLATABLE:
            state.set_status(cached, said)
            _ = state.apply(cached, Event.OTHER_COMMITTED) or state.apply(cached, Event.CANDIDATE_LOST)
        return state.taken()

    # Time

    def tick(self, now: float) -> list[QueueEffect]:
        for cached in self._state.open_since(now - self._state.options.message_timeout_s):
            self._state.apply(cached, Event.LIFE_OVER)
        self._intake.ask_again(now)
        if self._speak_at is not None and now >= self._speak_at:
            self._speak_at = None
            self._state.add(SpeakSoon())
        return self._state.taken()

    def lives_over(self, gone: Iterable[CachedMessage], now: float) -> list[QueueEffect]:
        """Close every open message among `gone`, which the cache has let go of."""
        for cached in gone:
            if cached.message_id in self._state.entries:
                self._state.apply(cached, Event.LIFE_OVER)
                self._state.leave(cached.message_id)
            self._intake.search.end(cached.message_id)
            self._state.pending.drop_headers(cached.message_id, cached.sources)
        return self._state.taken()

    # The switch to the next session

    def session_ended(self, now: float) -> list[QueueEffect]:
        """Return to the queue every message that waits for a block of this session, so that it can be handed
        on: no further block can follow.
        """
        self._collation.session_ended()
        return self._state.taken()

    def forward_into(
        self, records: Sequence[Record], bodies: Iterable[ExternalMessage], now: float
    ) -> list[QueueEffect]:
        """Take over the records and bodies of a queue that ends and that this one follows.

        They stand here at once: this session, too, may end before a block of ours has announced them.
        """
        for record in records:
            self._intake.forward(record, now)
        for body in bodies:
            cached = self.cache.get(body.message_id)
            if cached is not None:
                self._intake.body_is_here(cached, body)
                self._state.broadcast(cached)
        return self._state.taken()
