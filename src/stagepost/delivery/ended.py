"""The memory of messages that have ended: results, idempotency keys, and dead letters for a replay."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import msgspec

from stagepost.delivery.result import DeliveryResult
from stagepost.delivery.status import Tier

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
