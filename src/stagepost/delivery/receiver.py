"""The receiver's core: it tells new messages from copies, and remembers what to answer to the copies."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from stagepost.delivery.config import ReceiverConfig
from stagepost.delivery.entry import ClockTimes, is_stamped
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.identity import delivery_id, identity_bytes
from stagepost.delivery.status import TRANSIENT_REASONS, AckType, NackReason
from stagepost.delivery.transport import Incoming

NETWORK_EXPIRY_SLACK_MS = 60_000
"""Milliseconds after the network has forgotten a message, in which a copy may still come."""

STALE_MAX = 1_024
"""Stale items, at most, in the heap beside two for each record; then the heap is made anew."""


class HandlerAnswer(msgspec.Struct, frozen=True):
    """The answer of the application. Only a refusal has a reason, and only a refusal for now a time."""

    ack_type: AckType
    reason: NackReason = NackReason.NONE
    retry_after_ms: int | None = None
    text: str = ""
    """Words of a refusal for its sender. The store does not keep them: an answer after a restart has the reason alone."""


ACCEPTED = HandlerAnswer(AckType.ACK)


class Action(Enum):
    RUN = "run"  # the handler
    ANSWER = "answer"  # with the verdict that was given before
    DROP = "drop"


# Module constants: see `entry.py`.
RUN: Final = Action.RUN
ANSWER: Final = Action.ANSWER
DROP: Final = Action.DROP


class DeliveryRecord(msgspec.Struct, gc=False):
    """The record of one delivery id. `verdict` None: the handler is still running. No record refers to another."""

    keep_until_ms: int
    verdict: HandlerAnswer | None = None
    is_asked: bool = False
    is_kept: bool = False
    """True if the store has the verdict, so that the receiver may say it."""

    stamped_ms: int = 0
    """Stamp of the copies that the verdict is about; 0 where the topic has none, or where it is not known."""


class ReceiverCore:
    """The memory of a receiver: one record for each delivery id, up to `dedup_capacity`.

    `sure_ms` gives the time for what is forgotten for good: a wall clock that goes a day ahead for a moment must not
    make the receiver handle a message twice.
    """

    def __init__(
        self,
        self_id: str,
        config: ReceiverConfig,
        sure_ms: Callable[[ClockTimes], int] = lambda now: now.unix_ms,
    ) -> None:
        self.sure_ms = sure_ms
        self._self_id = self_id
        self._window_ms = int(config.dedup_window * 1_000)
        self._capacity = config.dedup_capacity
        self._seen: dict[bytes, DeliveryRecord] = {}
        self._soonest: list[tuple[int, bytes]] = []
        self.duplicates_in = 0
        self.dedup_overflow = 0

    def __len__(self) -> int:
        return len(self._seen)

    def id_of(self, message: Incoming) -> bytes:
        """Compute the id from the message and its signer; it is never trusted from the wire."""
        return delivery_id(identity_bytes(message.sender), message.topic, message.nonce, message.payload)

    def is_asked(self, message: Incoming) -> bool:
        return self._self_id in message.ackers

    def maybe_duplicate(self, message: Incoming, now: ClockTimes) -> bool:
        """Return whether the message is older than the memory, so that it may have been handled before."""
        return now.unix_ms - message.created_ms > self._window_ms

    def received(self, message_id: bytes, message: Incoming, now: ClockTimes) -> Action:
        seen = self._seen.get(message_id)
        keep_until_ms = self.keep_until(message, now)
        stamped_ms = message.created_ms if is_stamped(message.topic) else 0
        if seen is None or (seen.verdict is not None and 0 < seen.stamped_ms < stamped_ms):
            self._expire(now)
            record = DeliveryRecord(keep_until_ms, None, self.is_asked(message), stamped_ms=stamped_ms)
            self._remember(message_id, record)
            return RUN
        self.duplicates_in += 1
        if seen.stamped_ms not in (0, stamped_ms):
            return DROP  # another stamp than the newest, or one that comes while the handler runs: it is sent again
        if keep_until_ms > seen.keep_until_ms:
            seen.keep_until_ms = keep_until_ms
        if seen.verdict is None:
            seen.is_asked = seen.is_asked or self.is_asked(message)
            return DROP
        return ANSWER if self.is_asked(message) else DROP

    def keep_until(self, message: Incoming, now: ClockTimes) -> int:
        until_ms = now.unix_ms + self._window_ms
        if message.expires_at_ms is not None:
            until_ms = max(until_ms, message.expires_at_ms + NETWORK_EXPIRY_SLACK_MS)
        return until_ms

    def finished(self, message_id: bytes, verdict: HandlerAnswer, now: ClockTimes) -> AckReceipt | None:
        """Note the verdict of a handler; return the receipt, if the sender asked for one.

        A refusal for now is forgotten, so that the next copy runs the handler again.
        """
        seen = self._seen.get(message_id)
        if seen is None:
            return None
        if verdict is not ACCEPTED and verdict.reason in TRANSIENT_REASONS:
            del self._seen[message_id]
        else:
            seen.verdict = verdict
        return receipt_of(message_id, verdict, now) if seen.is_asked else None

    def verdict_of(self, message_id: bytes) -> DeliveryRecord | None:
        return self._seen.get(message_id)

    def forget(self, message_id: bytes) -> None:
        """Forget a message whose handler did not end, so that the next copy runs the handler."""
        self._seen.pop(message_id, None)

    def recall(
        self, message_id: bytes, verdict: HandlerAnswer, keep_until_ms: int, stamped_ms: int = 0
    ) -> None:
        """Remember a verdict from the store, after a restart."""
        seen = self._remember(message_id, DeliveryRecord(keep_until_ms, verdict, stamped_ms=stamped_ms))
        seen.is_kept = True

    def _remember(self, message_id: bytes, seen: DeliveryRecord) -> DeliveryRecord:
        while len(self._seen) >= self._capacity and self._drop_soonest():
            self.dedup_overflow += 1
        self._seen[message_id] = seen
        heappush(self._soonest, (seen.keep_until_ms, message_id))
        if len(self._soonest) > STALE_MAX + 2 * self._capacity:
            self._soonest = [(each.keep_until_ms, key) for key, each in self._seen.items()]
            heapify(self._soonest)
        return seen

    def _expire(self, now: ClockTimes) -> None:
        if self._soonest and self._soonest[0][0] < now.unix_ms:
            sure_ms = self.sure_ms(now)
            while self._soonest and self._soonest[0][0] < sure_ms:
                self._take_soonest(sure_ms)

    def _take_soonest(self, now_ms: int) -> bool:
        """Drop the first record of the heap if it is really due; return whether it was.

        A record that was seen again goes back to its new place.
        """
        keep_until_ms, message_id = heappop(self._soonest)
        seen = self._seen.get(message_id)
        if seen is None:
            return False
        if seen.keep_until_ms > keep_until_ms:
            heappush(self._soonest, (seen.keep_until_ms, message_id))
            return False
        if seen.verdict is None:
            # The handler is still running: the record stays as long as that.
            seen.keep_until_ms = max(seen.keep_until_ms, now_ms) + self._window_ms
            heappush(self._soonest, (seen.keep_until_ms, message_id))
            return False
        del self._seen[message_id]
        return True

    def _drop_soonest(self) -> bool:
        """Drop the record that would be dropped soonest; return False if every message is being handled."""
        return any(self._take_soonest(0) for _ in range(len(self._soonest)))


def receipt_of(message_id: bytes, verdict: HandlerAnswer, now: ClockTimes) -> AckReceipt:
    return AckReceipt(
        message_id, now.unix_ms, verdict.ack_type, verdict.reason, verdict.retry_after_ms, verdict.text
    )
