"""The queue of external messages of one shard session, as one validator keeps it: events in, effects out.

    full node → offer ─┐                                 ┌→ take → collator → collated → shard and master blocks
    other validators → block_delivered, body_came → queue ┘            every step is told to the full node

Validators hear of one another's messages in blocks of a graph, each in an order of its own. So whatever they must
agree on is a set, a count or a minimum, never a first come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stagepost.errors import DecodeError
from stagepost.remp.block_id import BlockId
from stagepost.remp.body_search import BodySearch
from stagepost.remp.message import ExternalMessage, Origin, header_of
from stagepost.remp.message_cache import (
    Absent,
    CachedMessage,
    Fresh,
    MessageCache,
    Standing,
    UidTaken,
)
from stagepost.remp.message_states import BELOW_SHARD, Event, after, is_collatable, place_of
from stagepost.remp.message_status import (
    Accepted,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    Timeout,
    block_of,
)
from stagepost.remp.pending_records import PendingRecords, RecordLimits
from stagepost.remp.queue_effects import AskForBody, BroadcastBody, QueueEffect, SpeakSoon, Tell
from stagepost.remp.queue_records import (
    Accept,
    Digest,
    Header,
    Ids,
    OlderDigest,
    OlderHeader,
    Record,
    Reject,
    decode_payload,
)
from stagepost.remp.status import Level

MESSAGE_TIMEOUT_S = 240.0
MESSAGES_MAX = 10_000
COUNTS_WITHOUT_HEADER_MAX = 10_000
CLOCK_AHEAD_SEQNO_MAX = 1
"""Another validator may have seen the next master block before us, but not the one after it."""

OVERLOADED = "the queue of this shard is full; send it again later"
REJECTED_BEFORE = "rejected in an earlier session"
REJECTED_BY_MOST = "rejected by two thirds of the validators"
_NOBODY = bytes(32)


class QueueOptions(msgspec.Struct, frozen=True):
    """`tells_collation`: whether accept and reject records are put into the graph; quorums of rejects need them."""

    message_timeout_s: float = MESSAGE_TIMEOUT_S
    messages_max: int = MESSAGES_MAX
    tells_collation: bool = True
    records: RecordLimits = RecordLimits()


class QueueSession(msgspec.Struct, frozen=True):
    """`current` are the members that validate now, by their index in the queue; the others are previous ones."""

    masterchain_seqno: int
    index: int
    current: frozenset[int]
    member_count: int


class _Entry:
    """A message in this queue, and what members have said of it here."""

    __slots__ = ("announced_by", "cached", "is_accepted_elsewhere", "rejected_by", "timestamp_ms")

    def __init__(self, cached: CachedMessage, timestamp_ms: int) -> None:
        self.cached = cached
        self.timestamp_ms = timestamp_ms
        self.announced_by: set[int] = set()
        self.rejected_by: set[int] = set()
        self.is_accepted_elsewhere = False

    @property
    def order(self) -> tuple[bool, int, bytes]:
        return not self.is_accepted_elsewhere, self.timestamp_ms, self.cached.message_id


class Executed(msgspec.Struct, frozen=True):
    block_id: BlockId


class Refused(msgspec.Struct, frozen=True):
    block_id: BlockId
    error: str


class LeftOut(msgspec.Struct, frozen=True):
    block_id: BlockId


class NotAskedFor(msgspec.Struct, frozen=True):
    """The collator never looked at it: it stands where it stood."""


Report = Executed | Refused | LeftOut | NotAskedFor


class ReliableQueue:
    def __init__(
        self, session: QueueSession, cache: MessageCache, now: float, options: QueueOptions | None = None
    ) -> None:
        self.session = session
        self.cache = cache
        self.options = options or QueueOptions()
        self._entries: dict[bytes, _Entry] = {}
        self._pending = PendingRecords(self.options.records)
        self._search = BodySearch(session.index, session.member_count)
        self._taken_from: dict[bytes, MessageStatus] = {}
        self._candidates: dict[BlockId, tuple[bytes, ...]] = {}
        self._counted_early: dict[bytes, _Entry] = {}
        self._effects: list[QueueEffect] = []
        self._last_payload_number = 0

    # What is known

    @property
    def known_ids(self) -> frozenset[bytes]:
        """Every message that was ever put into this queue, by anybody."""
        return frozenset(self._entries)

    @property
    def open_count(self) -> int:
        return sum(place_of(entry.cached.status) in BELOW_SHARD for entry in self._entries.values())

    def status(self, message_id: bytes) -> MessageStatus | None:
        cached = self.cache.get(message_id)
        return None if cached is None else cached.status

    def rejected_by(self, message_id: bytes) -> frozenset[int]:
        entry = self._entries.get(message_id) or self._counted_early.get(message_id)
        return frozenset() if entry is None else frozenset(entry.rejected_by)

    @property
    def next_wake(self) -> float | None:
        times = [self._search.next_wake]
        open_since = [
            entry.cached.first_seen_s
            for entry in self._entries.values()
            if place_of(entry.cached.status) in BELOW_SHARD
        ]
        if open_since:
            times.append(min(open_since) + self.options.message_timeout_s)
        return min((at for at in times if at is not None), default=None)

    # From full nodes

    def offer(self, message: ExternalMessage, source_key_id: bytes, now: float) -> list[QueueEffect]:
        """A message that a full node sent. What is fully known is not announced again."""
        cached = self.cache.get(message.message_id)
        origin = Origin(source_key_id, self.session.index, int(now * 1_000))
        if cached is None and self.open_count >= self.options.messages_max:
            status = Rejected(Level.QUEUE, OVERLOADED)
            return [Tell(source_key_id, message.message_id, status)]
        if cached is None:
            header = header_of(message, origin, self.session.masterchain_seqno)
            cached = self.cache.add(header, New(), Standing.OWN, now)
            cached.add_origin(origin)
            self.cache.give_body(cached, message)
            self._enter(cached, header.timestamp_ms)
            self._put(header)
            self._effects.append(BroadcastBody(message.message_id, message.body))
            self._tell(cached, New())
            return self._taken()
        had_body = cached.body is not None
        self._body_is_here(cached, message)
        if cached.add_origin(origin):
            # Another full node sent it, too: it hears how far the message is, and everything from now on.
            self._effects.append(Tell(source_key_id, message.message_id, cached.status))
        if not had_body and message.message_id in self._entries:
            self._effects.append(BroadcastBody(message.message_id, message.body))
        if message.message_id not in self._entries:
            self._enter(cached, cached.header.timestamp_ms)
            self._put(cached.header)
            self._effects.append(BroadcastBody(message.message_id, message.body))
        return self._taken()

    # From other validators

    def next_payload(self) -> bytes | None:
        """For the next block of ours; None if there is nothing to say."""
        self._last_payload_number += 1
        return self._pending.next_payload(self._last_payload_number)

    @property
    def has_records(self) -> bool:
        return bool(self._pending)

    def block_delivered(self, source: int, payload: bytes, now: float) -> list[QueueEffect]:
        """What a member said, our own blocks included. What cannot be understood says nothing."""
        try:
            records = decode_payload(payload)
        except DecodeError:
            return []
        for record in records:
            self._hear(source, record, now)
        return self._taken()

    def body_came(self, message: ExternalMessage, now: float) -> list[QueueEffect]:
        """By broadcast, or as an answer. One of which nobody has spoken yet is kept out: anybody could fill us up."""
        cached = self.cache.get(message.message_id)
        if cached is not None:
            self._body_is_here(cached, message)
        return self._taken()

    def member_blamed(self, source: int, now: float) -> list[QueueEffect]:
        """What only this member has announced may be unknown to others, who do not build on its blocks any more."""
        for entry in self._entries.values():
            if entry.announced_by == {source}:
                self._put(entry.cached.header)
                if entry.cached.body is not None:
                    self._effects.append(BroadcastBody(entry.cached.message_id, entry.cached.body.body))
        return self._taken()

    def _hear(self, source: int, record: Record, now: float) -> None:
        match record:
            case Header():
                self._hear_header(source, record, now)
            case OlderHeader(message_id, uid, source_key_id, source_index, seqno):
                header = Header(
                    message_id, uid, 0, _NOBODY, source_key_id, source_index, seqno, int(now * 1_000)
                )
                self._hear_header(source, header, now)
            case Reject(message_id):
                self._hear_reject(source, message_id)
            case Accept(message_id):
                self._counted(message_id).is_accepted_elsewhere |= source != self.session.index
            case Digest(seqno, rejected, accepted):
                self._hear_digest(seqno, rejected, Rejected(Level.QUEUE, REJECTED_BEFORE), now)
                self._hear_digest(seqno, accepted, Accepted(Level.MASTERCHAIN), now)
            case OlderDigest(seqno, rejected):
                self._hear_digest(seqno, rejected, Rejected(Level.QUEUE, REJECTED_BEFORE), now)

    def _hear_header(self, source: int, header: Header, now: float) -> None:
        if not self._is_alive(header.masterchain_seqno):
            return
        is_forwarded = header.masterchain_seqno < self.session.masterchain_seqno
        cached = self.cache.get(header.message_id)
        if cached is None:
            cached = self._add_heard(header, is_forwarded, now)
        elif header.message_id not in self._entries:
            self._meet_again(cached, header, is_forwarded)
        elif cached.standing is Standing.FORWARDED_FINAL and is_forwarded:
            self._reopen(cached)
        entry = self._entries[header.message_id]
        entry.announced_by.add(source)
        entry.timestamp_ms = min(entry.timestamp_ms, header.timestamp_ms)
        if source != self.session.index:
            self._pending.drop_header(header.message_id)
        origin = Origin(header.source_key_id, header.source_index, header.timestamp_ms)
        if header.source_key_id != _NOBODY:
            cached.add_origin(origin)
        if cached.body is None:
            asked = self._search.begin(header.message_id, source, now)
            if asked is not None:
                self._effects.append(AskForBody(asked, header.message_id))

    def _add_heard(self, header: Header, is_forwarded: bool, now: float) -> CachedMessage:
        if is_forwarded:
            status: MessageStatus = Ignored(Level.QUEUE)
            cached = self.cache.add(header, status, Standing.FORWARDED_OPEN, now)
        elif self.open_count >= self.options.messages_max:
            status = Rejected(Level.QUEUE, OVERLOADED)
            cached = self.cache.add(header, status, Standing.OWN, now)
        else:
            status = New()
            cached = self.cache.add(header, status, Standing.OWN, now)
        if header.source_key_id != _NOBODY:
            cached.add_origin(Origin(header.source_key_id, header.source_index, header.timestamp_ms))
        self._enter(cached, header.timestamp_ms)
        self._tell(cached, status)
        if isinstance(status, Ignored):
            self._tell(cached, New())
        return cached

    def _meet_again(self, cached: CachedMessage, header: Header, is_forwarded: bool) -> None:
        """Known from an earlier session of ours, or from a digest: our own knowledge counts for more."""
        self._enter(cached, header.timestamp_ms)
        if cached.standing is Standing.FORWARDED_FINAL:
            self._reopen(cached)
        elif is_forwarded:
            self._apply(cached, Event.FORWARDED)

    def _reopen(self, cached: CachedMessage) -> None:
        """One says that it was processed, another that it is open: the first may be a lie that would silence it."""
        cached.standing = Standing.FORWARDED_OPEN
        cached.status = Ignored(Level.QUEUE)
        self._tell(cached, cached.status)
        self._tell(cached, New())

    def _hear_reject(self, source: int, message_id: bytes) -> None:
        if source not in self.session.current:
            return
        entry = self._counted(message_id)
        entry.rejected_by.add(source)
        if message_id in self._entries and self._do_most_reject(entry):
            self._apply(entry.cached, Event.MOST_REJECT, error=REJECTED_BY_MOST)

    def _do_most_reject(self, entry: _Entry) -> bool:
        return 3 * len(entry.rejected_by) >= 2 * len(self.session.current)

    def _hear_digest(self, seqno: int, ids: Iterable[Ids], status: MessageStatus, now: float) -> None:
        if not self._is_alive(seqno):
            return
        for one in ids:
            if self.cache.get(one.message_id) is None:
                header = Header(one.message_id, one.uid, 0, _NOBODY, _NOBODY, -1, seqno, 0)
                cached = self.cache.add(header, status, Standing.FORWARDED_FINAL, now)
                self._enter(cached, 0)

    def _is_alive(self, seqno: int) -> bool:
        window = self.cache.window
        return window.lowest <= seqno <= window.current + CLOCK_AHEAD_SEQNO_MAX

    # The collator

    def take(self, now: float, count_max: int) -> list[ExternalMessage]:
        """The next messages in the order that users were promised; those without a body wait for it."""
        found: list[ExternalMessage] = []
        waiting = [entry for entry in self._entries.values() if is_collatable(entry.cached.status)]
        for entry in sorted(waiting, key=lambda entry: entry.order):
            if len(found) >= count_max:
                break
            cached = entry.cached
            if cached.body is None:
                continue
            freshness = self.cache.freshness(cached.message_id)
            if isinstance(freshness, UidTaken):
                self._apply(
                    cached,
                    Event.UID_IS_TAKEN,
                    block_id=freshness.block_id,
                    error=f"message {freshness.message_id.hex()} has the same body for the same account",
                )
                continue
            self._taken_from[cached.message_id] = cached.status
            self._apply(cached, Event.TAKEN_BY_COLLATOR)
            found.append(cached.body)
        return found

    def collated(self, reports: Iterable[tuple[bytes, Report]], now: float) -> list[QueueEffect]:
        """What the collator made of what it took."""
        for message_id, report in reports:
            cached = self.cache.get(message_id)
            before = self._taken_from.pop(message_id, None)
            if cached is None:
                continue
            seqno = cached.header.masterchain_seqno
            match report:
                case Executed(block_id):
                    if self._apply(cached, Event.EXECUTED, block_id=block_id):
                        self._note_candidate(block_id, message_id)
                        self._tell_members(Accept(message_id, cached.header.uid, seqno, block_id))
                case Refused(block_id, error):
                    if self._apply(cached, Event.REFUSED_BY_CONTRACT, block_id=block_id, error=error):
                        self._tell_members(Reject(message_id, cached.header.uid, seqno, error))
                case LeftOut(block_id):
                    self._apply(cached, Event.LEFT_OUT, block_id=block_id)
                case NotAskedFor():
                    if before is not None and place_of(cached.status) == (Accepted.status, Level.QUEUE):
                        cached.status = before
        return self._taken()

    def check_candidate(self, message_ids: Sequence[bytes]) -> str | None:
        """Why a candidate with these external messages must be declined; None if it may stand.

        A message that is not known here is no reason yet: its body can be asked for, until the slot ends.
        """
        last: tuple[bool, int, bytes] | None = None
        for message_id in message_ids:
            match self.cache.freshness(message_id):
                case UidTaken(_, _, other_id):
                    return f"message {message_id.hex()} was included before, as {other_id.hex()}"
                case Absent():
                    return f"message {message_id.hex()} is not known here"
                case Fresh():
                    entry = self._entries.get(message_id)
                    order = None if entry is None else (False, entry.timestamp_ms, message_id)
                    if order is not None and last is not None and order < last and not _is_first(entry):
                        return f"message {message_id.hex()} stands behind a later one"
                    last = order or last
        if len(set(message_ids)) < len(message_ids):
            return "a message stands in it twice"
        return None

    def candidate_seen(
        self, block_id: BlockId, message_ids: Sequence[bytes], now: float
    ) -> list[QueueEffect]:
        """Somebody else's candidate holds these."""
        for message_id in message_ids:
            cached = self.cache.get(message_id)
            if cached is not None and self._apply(cached, Event.SEEN_IN_CANDIDATE, block_id=block_id):
                self._note_candidate(block_id, message_id)
        return self._taken()

    def candidate_lost(self, block_id: BlockId, now: float) -> list[QueueEffect]:
        """It came to nothing, and nobody is to blame."""
        self._return_from(block_id, Event.OTHER_COMMITTED, Event.CANDIDATE_LOST)
        return self._taken()

    def candidate_refused(
        self, block_id: BlockId, now: float, replayed: Sequence[bytes] = ()
    ) -> list[QueueEffect]:
        """Validators refused the block: its messages may come again, except those that were the reason."""
        for message_id in replayed:
            self._apply_to(message_id, Event.REPLAY_FOUND, block_id=block_id, error="included before")
        self._return_from(block_id, Event.CANDIDATE_REFUSED, Event.CANDIDATE_REFUSED)
        return self._taken()

    # The chain

    def shard_committed(
        self, block_id: BlockId, messages: Sequence[ExternalMessage], now: float
    ) -> list[QueueEffect]:
        """A shard block stands. Other candidates for its place are gone."""
        for message in messages:
            self._apply_to(message.message_id, Event.SHARD_COMMITTED, block_id=block_id)
        self._candidates.pop(block_id, None)
        rivals = [
            other
            for other in self._candidates
            if (other.workchain, other.shard, other.seqno)
            == (block_id.workchain, block_id.shard, block_id.seqno)
        ]
        for rival in rivals:
            self._return_from(rival, Event.OTHER_COMMITTED, Event.CANDIDATE_LOST)
        return self._taken()

    def shard_dropped(self, block_id: BlockId, message_ids: Sequence[bytes], now: float) -> list[QueueEffect]:
        """The masterchain has left the block out."""
        for message_id in message_ids:
            cached = self.cache.get(message_id)
            if cached is not None and block_of(cached.status) == block_id:
                self._apply(cached, Event.DROPPED_BY_MASTER)
        return self._taken()

    def master_committed(
        self, block_id: BlockId, master_id: BlockId, messages: Sequence[ExternalMessage], now: float
    ) -> list[QueueEffect]:
        """A master block holds the shard block, and so these messages for ever."""
        for message in messages:
            self.cache.index_final(message, self.session.masterchain_seqno, block_id, master_id, now)
            self._search.end(message.message_id)
        return self._taken()

    # Time

    def tick(self, now: float) -> list[QueueEffect]:
        oldest = now - self.options.message_timeout_s
        for entry in self._entries.values():
            if entry.cached.first_seen_s <= oldest:
                self._apply(entry.cached, Event.LIFE_OVER)
        for member, message_id in self._search.again(now, self._members_with):
            self._effects.append(AskForBody(member, message_id))
        return self._taken()

    def lives_over(self, gone: Iterable[CachedMessage], now: float) -> list[QueueEffect]:
        """The cache has let go of these: whatever was open is closed."""
        for cached in gone:
            if cached.message_id in self._entries:
                self._apply(cached, Event.LIFE_OVER)
                self._search.end(cached.message_id)
                del self._entries[cached.message_id]
            self._pending.drop_header(cached.message_id)
        return self._taken()

    # The switch to the next session

    def forward_into(
        self, records: Sequence[Record], bodies: Iterable[ExternalMessage], now: float
    ) -> list[QueueEffect]:
        """What a queue that ends has for this one, which follows it."""
        for record in records:
            self._put(record)
        for body in bodies:
            self._effects.append(BroadcastBody(body.message_id, body.body))
        return self._taken()

    def entries(self) -> list[CachedMessage]:
        """Every message ever put in, in the order of arrival here."""
        return [entry.cached for entry in self._entries.values()]

    # Details

    def _enter(self, cached: CachedMessage, timestamp_ms: int) -> None:
        entry = _Entry(cached, timestamp_ms)
        early = self._counted_early.pop(cached.message_id, None)
        if early is not None:
            entry.rejected_by = early.rejected_by
            entry.is_accepted_elsewhere = early.is_accepted_elsewhere
        self._entries[cached.message_id] = entry
        if self._do_most_reject(entry):
            self._apply(cached, Event.MOST_REJECT, error=REJECTED_BY_MOST)

    def _counted(self, message_id: bytes) -> _Entry:
        """Where votes on a message are kept; they may come before the message itself."""
        entry = self._entries.get(message_id)
        if entry is not None:
            return entry
        early = self._counted_early.get(message_id)
        if early is None:
            if len(self._counted_early) >= COUNTS_WITHOUT_HEADER_MAX:
                del self._counted_early[next(iter(self._counted_early))]
            nobody = Header(message_id, _NOBODY, 0, _NOBODY, _NOBODY, -1, 0, 0)
            early = _Entry(CachedMessage(nobody, Timeout(), Standing.FORWARDED_FINAL, 0.0), 0)
            self._counted_early[message_id] = early
        return early

    def _body_is_here(self, cached: CachedMessage, message: ExternalMessage) -> None:
        self.cache.give_body(cached, message)
        self._search.end(message.message_id)

    def _members_with(self, message_id: bytes) -> Sequence[int]:
        entry = self._entries.get(message_id)
        return () if entry is None else sorted(entry.announced_by)

    def _note_candidate(self, block_id: BlockId, message_id: bytes) -> None:
        self._candidates[block_id] = (*self._candidates.get(block_id, ()), message_id)

    def _return_from(self, block_id: BlockId, ours: Event, theirs: Event) -> None:
        for message_id in self._candidates.pop(block_id, ()):
            cached = self.cache.get(message_id)
            if cached is None or block_of(cached.status) != block_id:
                continue
            if not self._apply(cached, ours):
                self._apply(cached, theirs)

    def _apply_to(self, message_id: bytes, event: Event, **particulars: BlockId | str) -> None:
        cached = self.cache.get(message_id)
        if cached is not None:
            self._apply(cached, event, **particulars)

    def _apply(self, cached: CachedMessage, event: Event, **particulars: BlockId | str) -> bool:
        """Whether it changed anything; the full nodes are told what they are to hear."""
        change = after(cached.status, event, **particulars)  # type: ignore[arg-type]
        if change is None:
            return False
        cached.status = change.status
        if event is not Event.FORWARDED:
            cached.standing = Standing.OWN
        for status in change.told:
            self._tell(cached, status)
        return True

    def _tell(self, cached: CachedMessage, status: MessageStatus) -> None:
        self._effects += [Tell(full_node, cached.message_id, status) for full_node in cached.origins]

    def _tell_members(self, record: Record) -> None:
        if self.options.tells_collation:
            self._put(record)

    def _put(self, record: Record) -> None:
        self._pending.add(record)
        self._effects.append(SpeakSoon())

    def _taken(self) -> list[QueueEffect]:
        effects, self._effects = self._effects, []
        return effects


def _is_first(entry: _Entry | None) -> bool:
    return entry is not None and entry.is_accepted_elsewhere
