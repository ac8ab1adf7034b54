"""The state that all parts of one queue share: its messages, what members said of them, records that wait for
the next block, and effects that wait to be performed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heappop, heappush
from typing import TypeAlias

import msgspec

from stagepost.catchain.budgets import AuthorAccount, Budget, Rates
from stagepost.catchain.challenges import ANSWERS_PER_BLOCK
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.effects import BroadcastBody, Introduce, QueueEffect, SpeakSoon, Tell
from stagepost.remp.queue.message_cache import CachedMessage, MessageCache, Standing
from stagepost.remp.queue.message_states import BELOW_SHARD, COLLATABLE, TAKEN, Event, after, place_of
from stagepost.remp.queue.records import (
    BLOCK_BYTES,
    PAYLOAD_BYTES_MAX,
    RECORDS_MAX,
    Header,
    LinkAnswer,
    LinkChallenge,
    Record,
    amounts_in,
    encode_payload,
    payload_bytes,
    record_bytes,
    subject_of,
)
from stagepost.remp.receipts.message_status import MessageStatus, New, Timeout, kind_of
from stagepost.remp.receipts.status import FIRST_KINDS
from stagepost.remp.shard import BlockId, Shard


class RecordLimits(msgspec.Struct, frozen=True):
    """Limits of one block."""

    records_max: int = RECORDS_MAX
    payload_bytes_max: int = PAYLOAD_BYTES_MAX


class PendingRecords:
    """Records that wait for a block of ours, and for our budget. `is_held_back`: the last block had to leave some out
    because of the budget.
    """

    def __init__(self, limits: RecordLimits, budget: Budget) -> None:
        self._limits = limits
        self._budget = budget
        self._waiting: dict[object, Record] = {}
        self._answers: dict[bytes, LinkAnswer] = {}
        self.is_held_back = False

    def __bool__(self) -> bool:
        return bool(self._waiting) or bool(self._answers)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._answers)

    def add(self, record: Record) -> None:
        """Let `record` wait for the next block, unless it waits already."""
        if isinstance(record, LinkAnswer):
            self._answers[subject_of(record.newest)] = record
        else:
            self._waiting.setdefault(_key(record), record)

    def header(self, message_id: bytes, source_key_id: bytes) -> Header | None:
        """Return the announcement of a message that waits and names that full node."""
        found = self._waiting.get(("header", message_id, source_key_id))
        return found if isinstance(found, Header) else None

    def drop_headers(self, message_id: bytes, sources: Iterable[bytes]) -> None:
        """Drop the announcements of a message that name these full nodes."""
        for source_key_id in sources:
            self._waiting.pop(("header", message_id, source_key_id), None)

    def next_payload(
        self, number: int, date_ms: int, account: AuthorAccount, *, is_due: bool = False
    ) -> bytes | None:
        """Return the payload of our next block, with its date and our totals in front of the records; `account` is that
        of our blocks so far. None if no record may go, unless the block `is_due`: then date and totals alone. Records
        wait rather than break our budget, and None comes even for a due block that would break it. Answers go first: a
        block that has no room for those that wait is not made, since each block without them would count against us.
        """
        limits = self._limits
        headers_left, digests_left, bytes_left = self._budget.left(account, date_ms)
        answers = list(self._answers)[:ANSWERS_PER_BLOCK]
        first: list[Record] = [account.totals, *(self._answers[subject] for subject in answers)]
        size = payload_bytes(first)
        bytes_left -= BLOCK_BYTES
        if size > bytes_left:
            self.is_held_back = bool(self)
            return None
        self.is_held_back = False
        chosen: list[object] = []
        for key, record in self._waiting.items():
            if isinstance(record, Header | LinkChallenge) and not headers_left:
                self.is_held_back = True
                continue
            (headers, digests, _), added = amounts_in([record], 0), record_bytes(record)
            if digests > digests_left or size + added > bytes_left - RESERVE_BYTES:
                self.is_held_back = True
                break
            is_full = (
                len(first) + len(chosen) >= limits.records_max or size + added > limits.payload_bytes_max
            )
            if chosen and is_full:
                break
            chosen.append(key)
            headers_left, digests_left = headers_left - headers, digests_left - digests
            size += added
        if not chosen and not answers and not is_due:
            return None
        records = [self._answers.pop(subject) for subject in answers] + [
            self._waiting.pop(key) for key in chosen
        ]
        totals = account.totals.plus(amounts_in(records, size), date_ms)
        return encode_payload([totals, *records], number)


def _key(record: Record) -> object:
    if isinstance(record, Header):
        return "header", record.message_id, record.source_key_id
    return record.challenge if isinstance(record, LinkChallenge) else record


MESSAGE_TIMEOUT_S = 240.0
RESERVE_BYTES = 16_384
"""Bytes of our budget that records leave over for blocks that hold a date alone."""

SKEW_MS = 5_000
"""Milliseconds, unless the chain's configuration says otherwise, by which clocks of honest members differ."""

