"""A bounded memory of earlier results that many threads share without a lock."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """Dictionary of at most `entries_max` entries that drops those not used lately.

    Two generations stand in for an order of use: when the young generation is full, it becomes the old one,
    and an entry that `get` finds in the old one moves back to the young one. Each step is a single dictionary
    operation, so threads may share a cache.
    """

    __slots__ = ("_generation_max", "_old", "_young")

    def __init__(self, entries_max: int) -> None:
        if entries_max < 2:
            raise ValueError(f"a cache holds at least 2 entries, asked for {entries_max}")
        self._generation_max = entries_max // 2
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def __len__(self) -> int:
        """Return the number of entries; an entry that moved back to the young generation counts twice until
        the old one is dropped."""
        return len(self._young) + len(self._old)

    def get(self, key: Key) -> Value | None:
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        if len(self._young) >= self._generation_max:
            self._old = self._young
            self._young = {}
        self._young[key] = value
