"""The consequence of a refused message for the peer that relayed it, and the peer's score.

The published table says for each reason whether the connection ends. Three of its reasons also befall honest
relays, which judged the same message earlier, by another clock, or after other messages had reached them:

* Two messages of a pool, a minute apart when the relay accepted them, reach us closer together by different
ways. We cut a relay off only if its own announcements prove it: it said that it had nothing more, and then
announced two messages of a pool within less than the gap. Otherwise we keep the message and try it again when
its time has come.

* A pool renews its certificate, and the message with the higher number overtakes the other. We cut a relay
off only if it announced the higher number first itself.

* A message has the longest lifetime allowed, and the relay's clock is a little ahead of ours. We try it again
for as long as clocks may differ; then we cut the relay off.

Our own trouble (no stake data yet, no room, no disk) costs the relay nothing, and we try the message again.

A high score is bad, and it falls with time.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

import msgspec

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected
from stagepost.errors import ErrorCode
from stagepost.ground.net.back_off import doubled_s

POOLS_REMEMBERED_MAX = 1_024
CLOCKS_DIFFER_MAX_S = 5.0
RETRY_MIN_S = 0.05
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0

DISCONNECTING_CODES = frozenset(
    {
        ErrorCode.MSG_BAD_ID,
        ErrorCode.KES_PERIOD,
        ErrorCode.OPCERT_SIGNATURE,
        ErrorCode.KES_SIGNATURE,
        ErrorCode.MSG_EXPIRY_TOO_FAR,
        ErrorCode.MSG_TOO_FREQUENT,
        ErrorCode.OPCERT_COUNTER,
    }
)
OUR_OWN_TROUBLE = frozenset({ErrorCode.NOT_READY, ErrorCode.QUEUE_FULL, ErrorCode.STORAGE_UNAVAILABLE})


class Consequence(Enum):
    DISCONNECT = "disconnect"
    COUNT = "count"  # settled; the peer's score rises
    RETRY = "retry"  # the peer is not to blame, as far as we know
    RETRY_UNLESS_CROWDED = (
        "retry unless crowded"  # as before, but newer messages are worth more than this one
    )


class Ruling(msgspec.Struct, frozen=True):
    consequence: Consequence
    retry_after_s: float = 0.0


class Offer(msgspec.Struct, frozen=True, gc=False):
    """Announcement of a message. `not_held_before` is the time when the peer last said that it had nothing
    more, if it did."""

    sequence: int
    announced_at: float
    not_held_before: float | None


class _PoolRecord(msgspec.Struct):
    latest: Offer
    issue_number: int
    numbered_at: int  # the sequence of the message with that number


class RelayRecord:
    """Record of one peer's relayed messages, as far as they can prove a violation. Forged messages harm only
    their relay."""

    def __init__(self, message_gap_s: float) -> None:
        self._message_gap_s = message_gap_s
        # By cold key, which stands for the pool as well as its id does and saves hashing.
        self._pools: OrderedDict[bytes, _PoolRecord] = OrderedDict()

    def rule(
        self, message: DmqMessage, offer: Offer, refusal: Rejected, now: float, tries: int, first_at: float
    ) -> Ruling:
        """Return the consequence of `refusal`. `tries` and `first_at` are the number of earlier refusals of
        this copy, and the time of the first."""
        code = refusal.code
        if code in OUR_OWN_TROUBLE:
            patience_s = doubled_s(RETRY_FIRST_S, RETRY_MAX_S, tries + 1)
            retries = Consequence.RETRY_UNLESS_CROWDED if refusal.gives_way else Consequence.RETRY
            return Ruling(retries, max(RETRY_MIN_S, refusal.retry_after_s or patience_s))
        if code is ErrorCode.MSG_TOO_FREQUENT and not self._is_proved_too_frequent(message, offer):
            return Ruling(
                Consequence.RETRY_UNLESS_CROWDED, max(RETRY_MIN_S, refusal.retry_after_s or RETRY_FIRST_S)
            )
        if code is ErrorCode.MSG_EXPIRY_TOO_FAR and now - first_at < CLOCKS_DIFFER_MAX_S:
            return Ruling(Consequence.RETRY, RETRY_FIRST_S)
        if code is ErrorCode.OPCERT_COUNTER and not self._is_proved_out_of_order(message, offer):
            return Ruling(Consequence.COUNT)
        return Ruling(Consequence.DISCONNECT if code in DISCONNECTING_CODES else Consequence.COUNT)

    def note(self, message: DmqMessage, offer: Offer) -> None:
        """Record that the peer has relayed this message."""
        cold_key = message.cold_verification_key
        number = message.issue_number
        record = self._pools.get(cold_key)
        if record is None:
            self._pools[cold_key] = _PoolRecord(offer, number, offer.sequence)
            if len(self._pools) > POOLS_REMEMBERED_MAX:
                self._pools.popitem(last=False)
            return
        self._pools.move_to_end(cold_key)
        sequence = offer.sequence
        if sequence > record.latest.sequence:
            record.latest = offer
        if number > record.issue_number or (number == record.issue_number and sequence < record.numbered_at):
            record.issue_number, record.numbered_at = number, sequence

    def _is_proved_too_frequent(self, message: DmqMessage, offer: Offer) -> bool:
        record = self._pools.get(message.cold_verification_key)
        if record is None or record.latest.sequence >= offer.sequence:
            return False
        # The peer accepted the earlier message after `since`, and this one before it announced it.
        since = record.latest.not_held_before
        return since is not None and offer.announced_at - since < self._message_gap_s

    def _is_proved_out_of_order(self, message: DmqMessage, offer: Offer) -> bool:
        record = self._pools.get(message.cold_verification_key)
        return (
            record is not None
            and record.numbered_at < offer.sequence
            and message.issue_number < record.issue_number
        )


REJECTED_POINTS = 1.0
ACCEPTED_POINTS = -3.0
DRAIN_PER_S = 0.1
SCORE_MIN = 0.0
SCORE_MAX = 900.0
CLAIM_DELAY_MAX_S = 0.25
"""Seconds that a peer with the highest score waits longer than others before we download from it."""


class PeerScore:
    """Score of one peer. Times are seconds of a monotonic clock."""

    __slots__ = ("_points", "_since")

    def __init__(self, now: float) -> None:
        self._points = SCORE_MIN
        self._since = now

    def points(self, now: float) -> float:
        if self._points == SCORE_MIN:
            return SCORE_MIN
        return max(SCORE_MIN, self._points - DRAIN_PER_S * (now - self._since))

    def rejected(self, now: float) -> None:
        """Raise the score: the peer's message was refused, or the peer did not supply it."""
        self._add(REJECTED_POINTS, now)

    def accepted(self, now: float, count: int = 1) -> None:
        self._add(ACCEPTED_POINTS * count, now)

    def claim_delay_s(self, now: float) -> float:
        if self._points == SCORE_MIN:
            return 0.0
        return CLAIM_DELAY_MAX_S * self.points(now) / SCORE_MAX

    def is_at_ceiling(self, now: float) -> bool:
        return self.points(now) >= SCORE_MAX

    def _add(self, points: float, now: float) -> None:
        self._points = min(SCORE_MAX, max(SCORE_MIN, self.points(now) + points))
        self._since = now
