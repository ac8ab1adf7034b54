"""Bodies that are here before anybody has announced them: kept for a while, within bounds for each member."""

from __future__ import annotations

from stagepost.remp.message import ExternalMessage

EARLY_BYTES_MAX = 1024 * 1024
"""For each member. A broadcast is ahead of its announcement by no more than a write to disk."""

EARLY_COUNT_MAX = 4_096
"""For each member, too: small bodies have a price beyond their bytes."""


class EarlyBodies:
    def __init__(self) -> None:
        self._by_id: dict[bytes, tuple[int, ExternalMessage, float]] = {}
        self._of_member: dict[int, dict[bytes, None]] = {}
        self._bytes: dict[int, int] = {}

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def since(self, message_id: bytes) -> float | None:
        """When it came."""
        found = self._by_id.get(message_id)
        return None if found is None else found[2]

    def put(self, member: int, message: ExternalMessage, now: float) -> None:
        """The oldest of the same member go for it: nobody can push out what others sent."""
        if message.message_id in self._by_id:
            return
        ids = self._of_member.setdefault(member, {})
        self._by_id[message.message_id] = member, message, now
        ids[message.message_id] = None
        self._bytes[member] = self._bytes.get(member, 0) + len(message.body)
        while len(ids) > 1 and (self._bytes[member] > EARLY_BYTES_MAX or len(ids) > EARLY_COUNT_MAX):
            self.take(next(iter(ids)))

    def take(self, message_id: bytes) -> ExternalMessage | None:
        found = self._by_id.pop(message_id, None)
        if found is None:
            return None
        member, message, _ = found
        del self._of_member[member][message_id]
        self._bytes[member] -= len(message.body)
        return message