MESSAGES_MAX = 10_000
COUNTS_WITHOUT_HEADER_MAX = 10_000
OVERLOADED = "the queue of this shard is full; send it again later"
REJECTED_BY_MOST = "rejected by two thirds of the validators"


class QueueOptions(msgspec.Struct, frozen=True):
    """`tells_collation`: put accept and reject records into the graph; quorums of rejects need them."""

    message_timeout_s: float = MESSAGE_TIMEOUT_S
    messages_max: int = MESSAGES_MAX
    tells_collation: bool = True
    records: RecordLimits = RecordLimits()


class QueueSession(msgspec.Struct, frozen=True):
    """`current` are the members that validate now, by their index in the queue; all others are previous
    validators. `shard`: the shard whose messages are collated here; None for all. `skew_ms`: how far the clocks
    of honest members differ. `budget`: how much a member may write.
    """

    masterchain_seqno: int
    index: int
    current: frozenset[int]
    member_count: int
    shard: Shard | None = None
    skew_ms: int = SKEW_MS
    budget: Budget = Budget(0, Rates())

    def is_for(self, message: ExternalMessage) -> bool:
        return self.shard is None or self.shard.holds(message.workchain, message.account)


Charge: TypeAlias = int | bytes
"""AuthorAccount of an open entry: a member by its index, or a full node by its key id."""

NOBODY: Charge = -1


class QueueEntry:
    """A message in this queue, and what members have said of it here."""

    __slots__ = (
        "_announced_ms",
        "announced_by",
        "cached",
        "called_processed_by",
        "charged_to",
        "is_accepted_elsewhere",
        "is_ours",
        "is_parked",
        "rejected_by",
    )

    def __init__(self, cached: CachedMessage, charged_to: Charge = NOBODY) -> None:
        self.cached = cached
        self.charged_to = charged_to
        self.is_parked = False  # nobody has returned its body
        self._announced_ms: tuple[int, int] | None = None
        self.announced_by: dict[int, int] = {}
        """Time in Unix milliseconds that each member announced, by the member's index."""
        self.called_processed_by: set[int] = set()
        self.is_ours = False  # a full node sent it to this validator, or an earlier queue of this node had it
        self.rejected_by: set[int] = set()
        self.is_accepted_elsewhere = False

    def announced(self, source: int, timestamp_ms: int, blamed: Collection[int]) -> None:
        """Note that member `source` announced the message in a block, which all members hear.

        The time at which the message came to this node itself does not count: nobody hears of it if another
        member announced the message first, and ordering by it would set us apart from the others.
        """
        self.announced_by[source] = min(timestamp_ms, self.announced_by.get(source, timestamp_ms))
        self.set_time(blamed)

    def set_time(self, blamed: Collection[int]) -> None:
        """Set `timestamp_ms` to the earliest time that members announced here, and `latest_ms` to the latest.

        Other members may not hear what a blamed member says, so a blamed member's time counts only if there
        is no other.
        """
        times = [at for source, at in self.announced_by.items() if source not in blamed]
        known = times or self.announced_by.values()
        self._announced_ms = min(known), max(known)

    @property
    def timestamp_ms(self) -> int:
        """Unix milliseconds by which the message is ordered: of its header until a member announces it here.

        A queue that this node followed before may open a message that members only called processed here, so
        that the header is asked each time.
        """
        return self.cached.header.timestamp_ms if self._announced_ms is None else self._announced_ms[0]

    @property
    def latest_ms(self) -> int:
        return self.cached.header.timestamp_ms if self._announced_ms is None else self._announced_ms[1]

    @property
    def is_announced(self) -> bool:
        """Return whether a member has announced the message in a block, or called it processed there.

        Before that nobody knows which time orders it: it came to each node at another time, and only
        announced times count.
        """
        return bool(self.announced_by or self.called_processed_by)

    @property
    def order(self) -> tuple[bool, int, bytes]:
        """Sort key inside of a block: messages that another node has accepted first, then by age."""
        return not self.is_accepted_elsewhere, self.timestamp_ms, self.cached.message_id


Vouches = Callable[[Header], bool]
"""Function that checks whether the full node that a header names has signed the hand-over in it."""


