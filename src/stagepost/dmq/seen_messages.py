"""The messages that a program has received already, remembered for as long as a node might send them again."""

from __future__ import annotations

from heapq import heappop, heappush

from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.validation import TTL_MAX_S
from stagepost.ground.identifiers import MessageId

IDS_REMEMBERED_MAX = 131_072
"""Ids, more than a node may hold: 3 100 pools with 30 messages each in half an hour are 93 000."""

GRACE_S = 60
"""Seconds: a node whose clock is a little behind ours still sends a message that has expired for us."""


class SeenMessages:
    """Bounded set of messages. At the limit it forgets the message that expires soonest, which could then
    appear once more."""

    def __init__(self, count_max: int = IDS_REMEMBERED_MAX) -> None:
        self._count_max = count_max
        self._keys: set[tuple[MessageLayout, MessageId]] = set()
        self._by_end: list[tuple[float, int, tuple[MessageLayout, MessageId]]] = []
        self._noted = 0

    def __len__(self) -> int:
        return len(self._keys)

    def note(self, message: DmqMessage, now: float) -> bool:
        """Record the message; return whether it is new."""
        while self._by_end and self._by_end[0][0] < now:
            self._forget_soonest()
        if message.key in self._keys:
            return False
        if len(self._keys) >= self._count_max:
            self._forget_soonest()
        # If our clock is fast, we must not forget at once a message that the node goes on sending.
        until = max(message.expires_at, now + TTL_MAX_S) + GRACE_S
        self._keys.add(message.key)
        self._noted += 1
        heappush(self._by_end, (until, self._noted, message.key))
        return True

    def _forget_soonest(self) -> None:
        self._keys.remove(heappop(self._by_end)[2])
