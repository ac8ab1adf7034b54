"""The ends that a message can have, each with its error and one sentence that says what happened."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import msgspec

from stagepost.delivery.entry import OutboxEntry, Phase
from stagepost.delivery.errors import (
    DeliveryError,
    ErrAckTimeout,
    ErrCancelled,
    ErrClosed,
    ErrMaxRetries,
    ErrMessageExpired,
    ErrNacked,
    ErrNoConnectedPeers,
    ErrQueueEvicted,
    ErrRejected,
    ErrSendFailed,
)
from stagepost.delivery.status import DeliveryResult, NackReason, Tier
from stagepost.delivery.transport import SendPaced
from stagepost.errors import ErrorCode, StagepostError

EVICTED = ErrQueueEvicted


def may_have_been_delivered(entry: OutboxEntry) -> bool:
    """Return whether the network may have the message: it was handed over, or is about to be."""
    return entry.sends > 0 or entry.is_sent or entry.phase is Phase.SENDING or entry.is_fate_unknown


def evicted(entry: OutboxEntry, by: str) -> ErrQueueEvicted:
    return ErrQueueEvicted(
        f"the queue was full and evicted this message, the least recently used one, for {by[:8]}…",
        evicted_by=by,
        may_have_been_delivered=entry.is_fate_unknown,
        advice="raise queue_size, or replay it from the dead letters",
    )


def send_failed(entry: OutboxEntry, cause: Exception) -> ErrSendFailed:
    """Return the error of one failed send; not an end, unless the message was to be tried only once."""
    text, advice = f"the network did not take the message: {cause}", ""
    if isinstance(cause, SendPaced):
        text, advice = cause.text, "publish_queued keeps it until then"
    error = ErrSendFailed(text, code=_code_of(cause), message_id=entry.id_text, advice=advice)
    error.__cause__ = cause
    return error


def rejected(entry: OutboxEntry, cause: Exception) -> ErrRejected:
    error = ErrRejected(
        f"the network refuses the message permanently: {cause}",
        code=_code_of(cause),
        may_have_been_delivered=entry.sends > 0 or entry.is_fate_unknown,
    )
    error.__cause__ = cause
    return error


def attempts_used_up(entry: OutboxEntry, cause: DeliveryError) -> DeliveryError:
    if entry.is_sent:
        error: DeliveryError = ack_timeout(entry)
    else:
        error = ErrMaxRetries(
            f"none of {entry.attempts} attempts to send the message succeeded; the last error: {cause.text}",
            code=cause.code,
            may_have_been_delivered=entry.is_fate_unknown,
            advice="look at the network, then replay it from the dead letters",
        )
    error.__cause__ = cause
    return error


def nacked(entry: OutboxEntry) -> ErrNacked:
    assert entry.tally is not None
    refusals = ", ".join(
        f"{peer} ({reason.name.lower() if isinstance(reason, NackReason) else reason}"
        + (f": {entry.tally.texts[peer]})" if peer in entry.tally.texts else ")")
        for peer, reason in entry.tally.nacked_by.items()
    )
    return ErrNacked(
        f"{entry.tally.required} of {len(entry.tally.critical)} had to acknowledge, and too many refused: {refusals}",
        may_have_been_delivered=bool(entry.tally.acked),
    )


def nobody_connected(absence: StagepostError | None) -> ErrNoConnectedPeers:
    """Return the error of a message for a best effort that nobody could get; `absence` tells why, if anything does."""
    error = ErrNoConnectedPeers(
        "no peer is connected, so nobody could get the message" + (f": {absence.text}" if absence else ""),
        code=_code_of(absence),
        advice=(absence.advice if absence else "")
        or "store it with publish_queued, or wait for a connection",
    )
    error.__cause__ = absence
    return error


def never_sent(entry: OutboxEntry, cause: StagepostError | None) -> ErrAckTimeout:
    """Return the error of a message that was held back for the whole time of its call, though a peer was connected."""
    why = cause.text if cause is not None else "older messages went first"
    return ErrAckTimeout(
        f"the message was not sent within the time of the call, so nobody could acknowledge it: {why}",
        code=_code_of(cause),
        may_have_been_delivered=entry.is_fate_unknown,
        advice="allow more time, or store it with publish_queued",
    )


def ack_timeout(entry: OutboxEntry) -> ErrAckTimeout:
    assert entry.tally is not None
    tally = entry.tally
    return ErrAckTimeout(
        f"{len(tally.acked)} of {tally.required} acknowledgements came in time; "
        f"no acknowledgement from {', '.join(tally.missing)}",
        limit=tally.required,
        found=len(tally.acked),
        may_have_been_delivered=may_have_been_delivered(entry),
        advice="the message may have arrived: use a key when you publish it again",
    )


def out_of_time(entry: OutboxEntry, is_connected: bool, cause: StagepostError | None) -> DeliveryError:
    """Return the error of a message whose call used up its budget of time: it names what did not happen, and why.

    `cause` is what held the message back last, or why nobody is connected.
    """
    if entry.is_sent or entry.phase is Phase.SENDING:
        error: DeliveryError = ack_timeout(entry)
    elif is_connected:
        error = never_sent(entry, cause)
    else:
        error = ErrNoConnectedPeers(
            "no peer was connected during the whole time of the call"
            + ("" if cause is None else f": {cause.text}"),
            code=_code_of(cause),
            may_have_been_delivered=entry.is_fate_unknown,
            advice=(cause.advice if cause else "") or "allow more time, or store it with publish_queued",
        )
    error.__cause__ = cause
    return error


def too_old(entry: OutboxEntry, age_s: float) -> ErrMessageExpired:
    return ErrMessageExpired(
        f"the message waited in the queue for longer than message_max_age, {age_s:g} s",
        may_have_been_delivered=entry.is_fate_unknown,
    )


def cancelled(entry: OutboxEntry) -> ErrCancelled:
    is_unknown = may_have_been_delivered(entry)
    text = "it was cancelled after it had been sent" if is_unknown else "it was cancelled before it was sent"
    return ErrCancelled(text, may_have_been_delivered=is_unknown)


def cancelled_while_sending() -> ErrCancelled:
    return ErrCancelled(
        "the call was cancelled while the message was being sent", may_have_been_delivered=True
    )


def closed(entry: OutboxEntry) -> ErrClosed:
    return ErrClosed(
        "the publisher was stopped before this message came to its end",
        message_id=entry.id_text,
        may_have_been_delivered=may_have_been_delivered(entry),
    )


def dead_letter(entry: OutboxEntry, error: DeliveryError, failed_ms: int) -> FailedMessage:
    return FailedMessage(
        entry.id_text,
        entry.sequence,
        entry.tier,
        entry.topic,
        entry.payload,
        entry.nonce,
        entry.created_ms,
        entry.key_hash,
        entry.critical,
        entry.required,
        entry.attempt_number,
        type(error).__name__,
        error.text,
        failed_ms,
        entry.stamped_ms,
        entry.traceparent,
    )


def _code_of(cause: Exception | None) -> ErrorCode | None:
    return cause.code if isinstance(cause, StagepostError) else None


RESULTS_MAX = 10_000
"""Results, at most, that a publisher remembers."""
DONE_KEYS_MAX = 10_000
"""Idempotency keys, at most, that a publisher remembers."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedMap(Generic[Key, Value]):
    """A map of the last `count_max` values that were put in."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: Key, value: Value) -> None:
        values = self._values
        if key in values:
            del values[key]
        values[key] = value
        if len(values) > self._count_max:
            values.popitem(last=False)

    def get(self, key: Key) -> Value | None:
        return self._values.get(key)

    def pop(self, key: Key) -> Value | None:
        return self._values.pop(key, None)

    def values(self) -> tuple[Value, ...]:
        """Return the values, the oldest first."""
        return tuple(self._values.values())


class FailedMessage(msgspec.Struct, frozen=True):
    """A dead letter: everything that a replay needs, and why the message failed.

    A message that fails again, after a replay or under its key, leaves another copy with the same `message_id`;
    `sequence` is the copy's own.
    """

    message_id: str
    sequence: int
    tier: Tier
    topic: str
    payload: bytes
    nonce: bytes
    created_ms: int
    key_hash: bytes | None
    ackers: tuple[str, ...]
    required: int
    attempts: int
    error: str
    text: str
    failed_ms: int
    stamped_ms: int = 0
    traceparent: str = ""


class EndedMessages:
    """Results, keys and dead letters; each kind forgets its oldest above a bound."""

    def __init__(self, dead_letters_max: int) -> None:
        self.results: BoundedMap[bytes, DeliveryResult] = BoundedMap(RESULTS_MAX)
        self.done_keys: BoundedMap[bytes, DeliveryResult] = BoundedMap(DONE_KEYS_MAX)
        """Results by the hash of the idempotency key; only of messages that came to a good end."""
        self.dead_letters: BoundedMap[int, FailedMessage] = BoundedMap(dead_letters_max)
        """Dead letters by sequence, since the copies of a message that failed several times share its id."""

    def dead_letter(self, message_id: str, sequence: int | None = None) -> FailedMessage | None:
        """Return the copy with this `sequence`; without one, the newest copy of the message."""
        if sequence is not None:
            letter = self.dead_letters.get(sequence)
            return letter if letter is not None and letter.message_id == message_id else None
        copies = (one for one in reversed(self.dead_letters.values()) if one.message_id == message_id)
        return next(copies, None)