class QueueState:
    """`vouches` is None where the keys of full nodes are not known: then no signature counts."""

    def __init__(
        self,
        session: QueueSession,
        cache: MessageCache,
        options: QueueOptions,
        vouches: Vouches | None = None,
    ) -> None:
        self._vouches = vouches
        self.session = session
        self.cache = cache
        self.options = options
        self.entries: dict[bytes, QueueEntry] = {}
        self.pending = PendingRecords(options.records, session.budget)
        self._early: dict[bytes, QueueEntry] = {}
        self._open: dict[bytes, None] = {}
        self._open_of: dict[Charge, dict[bytes, None]] = {}
        self._by_age: list[tuple[float, bytes]] = []
        self._effects: list[QueueEffect] = []

    @property
    def masterchain_seqno(self) -> int:
        """The master catchain under which messages arrive now: it may be later than the one in which the
        session began.
        """
        return max(self.session.masterchain_seqno, self.cache.window.current)

    # Messages

    @property
    def open_count(self) -> int:
        return len(self._open)

    def newest_open_entries(self) -> Iterator[QueueEntry]:
        """Return the open entries, newest first: a search for any collatable message ends soon."""
        return (self.entries[message_id] for message_id in reversed(self._open))

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self.options.messages_max

    def charge_for(self, source: int, header: Header) -> Charge:
        """Return the account for what member `source` announces: a forwarded message is charged to the full node that
        signed its hand-over, if there is one.
        """
        is_forwarded = header.masterchain_seqno < self.session.masterchain_seqno
        if is_forwarded and self._vouches is not None and self._vouches(header):
            return header.source_key_id
        return source

    def names_its_source(self, header: Header) -> bool:
        """Return whether the full node that `header` names is to hear of the message."""
        return self._vouches is None or self._vouches(header)

    def make_room(self, charged_to: Charge) -> bool:
        """Return whether a message charged to `charged_to` may enter. In a full queue whoever has most open entries loses
        its newest: the newcomer itself, if nobody has more.
        """
        if not self.is_full:
            return True
        heaviest = max(self._open_of, key=lambda one: len(self._open_of[one]))
        if len(self._open_of.get(charged_to, ())) >= len(self._open_of[heaviest]):
            return False
        for message_id in reversed(self._open_of[heaviest]):
            entry = self.entries[message_id]
            if place_of(entry.cached.status) in COLLATABLE:
                self._lose(entry)
                return True
        return False

    def _lose(self, entry: QueueEntry) -> None:
        if entry.cached.body is None:
            self.park(entry)
            return
        if not entry.announced_by:
            self.pending.drop_headers(entry.cached.message_id, entry.cached.sources)
        self.apply(entry.cached, Event.OVERLOAD, error=OVERLOADED)

    def park(self, entry: QueueEntry) -> None:
        """Take a message without a body out of the queue, until the body comes: what members said of it stays."""
        entry.is_parked = True
        self._note_openness(entry.cached)

    def body_came(self, entry: QueueEntry) -> None:
        """Take a parked message back into the queue; a full one closes it."""
        if not entry.is_parked:
            return
        entry.is_parked = False
        if place_of(entry.cached.status) not in BELOW_SHARD:
            return
        if self.make_room(entry.charged_to):
            self._note_openness(entry.cached)
        else:
            self.apply(entry.cached, Event.OVERLOAD, error=OVERLOADED)

    def enter(self, cached: CachedMessage, charged_to: Charge = NOBODY) -> QueueEntry:
        """Create the entry of a message, charged to the member or the full node that brought it. Votes that members cast
        before it arrived are counted.
        """
        entry = QueueEntry(cached, charged_to)
        early = self._early.pop(cached.message_id, None)
        if early is not None:
            entry.rejected_by = early.rejected_by
            entry.is_accepted_elsewhere = early.is_accepted_elsewhere
        self.entries[cached.message_id] = entry
        self._note_openness(cached)
        if self.do_most_reject(entry):
            self.apply(cached, Event.MOST_REJECT, error=REJECTED_BY_MOST)
        return entry

    def leave(self, message_id: bytes) -> None:
        """Remove a message from the queue. The votes on it stay: another member may announce it under a later
        catchain, and then all validators must count alike.
        """
        self._close(message_id)
        entry = self.entries.pop(message_id, None)
        if entry is not None and (entry.rejected_by or entry.is_accepted_elsewhere):
            self._make_room_for_early()
            self._early[message_id] = entry

    def votes(self, message_id: bytes) -> QueueEntry:
        """Return the entry that holds what members say of a message; they may vote before the message itself
        arrives.
        """
        entry = self.entries.get(message_id) or self._early.get(message_id)
        if entry is None:
            self._make_room_for_early()
            nothing = Header(message_id, ZERO_INT256, 0, ZERO_INT256, ZERO_INT256, -1, 0, 0)
            entry = QueueEntry(CachedMessage(nothing, Timeout(), Standing.FORWARDED_FINAL, 0.0))
            self._early[message_id] = entry
        return entry

    def _make_room_for_early(self) -> None:
        if len(self._early) >= COUNTS_WITHOUT_HEADER_MAX:
            del self._early[next(iter(self._early))]

    def forget_votes(self, source: int) -> None:
        """Drop all rejects of member `source`, which says different things to different members: no count may
        depend on who heard what.
        """
        for entry in (*self.entries.values(), *self._early.values()):
            entry.rejected_by.discard(source)

    def do_most_reject(self, entry: QueueEntry) -> bool:
        """Return whether two thirds of the present validators, by head, have rejected the message."""
        return 3 * len(entry.rejected_by) >= 2 * len(self.session.current)

    def oldest_open_s(self) -> float | None:
        """Return the time at which the oldest open message was first seen, in seconds; None if no message is
        open.
        """
        while self._by_age and self._by_age[0][1] not in self._open:
            heappop(self._by_age)
        return self._by_age[0][0] if self._by_age else None

    def open_since(self, moment_s: float) -> list[CachedMessage]:
        """Return the open messages that were first seen at `moment_s` or before, each only once over all
        calls.
        """
        found: list[CachedMessage] = []
        while (oldest_s := self.oldest_open_s()) is not None and oldest_s <= moment_s:
            _, message_id = heappop(self._by_age)
            found.append(self.entries[message_id].cached)
        return found

    # Changes

    def apply(
        self, cached: CachedMessage, event: Event, *, block_id: BlockId | None = None, error: str = ""
    ) -> bool:
        """Apply `event` to the message, and report the change to its full nodes. Return whether anything
        changed.
        """
        change = after(cached.status, event, block_id=block_id, error=error)
        if change is None:
            return False
        self.set_status(cached, change.status)
        if event is not Event.FORWARDED:
            cached.standing = Standing.OWN
        for status in change.told:
            self.tell(cached, status)
        return True

    def apply_to(
        self, message_id: bytes, event: Event, *, block_id: BlockId | None = None, error: str = ""
    ) -> bool:
        cached = self.cache.get(message_id)
        return cached is not None and self.apply(cached, event, block_id=block_id, error=error)

    def set_status(self, cached: CachedMessage, status: MessageStatus) -> None:
        cached.status = status
        self._note_openness(cached)

    def _note_openness(self, cached: CachedMessage) -> None:
        entry = self.entries.get(cached.message_id)
        if entry is None:
            return
        if place_of(cached.status) in BELOW_SHARD and not entry.is_parked:
            if cached.message_id not in self._open:
                self._open[cached.message_id] = None
                self._open_of.setdefault(entry.charged_to, {})[cached.message_id] = None
                heappush(self._by_age, (cached.first_seen_s, cached.message_id))
        else:
            self._close(cached.message_id)

    def _close(self, message_id: bytes) -> None:
        if message_id not in self._open:
            return
        del self._open[message_id]
        charged_to = self.entries[message_id].charged_to
        open_of = self._open_of[charged_to]
        del open_of[message_id]
        if not open_of:
            del self._open_of[charged_to]

    # Effects

    def tell(self, cached: CachedMessage, status: MessageStatus) -> None:
        self._effects += [Tell(full_node, cached.message_id, status) for full_node in cached.origins]

    def introduce(self, cached: CachedMessage, full_node: bytes) -> None:
        """Report the state of the message to a further full node that sent it, as if it had been there from
        the beginning.
        """
        place = place_of(cached.status)
        statuses: tuple[MessageStatus, ...] = (cached.status,)
        if place in COLLATABLE or place == TAKEN:
            statuses = (New(),)
        elif kind_of(cached.status).name not in FIRST_KINDS:
            statuses = New(), cached.status
        self._effects.append(Introduce(full_node, cached.message_id, statuses))

    def put(self, record: Record) -> None:
        self.pending.add(record)
        self._effects.append(SpeakSoon())

    def broadcast(self, cached: CachedMessage) -> None:
        if cached.body is not None:
            self._effects.append(BroadcastBody(cached.message_id, cached.body.body))

    def add(self, effect: QueueEffect) -> None:
        self._effects.append(effect)

    def taken(self) -> list[QueueEffect]:
        effects, self._effects = self._effects, []
        return effects
