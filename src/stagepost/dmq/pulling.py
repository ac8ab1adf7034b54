"""The next action with one peer that supplies messages: the pulling side of message submission, without the
network.

    submit arrived messages → request messages → acknowledge and request ids → sleep

The core returns one action at a time, the first in this order that is possible. It acknowledges ids strictly
in the order of their announcement, and only when their fate is known: held, refused, or no longer available
from this peer.

An announced id does not say in which layout its message is. A message of the older layout chooses its id, and
could pretend to be any other; so an id counts as held only if it is held in the newer layout, where it is a
hash and can stand for one message alone. The node therefore downloads a message of the older layout from each
peer that announces it.

`AnnouncedIndexes` notices a peer that announces a message of the mempool again. Acknowledging an id that we
hold costs a peer nothing, so it could keep us busy for ever with the same ids. The class remembers the
mempool's indexes and not the ids: a bit for each message instead of a hundred bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Protocol, TypeAlias

import msgspec

from stagepost.dmq.announcements import IDS_REQUESTED_MAX, IDS_UNACKNOWLEDGED_MAX, SIZE_TOLERANCE_BYTES
from stagepost.dmq.downloads import WITHHOLDER, DownloadPeer, Downloads
from stagepost.dmq.mempool import MempoolEntry, MessageKey
from stagepost.dmq.message import FIVE_ONLY, MESSAGE_BYTES_MAX, DmqMessage, MessageLayout
from stagepost.dmq.outcome import Accepted, Outcome, Rejected
from stagepost.dmq.peer_standing import (
    OUR_OWN_TROUBLE,
    SCORE_MAX,
    Consequence,
    Offer,
    PeerScore,
    RelayRecord,
    Ruling,
)
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.dmq.validation import MESSAGE_GAP_S
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import MessageId


class Submit(msgspec.Struct, frozen=True, gc=False):
    """Action: have these messages judged, and pass the outcomes to `PullCore.submitted`."""

    messages: tuple[DmqMessage, ...]


class FetchMessages(msgspec.Struct, frozen=True, gc=False):
    """Action: request these messages, and pass the reply to `PullCore.messages_arrived`. The next action
    need not wait for it."""

    ids: tuple[MessageId, ...]


class AskIds(msgspec.Struct, frozen=True, gc=False):
    """Action: request ids, and pass the reply to `PullCore.ids_arrived`. The next action need not wait for
    it."""

    blocking: bool
    acknowledged: int
    requested: int


class Sleep(msgspec.Struct, frozen=True, gc=False):
    """Action: do nothing before `until`, or before the next event; None sets no timer."""

    until: float | None


Action: TypeAlias = Submit | FetchMessages | AskIds | Sleep


class PeerFault(msgspec.Struct, frozen=True, gc=False):
    """Reason why the connection must end."""

    code: ErrorCode
    text: str
    message_id: MessageId


CHUNK_BITS = 1_024
CHUNKS_MAX = 64
"""Chunks, 65,536 indexes: more than the mempool holds. Beyond that the oldest are forgotten."""


class AnnouncedIndexes:
    """Indexes that one peer has announced on one connection."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}

    def add(self, index: int) -> bool:
        """Add `index`; return whether it is new."""
        chunk, bit = divmod(index, CHUNK_BITS)
        bits = self._chunks.get(chunk)
        if bits is None:
            bits = 0
            if len(self._chunks) >= CHUNKS_MAX:
                del self._chunks[min(self._chunks)]
        mask = 1 << bit
        self._chunks[chunk] = bits | mask
        return not bits & mask


MESSAGES_REQUESTED_MAX = 33
"""Messages in one batch; with the largest messages that is as much as one reply may hold."""

BATCHES_OUTSTANDING_MAX = 4
BYTES_IN_FLIGHT_MAX = 92_400
"""Bytes of requested messages; one message may exceed the limit."""

ASK_AGAIN_S = 0.25
"""Seconds until we ask again without ids to acknowledge, after a reply with fewer ids than requested."""


_SLEEP = Sleep(None)


class HeldKeys(Protocol):
    """Mempool as a puller needs it."""

    def __contains__(self, key: MessageKey, /) -> bool: ...

    def get(self, key: MessageKey, /) -> MempoolEntry | None: ...

    def holds_key(self, key: bytes, /) -> bool:
        """Return whether the newer layout's message with this id is held. `holds_key` and `find` are the
        calls most often made."""
        ...

    def find(self, key: bytes, /) -> MempoolEntry | None: ...


class _Fate(Enum):
    WANTED = "wanted"
    REQUESTED = "requested"
    ARRIVED = "arrived"
    SUBMITTED = "submitted"
    WAITING = "waiting"  # to be submitted again
    SETTLED = "settled"


