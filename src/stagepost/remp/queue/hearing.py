"""Read the records that validators put into their blocks, and change this queue accordingly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stagepost.catchain.challenges import MemberChallenge
from stagepost.errors import DecodeError
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.message import ExternalMessage, Origin
from stagepost.remp.queue.body_search import BodySearch
from stagepost.remp.queue.effects import AnswerChallenge, AskForBody
from stagepost.remp.queue.message_cache import CachedMessage, Standing
from stagepost.remp.queue.message_states import FINAL, Event, place_of
from stagepost.remp.queue.records import (
    Accept,
    Digest,
    Header,
    Ids,
    LinkAnswer,
    LinkChallenge,
    Record,
    RejectRecord,
    Totals,
    chain_of,
    decode_payload,
    has_totals,
    subject_of,
)
from stagepost.remp.queue.state import OVERLOADED, REJECTED_BY_MOST, QueueEntry, QueueState
from stagepost.remp.receipts.message_status import Accepted, Ignored, MessageStatus, New, Rejected
from stagepost.remp.receipts.status import Level

SEQNO_AHEAD_MAX = 1
"""Master catchains, at most: another validator may have seen the next master block before us, but not the one
after it.
"""

HELD_BACK = "this validator has announced as many messages as it may; send it to another one"
REJECTED_BEFORE = "rejected in an earlier session"


class RecordIntake:
    """This validator's own knowledge outranks what others forward; a message that one member forwards as open
    outranks the claim of another that it was processed.
    """

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._session = state.session
        self._cache = state.cache
        self._blamed: set[int] = set()
        self._challenged: set[MemberChallenge] = set()
        self._answering: set[bytes] = set()
        """Subjects of challenges whose answers wait for a block of ours, or stand in one that was not delivered yet."""
        self.search = BodySearch(state.session.index, state.session.member_count)

    def block_delivered(
        self,
        source: int,
        payload: bytes,
        now: float,
        floor_ms: int | None = None,
        unanswered: Sequence[bytes] = (),
    ) -> None:
        """Apply every record of the payload that member `source` put into a block. A payload that cannot be
        decoded, or that does not begin with date and totals, is ignored as a whole.
        An announcement counts from the time that it names, but neither before `floor_ms` nor after the block's date.
        `unanswered` are the subjects that its author has to answer after it.
        """
        try:
            records = decode_payload(payload)
        except DecodeError:
            return
        if not has_totals(records):
            return
        for record in records:
            self._hear(source, _dated(record, records[0], floor_ms), now)
        if source == self._session.index:
            for subject in unanswered:
                if subject not in self._answering:
                    self._answering.add(subject)
                    self._state.add(AnswerChallenge(*chain_of(subject)))

    def challenge(self, challenge: LinkChallenge) -> None:
        """Put a challenge into our next block, unless we have made it before."""
        if challenge.challenge not in self._challenged:
            self._challenged.add(challenge.challenge)
            self._state.put(challenge)

    def body_is_here(self, cached: CachedMessage, message: ExternalMessage) -> None:
        is_first = cached.body is None
        self._cache.give_body(cached, message)
        self.search.end(message.message_id)
        entry = self._state.entries.get(message.message_id)
        if is_first and entry is not None:
            self._state.body_came(entry)
            if entry.announced_by:
                self._announce_for_the_blamed(entry)

    def member_blamed(self, source: int) -> None:
        """Stop counting the votes and times of `source`, which contradicted itself.

        Other validators do not build on the blocks of a blamed member, so they may not know the messages that
        only blamed members announced: those whose bodies we hold are announced again by us. Without a body
        nobody collates a message, and a flood that was blamed must not be repeated by everybody else.
        """
        self._blamed.add(source)
        self._state.forget_votes(source)
        for entry in list(self._state.entries.values()):
            if source in entry.announced_by:
                entry.set_time(self._blamed)
                self._announce_for_the_blamed(entry)
            elif source in entry.called_processed_by:
                self._forget_for_the_blamed(entry)

    def _forget_for_the_blamed(self, entry: QueueEntry) -> None:
        """Forget a message that only the blamed member called processed: not every validator has heard that
        member.
        """
        if entry.announced_by or entry.is_ours or not entry.called_processed_by <= self._blamed:
            return
        self._state.leave(entry.cached.message_id)
        if entry.cached.standing is Standing.FORWARDED_FINAL:
            self._cache.remove(entry.cached)

    def _announce_for_the_blamed(self, entry: QueueEntry) -> None:
        if self._session.index in self._blamed:
            return  # nobody would hear it from us either
        if entry.cached.body is not None and entry.announced_by.keys() <= self._blamed:
            self._state.put(entry.cached.header)
            self._state.broadcast(entry.cached)

    def ask_again(self, now: float) -> None:
        for message_id in self.search.give_up(now):
            entry = self._state.entries.get(message_id)
            if entry is not None:
                self._state.park(entry)
        for member, message_id in self.search.again(now, self._announcers):
            self._state.add(AskForBody(member, message_id))

    def body_not_had(self, message_id: bytes, now: float) -> None:
        member = self.search.not_had(message_id, now, self._announcers(message_id))
        if member is not None:
            self._state.add(AskForBody(member, message_id))

    def _announcers(self, message_id: bytes) -> Sequence[int]:
        entry = self._state.entries.get(message_id)
        return () if entry is None else sorted(entry.announced_by)

    def forward(self, record: Record, now: float) -> None:
        """Put `record`, which this validator hands on from an earlier queue, into this queue at once and into
        our next block.
        """
        match record:
            case Header():
                self._meet_ours(record, now)
            case Digest():
                self._hear(self._session.index, record, now)
        self._state.put(record)

    def _meet_ours(self, header: Header, now: float) -> None:
        entry = self._meet_header(self._session.index, header, now)
        if entry is not None:
            entry.is_ours = True

    def _hear(self, source: int, record: Record, now: float) -> None:
        match record:
            case Header():
                self._hear_header(source, record, now)
            case RejectRecord(message_id):
                self._hear_reject(source, message_id)
            case Accept(message_id):
                if source != self._session.index:
                    self._state.votes(message_id).is_accepted_elsewhere = True
            case Digest(seqno, rejected, accepted):
                self._hear_digest(source, seqno, rejected, Rejected(Level.QUEUE, REJECTED_BEFORE), now)
                self._hear_digest(source, seqno, accepted, Accepted(Level.MASTERCHAIN), now)
            case LinkChallenge() if source == self._session.index:
                self._challenged.add(record.challenge)
            case LinkAnswer(newest) if source == self._session.index:
                self._answering.discard(subject_of(newest))
            case Totals() | LinkChallenge() | LinkAnswer():
                pass  # the graph judges them

    def _hear_header(self, source: int, header: Header, now: float) -> None:
        entry = self._meet_header(source, header, now)
        if entry is None:
            return
        entry.announced(source, header.timestamp_ms, self._blamed)
        if source in self._blamed:
            # Blocks of the blamed are still delivered where honest ones rest on them, or where they came first.
            self._announce_for_the_blamed(entry)
        elif source != self._session.index and not self._is_announced_late(entry, header):
            self._drop_same(header)
        if entry.cached.body is None:
            asked = self.search.begin(header.message_id, source, now)
            if asked is not None:
                self._state.add(AskForBody(asked, header.message_id))

    def _drop_same(self, header: Header) -> None:
        """Drop our announcement if another member's tells the same: also which full node is to hear of the message. One that
        names nobody, or somebody else, would keep others from telling ours.
        """
        pending, named = self._state.pending, (header.source_key_id,)
        ours = pending.header(header.message_id, header.source_key_id)
        if ours is not None and (ours.hand_over == header.hand_over or self._state.names_its_source(header)):
            pending.drop_headers(header.message_id, named)

    def _is_announced_late(self, entry: QueueEntry, header: Header) -> bool:
        """Return whether `header` dates a message so late that we, who had it from a full node, announce it too: a
        member that lies about the time cannot hold it back.
        """
        origins = entry.cached.origins.values()
        ours_ms = [one.timestamp_ms for one in origins if one.source_index == self._session.index]
        return bool(ours_ms) and header.timestamp_ms > min(ours_ms) + self._session.skew_ms

    def _meet_header(self, source: int, header: Header, now: float) -> QueueEntry | None:
        """Return the queue entry of the message that member `source` announces by `header`, and create it if needed;
        None if the message has expired.
        """
        if not self._is_alive(header.masterchain_seqno):
            return None
        state = self._state
        is_forwarded = header.masterchain_seqno < self._session.masterchain_seqno
        cached = self._cache.get(header.message_id)
        if cached is not None:
            self._cache.raise_to(cached, header.masterchain_seqno)
            is_new_origin = self._add_origin(cached, header)
            is_known = cached.standing is not Standing.FORWARDED_FINAL and place_of(cached.status) != FINAL
            if is_new_origin and is_known:
                # First of all reports: the full node that sent the message is to hear of it from the beginning.
                state.introduce(cached, header.source_key_id)
        if cached is None:
            cached = self._add(source, header, is_forwarded, now)
        elif header.message_id not in state.entries:
            self._meet_again(source, cached, header, is_forwarded)
        elif cached.standing is Standing.FORWARDED_FINAL:
            self.reopen(cached, header)
        return state.entries[header.message_id]

    def _add(self, source: int, header: Header, is_forwarded: bool, now: float) -> CachedMessage:
        status: MessageStatus = New()
        standing = Standing.OWN
        charged_to = self._state.charge_for(source, header)
        if not self._state.make_room(charged_to):
            status = Rejected(Level.QUEUE, OVERLOADED)
        elif is_forwarded:
            status, standing = self._status_of_forwarded(header), Standing.FORWARDED_OPEN
        cached = self._cache.add(header, status, standing, now)
        self._add_origin(cached, header)
        self._state.enter(cached, charged_to)
        self._state.tell(cached, status)
        if isinstance(status, Ignored):
            self._state.tell(cached, New())
        return cached

    def _status_of_forwarded(self, header: Header) -> MessageStatus:
        """Return the status with which a forwarded message begins in this queue.

        It was ignored by the queue that it comes from. If this validator may have reported that in an earlier
        run and cannot remember it, the status is `New` instead, because `New` may be reported twice.
        """
        if header.masterchain_seqno <= self._cache.forgotten_seqno:
            return New()
        return Ignored(Level.QUEUE)

    def _meet_again(self, source: int, cached: CachedMessage, header: Header, is_forwarded: bool) -> None:
        """Enter a message into this queue that this validator knows from an earlier session of its own."""
        self._state.enter(cached, self._state.charge_for(source, header))
        if cached.standing is Standing.FORWARDED_FINAL:
            self.reopen(cached, header)
        elif is_forwarded:
            self._state.apply(cached, Event.FORWARDED)

    def reopen(self, cached: CachedMessage, header: Header) -> None:
        """Treat a message as open although another member called it processed: that claim may be a lie that
        would silence it.
        """
        self._cache.adopt_header(cached, header)
        cached.standing = Standing.FORWARDED_OPEN
        self._state.set_status(cached, self._status_of_forwarded(header))
        self._state.tell(cached, cached.status)
        if isinstance(cached.status, Ignored):
            self._state.tell(cached, New())

    def _add_origin(self, cached: CachedMessage, header: Header) -> bool:
        """Add the full node that `header` names to those that hear of the message, if it has signed that it sent the
        message. Return whether it is new.
        """
        if header.source_key_id == ZERO_INT256 or self._cache.was_let_go(header.message_id):
            return False
        if header.source_key_id in cached.origins or not self._state.names_its_source(header):
            return False
        if self._cache.was_refused(header.message_id, header.source_key_id):
            return False
        origin = Origin(header.source_key_id, header.source_index, header.timestamp_ms, header.hand_over)
        return cached.add_origin(origin)

    def _hear_reject(self, source: int, message_id: bytes) -> None:
        if source not in self._session.current or source in self._blamed:
            return
        entry = self._state.votes(message_id)
        entry.rejected_by.add(source)
        if message_id in self._state.entries and self._state.do_most_reject(entry):
            self._state.apply(entry.cached, Event.MOST_REJECT, error=REJECTED_BY_MOST)

    def _hear_digest(
        self, source: int, seqno: int, ids: Iterable[Ids], status: MessageStatus, now: float
    ) -> None:
        if source in self._blamed or not self._is_alive(seqno):
            return
        for one in ids:
            cached = self._cache.get(one.message_id)
            if cached is None:
                header = Header(one.message_id, one.uid, 0, ZERO_INT256, ZERO_INT256, -1, seqno, 0)
                cached = self._cache.add(header, status, Standing.FORWARDED_FINAL, now)
            # A message that we knew lives no longer for it: nobody vouches for the number in a digest.
            if one.message_id not in self._state.entries:
                # Also for a message that we knew: this queue hands it on as long as it lives, to whichever set follows.
                self._state.enter(cached, source)
            self._state.entries[one.message_id].called_processed_by.add(source)

    def _is_alive(self, seqno: int) -> bool:
        """Return whether a message announced under catchain `seqno` may still live: an announcement does not
        revive an expired message.
        """
        window = self._cache.window
        return window.lowest <= seqno <= window.current + SEQNO_AHEAD_MAX


def _dated(record: Record, first: Record, floor_ms: int | None) -> Record:
    """Return a header with the time from which its announcement counts, any other record as it is."""
    if floor_ms is None or not isinstance(record, Header) or not isinstance(first, Totals):
        return record
    at_ms = max(min(record.timestamp_ms, first.date_ms), floor_ms)
    return record if at_ms == record.timestamp_ms else msgspec.structs.replace(record, timestamp_ms=at_ms)
