"""Which messages a program has been shown already, for as long as a node might show them again."""

from __future__ import annotations

from heapq import heappop, heappush

from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.validation import TTL_MAX_S
from stagepost.ground.identifiers import MessageId

IDS_REMEMBERED_MAX = 131_072
"""More than a node may hold: 3 100 pools with 30 messages each in half an hour are 93 000."""

GRACE_S = 60
"""A node whose clock is a little behind ours still shows a message that is over for us."""


class SeenMessages:
    """Bounded. At the limit the message that ends soonest is forgotten, and could then be shown once more."""

    def __init__(self, count_max: int = IDS_REMEMBERED_MAX) -> None:
        self._count_max = count_max
        self._keys: set[tuple[MessageLayout, MessageId]] = set()
        self._by_end: list[tuple[float, int, tuple[MessageLayout, MessageId]]] = []
        self._noted = 0

    def __len__(self) -> int:
        return len(self._keys)

    def note(self, message: DmqMessage, now: float) -> bool:
        """Whether this is the first time that the message is shown."""
        while self._by_end and self._by_end[0][0] < now:
            self._forget_soonest()
        if message.key in self._keys:
            return False
        if len(self._keys) >= self._count_max:
            self._forget_soonest()
        # A clock of ours that is fast must not make us forget at once what the node goes on showing.
        until = max(message.expires_at, now + TTL_MAX_S) + GRACE_S
        self._keys.add(message.key)
        self._noted += 1
        heappush(self._by_end, (until, self._noted, message.key))
        return True

    def _forget_soonest(self) -> None:
        self._keys.remove(heappop(self._by_end)[2])
