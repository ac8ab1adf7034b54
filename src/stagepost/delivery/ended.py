"""What is remembered of messages that have ended: their outcomes, their keys, and those that failed for a replay."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import msgspec

from stagepost.delivery.result import Outcome
from stagepost.delivery.status import Tier

OUTCOMES_MAX = 10_000
DONE_KEYS_MAX = 10_000

Key = TypeVar("Key")
Value = TypeVar("Value")


class LastOnes(Generic[Key, Value]):
    """The last `count_max` values that were put in."""

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
        """The oldest first."""
        return tuple(self._values.values())


class FailedMessage(msgspec.Struct, frozen=True):
    """A dead letter: everything that a replay needs, and why it failed."""

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


class Ended:
    def __init__(self, dead_letters_max: int) -> None:
        self.outcomes: LastOnes[bytes, Outcome] = LastOnes(OUTCOMES_MAX)
        self.done_keys: LastOnes[bytes, Outcome] = LastOnes(DONE_KEYS_MAX)
        """By the hash of the idempotency key; only of messages that came to a good end."""
        self.dead_letters: LastOnes[str, FailedMessage] = LastOnes(dead_letters_max)