class _WindowEntry(msgspec.Struct, gc=False, eq=False):
    """Place in the window."""

    message_id: MessageId
    size: int
    offer: Offer
    fate: _Fate = _Fate.WANTED
    message: DmqMessage | None = None
    tries: int = 0
    first_refused_at: float = 0.0
    retry_at: float = 0.0
    gives_way: bool = False
    is_blameless: bool = (
        False  # the pool's share of our mempool is used up, for which the peer is not to blame
    )


class PullCore:
    """Core for one peer. `host` is what the peer has in common with other peers of its owner. `held` says which messages need no download; `on_change` is called when other peers
    let this one go on.

    One task uses it. The caller has checked the window's rules on everything that it passes in.
    """

    def __init__(
        self,
        name: str,
        downloads: Downloads,
        held: HeldKeys,
        *,
        now: float,
        layouts: Collection[MessageLayout] = FIVE_ONLY,
        message_gap_s: float = MESSAGE_GAP_S,
        score: PeerScore | None = None,
        host: str | None = None,
    ) -> None:
        self.name = name
        self.score = score or PeerScore(now)
        self.fault: PeerFault | None = None
        self._claimant = DownloadPeer(name, host)
        self._downloads = downloads
        self._held = held
        self._layouts = sorted(layouts, key=lambda layout: -layout.value)  # the newer first
        self._knows_newer = MessageLayout.FIVE in layouts
        self._knows_older = MessageLayout.FOUR in layouts
        self._announced_indexes = AnnouncedIndexes()
        self._relayed = RelayRecord(message_gap_s)
        self._window: deque[_WindowEntry] = deque()
        self._unsettled: dict[MessageId, _WindowEntry] = {}  # in the order of the window
        self._wanted: dict[MessageId, _WindowEntry] = {}  # those of them that nobody was asked for yet
        self._arrived: dict[MessageId, _WindowEntry] = {}
        self._kept: dict[MessageId, _WindowEntry] = {}  # to be submitted again
        self._announced_count = 0
        self._batches_outstanding = 0
        self._bytes_in_flight = 0
        self._ids_asked: AskIds | None = None
        self._asked_at = now
        self._ask_not_before = now
        self._not_held_before: float | None = None

    @property
    def on_change(self) -> Callable[[], None]:
        return self._claimant.on_change

    @on_change.setter
    def on_change(self, call: Callable[[], None]) -> None:
        self._claimant.on_change = call

    @property
    def unacknowledged(self) -> int:
        return len(self._window)

    @property
    def bytes_in_flight(self) -> int:
        return self._bytes_in_flight

    @property
    def batches_outstanding(self) -> int:
        return self._batches_outstanding

    def next_action(self, now: float) -> Action:
        until: float | None = None
        if self._arrived or self._kept:
            submit = self._submit(now)
            if submit is not None:
                return submit
        if self._wanted:
            fetch, until = self._fetch(now)
            if fetch is not None:
                return fetch
        if self._ids_asked is None:
            ask, ask_at = self._ask(now)
            if ask is not None:
                return ask
            if ask_at is not None and (until is None or ask_at < until):
                until = ask_at
        if self._kept:
            retry_at = min(entry.retry_at for entry in self._kept.values())
            until = retry_at if until is None else min(until, retry_at)
        return _SLEEP if until is None else Sleep(until)

    # Results of the actions

    def ids_arrived(self, ids: Sequence[MessageIdAndSize], now: float) -> None:
        """Take in the reply to `AskIds`; it is empty also if the peer answered without news."""
        asked, self._ids_asked = self._ids_asked, None
        assert asked is not None, "ids arrived that nobody asked for"
        standing = self._downloads.standing(self._claimant, now)
        may_lease = standing != WITHHOLDER and not self.score.claim_delay_s(now)
        unsettled = self._unsettled
        for announced in ids:
            message_id = announced.message_id
            self._announced_count += 1
            offer = Offer(self._announced_count, now, self._not_held_before)
            entry = _WindowEntry(message_id, announced.size_in_bytes, offer)
            self._window.append(entry)
            is_in_window = message_id in unsettled
            is_held = self._is_held(message_id)
            if is_in_window or ((is_held or self._knows_older) and self._is_repeated(message_id)):
                self._count_rejection(now, ErrorCode.MSG_DUPLICATE, message_id)
            if is_in_window or is_held:
                entry.fate = _Fate.SETTLED  # in the window it shares the fate of the first mention
            elif announced.size_in_bytes > MESSAGE_BYTES_MAX + SIZE_TOLERANCE_BYTES:
                # The message could not be read if it came, and reading it would cost an otherwise useful
                # connection.
                entry.fate = _Fate.SETTLED
                self._count_rejection(now, ErrorCode.MSG_BODY_SIZE, message_id)
            else:
                unsettled[message_id] = self._wanted[message_id] = entry
                self._downloads.announce(
                    self._claimant, message_id, now, may_lease=may_lease, standing=standing
                )
        if not ids:
            self._not_held_before = self._asked_at
        if len(ids) == asked.requested:
            self._ask_not_before = now
        elif asked.blocking and not ids:
            # A blocking request that ended without news is followed by the next at once; only immediate empty
            # answers are slowed down.
            self._ask_not_before = self._asked_at + ASK_AGAIN_S
        else:
            self._ask_not_before = now + ASK_AGAIN_S

    def messages_arrived(
        self, requested: Sequence[MessageId], messages: Sequence[DmqMessage], now: float
    ) -> None:
        """Take in the reply to `FetchMessages`. This peer can no longer supply the messages that are missing."""
        self._batches_outstanding -= 1
        # Of two messages with one id the first counts.
        came = {message.message_id: message for message in reversed(messages)}
        for message_id in requested:
            entry = self._unsettled[message_id]
            self._bytes_in_flight -= entry.size
            found = came.get(message_id)
            if found is None:
                self._downloads.omitted(self._claimant, message_id)
                self._settle(entry)
                self._count_rejection(now, ErrorCode.MSG_EXPIRED, message_id)
            else:
                entry.fate = _Fate.ARRIVED
                entry.message = found
                self._arrived[message_id] = entry
                self._downloads.arrived(self._claimant, message_id)

    def submitted(self, messages: Sequence[DmqMessage], outcomes: Sequence[Outcome], now: float) -> None:
        """Take in the outcomes of `Submit`: only now does the peer get its credit."""
        accepted: list[MessageId] = []
        for message, outcome in zip(messages, outcomes, strict=True):
            message_id = message.message_id
            entry = self._unsettled[message_id]
            if isinstance(outcome, Accepted):
                self._relayed.note(message, entry.offer)
                self._is_repeated(message_id)
                entry.fate = _Fate.SETTLED
                entry.message = None
                del self._unsettled[message_id]
                accepted.append(message_id)
            else:
                self._credit(accepted, now)
                accepted = []
                self._refused(entry, message, outcome, now)
        self._credit(accepted, now)

    def _credit(self, accepted: Sequence[MessageId], now: float) -> None:
        if accepted:
            self.score.accepted(now, len(accepted))
            self._downloads.proved_valid(self._claimant, accepted, now)

    def leave(self) -> None:
        """Release all announced ids after the peer is gone: other peers must supply them."""
        for entry in list(self._unsettled.values()):
            self._settle(entry)
        for entries in (self._arrived, self._kept, self._window, self._wanted):
            entries.clear()

    # The actions, in order

    def _submit(self, now: float) -> Submit | None:
        for entry in list(self._kept.values()):
            if entry.retry_at <= now or self._is_held(entry.message_id):
                del self._kept[entry.message_id]
                self._arrived[entry.message_id] = entry
                self._downloads.arrived(self._claimant, entry.message_id)
        if not self._arrived:
            return None
        messages: list[DmqMessage] = []
        for entry in self._arrived.values():
            assert entry.message is not None
            if self._is_held(entry.message_id):
                self._settle_held(entry)  # another peer was faster; nobody is to blame
            else:
                entry.fate = _Fate.SUBMITTED
                messages.append(entry.message)
        self._arrived = {}
        return Submit(tuple(messages)) if messages else None

    def _fetch(self, now: float) -> tuple[FetchMessages | None, float | None]:
        until: float | None = None
        chosen: list[MessageId] = []
        has_room = self._batches_outstanding < BATCHES_OUTSTANDING_MAX
        delay_s = self.score.claim_delay_s(now)
        downloads, claimant, wanted = self._downloads, self._claimant, self._wanted
        for message_id, entry in list(wanted.items()):
            if self._is_held(message_id):
                self._settle_held(entry)
                continue
            if (
                not has_room
                or self._bytes_in_flight >= BYTES_IN_FLIGHT_MAX
                or len(chosen) >= MESSAGES_REQUESTED_MAX
            ):
                continue
            at = downloads.claimable_at(claimant, message_id, now)
            if at is None:
                continue
            if delay_s:
                at = max(at, entry.offer.announced_at + delay_s)
            if at <= now:
                downloads.claim(claimant, message_id, now)
                entry.fate = _Fate.REQUESTED
                del wanted[message_id]
                self._bytes_in_flight += entry.size
                chosen.append(message_id)
            elif until is None or at < until:
                until = at
        if not chosen:
            return None, until
        self._batches_outstanding += 1
        return FetchMessages(tuple(chosen)), None

    def _ask(self, now: float) -> tuple[AskIds | None, float | None]:
        if len(self._window) >= IDS_UNACKNOWLEDGED_MAX:
            self._give_way(now)
        settled = 0
        for entry in self._window:
            if entry.fate is not _Fate.SETTLED:
                break
            settled += 1
        left = len(self._window) - settled
        requested = min(IDS_REQUESTED_MAX, IDS_UNACKNOWLEDGED_MAX - left)
        is_early = now < self._ask_not_before
        if not left:
            if is_early and not settled:
                return None, self._ask_not_before
        elif not settled and (is_early or not requested):
            return None, self._ask_not_before if requested else None
        if left:
            for _ in range(settled):
                self._window.popleft()
        else:
            self._window.clear()
        self._ids_asked = AskIds(not left, settled, requested)
        self._asked_at = now
        return self._ids_asked, None

    def _give_way(self, now: float) -> None:
        """Give up the head of a full window that waits for its pool's next turn: the messages after it are
        worth more."""
        head = self._window[0]
        if head.fate is _Fate.WAITING and head.gives_way:
            del self._kept[head.message_id]
            self._settle(head)
            if not head.is_blameless:
                self._count_rejection(now, ErrorCode.MSG_TOO_FREQUENT, head.message_id)

    # Details

    def _refused(self, entry: _WindowEntry, message: DmqMessage, refusal: Rejected, now: float) -> None:
        if not entry.tries:
            entry.first_refused_at = now
        ruling = self._relayed.rule(message, entry.offer, refusal, now, entry.tries, entry.first_refused_at)
        code = refusal.code or ErrorCode.MSG_BAD_ID
        match ruling.consequence:
            case Consequence.DISCONNECT:
                self._settle(entry)
                self._count_rejection(now, code, message.message_id)
                self.fault = self.fault or PeerFault(code, refusal.text, message.message_id)
            case Consequence.COUNT:
                self._settle(entry)
                # We downloaded a message of the older layout again out of our own caution.
                is_our_doing = code is ErrorCode.MSG_DUPLICATE and message.layout is MessageLayout.FOUR
                if not is_our_doing:
                    self._count_rejection(now, code, message.message_id)
            case Consequence.RETRY | Consequence.RETRY_UNLESS_CROWDED:
                self._keep(entry, ruling, refusal, now)
        if refusal.code is ErrorCode.MSG_TOO_FREQUENT:
            self._relayed.note(message, entry.offer)

    def _keep(self, entry: _WindowEntry, ruling: Ruling, refusal: Rejected, now: float) -> None:
        entry.tries += 1
        entry.fate = _Fate.WAITING
        self._kept[entry.message_id] = entry
        entry.retry_at = now + ruling.retry_after_s
        entry.gives_way = ruling.consequence is Consequence.RETRY_UNLESS_CROWDED
        entry.is_blameless = refusal.code in OUR_OWN_TROUBLE
        if refusal.code in (ErrorCode.MSG_TOO_FREQUENT, ErrorCode.MSG_EXPIRY_TOO_FAR):
            # Nothing in this copy has been verified yet: if it is forged, the true one must not wait for it.
            self._downloads.let_others_try(self._claimant, entry.message_id)

    def _settle(self, entry: _WindowEntry) -> None:
        entry.fate = _Fate.SETTLED
        entry.message = None
        del self._unsettled[entry.message_id]
        if self._wanted:
            self._wanted.pop(entry.message_id, None)
        self._downloads.withdraw(self._claimant, entry.message_id)

    def _settle_held(self, entry: _WindowEntry) -> None:
        self._is_repeated(entry.message_id)
        self._settle(entry)

    def _is_repeated(self, message_id: MessageId) -> bool:
        """Return whether we hold the message and the peer has announced it before; record the announcement."""
        entry = self._held.find(message_id) if self._knows_newer else None
        if entry is None and self._knows_older:
            entry = self._held.get((MessageLayout.FOUR, message_id))
        return entry is not None and not self._announced_indexes.add(entry.index)

    def _count_rejection(self, now: float, code: ErrorCode, message_id: MessageId) -> None:
        self.score.rejected(now)
        if self.fault is None and self.score.is_at_ceiling(now):
            # The table of reasons ends no connection for this reason alone, but a flood has to end.
            text = f"{code}: the peer's score has reached {SCORE_MAX:g}: nearly all that it offers is refused"
            self.fault = PeerFault(code, text, message_id)

    def _is_held(self, message_id: MessageId) -> bool:
        if self._knows_newer:
            return self._held.holds_key(message_id)
        return (self._layouts[0], message_id) in self._held
