"""The receiver's core: which messages are new, what is answered to the others, and for how long that is remembered."""

from __future__ import annotations

from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from stagepost.delivery.config import ReceiverConfig
from stagepost.delivery.entry import Moment
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.identity import delivery_id, identity_bytes
from stagepost.delivery.status import TRANSIENT_REASONS, AckType, NackReason
from stagepost.delivery.transport import Incoming

NETWORK_EXPIRY_SLACK_MS = 60_000
"""A copy may still come for as long as the network keeps one, and a little longer."""

STALE_MAX = 1_024


class Verdict(msgspec.Struct, frozen=True):
    """What the application said. Only a refusal has a reason, and only one for now a time."""

    ack_type: AckType
    reason: NackReason = NackReason.NONE
    retry_after_ms: int | None = None


ACCEPTED = Verdict(AckType.ACK)


class Action(Enum):
    RUN = "run"  # the handler
    ANSWER = "answer"  # again, what was said before
    DROP = "drop"


# Names of their own: see `entry.py`.
RUN: Final = Action.RUN
ANSWER: Final = Action.ANSWER
DROP: Final = Action.DROP


class Seen(msgspec.Struct, gc=False):
    """One delivery id. `verdict` None: the handler is still at it. There are many, and none refers to another."""

    keep_until_ms: int
    verdict: Verdict | None = None
    is_asked: bool = False
    is_kept: bool = False
    """Safe in the store, so that it may be answered."""


class ReceiverCore:
    def __init__(self, self_id: str, config: ReceiverConfig) -> None:
        self._self_id = self_id
        self._window_ms = int(config.dedup_window * 1_000)
        self._capacity = config.dedup_capacity
        self._seen: dict[bytes, Seen] = {}
        self._soonest: list[tuple[int, bytes]] = []
        self.duplicates_in = 0
        self.dedup_overflow = 0

    def __len__(self) -> int:
        return len(self._seen)

    def id_of(self, message: Incoming) -> bytes:
        """From what was received, and from who signed it: never taken from the message itself."""
        return delivery_id(identity_bytes(message.sender), message.topic, message.nonce, message.payload)

    def is_asked(self, message: Incoming) -> bool:
        return self._self_id in message.ackers

    def maybe_duplicate(self, message: Incoming, now: Moment) -> bool:
        """Older than what is remembered: it may have been here before."""
        return now.unix_ms - message.created_ms > self._window_ms

    def received(self, message_id: bytes, message: Incoming, now: Moment) -> Action:
        seen = self._seen.get(message_id)
        keep_until_ms = self.keep_until(message, now)
        if seen is None:
            self._expire(now.unix_ms)
            self._remember(message_id, Seen(keep_until_ms, None, self.is_asked(message)))
            return RUN
        self.duplicates_in += 1
        if keep_until_ms > seen.keep_until_ms:
            seen.keep_until_ms = keep_until_ms
        if seen.verdict is None:
            seen.is_asked = seen.is_asked or self.is_asked(message)
            return DROP
        return ANSWER if self.is_asked(message) else DROP

    def keep_until(self, message: Incoming, now: Moment) -> int:
        until_ms = now.unix_ms + self._window_ms
        if message.expires_at_ms is not None:
            until_ms = max(until_ms, message.expires_at_ms + NETWORK_EXPIRY_SLACK_MS)
        return until_ms

    def finished(self, message_id: bytes, verdict: Verdict, now: Moment) -> AckReceipt | None:
        """The handler has spoken. A refusal for now is forgotten, so that the next copy runs again."""
        seen = self._seen.get(message_id)
        if seen is None:
            return None
        if verdict is not ACCEPTED and verdict.reason in TRANSIENT_REASONS:
            del self._seen[message_id]
        else:
            seen.verdict = verdict
        return receipt_of(message_id, verdict, now) if seen.is_asked else None

    def verdict_of(self, message_id: bytes) -> Seen | None:
        return self._seen.get(message_id)

    def forget(self, message_id: bytes) -> None:
        """The handler did not come to an end: whatever copy comes next runs."""
        self._seen.pop(message_id, None)

    def recall(self, message_id: bytes, verdict: Verdict, keep_until_ms: int) -> None:
        """From the store, after a restart."""
        seen = self._remember(message_id, Seen(keep_until_ms, verdict))
        seen.is_kept = True

    def _remember(self, message_id: bytes, seen: Seen) -> Seen:
        while len(self._seen) >= self._capacity and self._drop_soonest():
            self.dedup_overflow += 1
        self._seen[message_id] = seen
        heappush(self._soonest, (seen.keep_until_ms, message_id))
        if len(self._soonest) > STALE_MAX + 2 * self._capacity:
            self._soonest = [(each.keep_until_ms, key) for key, each in self._seen.items()]
            heapify(self._soonest)
        return seen

    def _expire(self, now_ms: int) -> None:
        while self._soonest and self._soonest[0][0] < now_ms:
            self._take_soonest(now_ms)

    def _take_soonest(self, now_ms: int) -> bool:
        """Drop the first of the heap if it is really due; one that was seen again goes back to its new place."""
        keep_until_ms, message_id = heappop(self._soonest)
        seen = self._seen.get(message_id)
        if seen is None:
            return False
        if seen.keep_until_ms > keep_until_ms:
            heappush(self._soonest, (seen.keep_until_ms, message_id))
            return False
        if seen.verdict is None:
            # Its handler is still running: it stays as long as that.
            seen.keep_until_ms = max(seen.keep_until_ms, now_ms) + self._window_ms
            heappush(self._soonest, (seen.keep_until_ms, message_id))
            return False
        del self._seen[message_id]
        return True

    def _drop_soonest(self) -> bool:
        """The one that would be dropped soonest goes first. False if every one of them is being handled."""
        return any(self._take_soonest(0) for _ in range(len(self._soonest)))


def receipt_of(message_id: bytes, verdict: Verdict, now: Moment) -> AckReceipt:
    return AckReceipt(message_id, now.unix_ms, verdict.ack_type, verdict.reason, verdict.retry_after_ms)
