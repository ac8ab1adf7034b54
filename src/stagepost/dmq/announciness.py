"""Who tells us first: how many valid messages each peer was the first to announce, over the last hour."""

from __future__ import annotations

from collections import OrderedDict, deque

WINDOW_S = 3_600
SLOT_S = 60
PEERS_REMEMBERED_MAX = 1_024

_SLOTS = WINDOW_S // SLOT_S


class Announciness:
    """Counts in slots of a minute, so that memory is bounded by peers and not by messages.

    A credit is forgotten between 59 and 60 minutes after it was earned. Peers are known by name, and keep their
    credits when they reconnect. If there are too many of them, the one whose last credit is oldest is forgotten.
    """

    def __init__(self) -> None:
        self._slots: OrderedDict[str, deque[list[int]]] = OrderedDict()

    def credit(self, peer: str, now: float, count: int = 1) -> None:
        """So many messages that `peer` announced first have proved valid."""
        slots = self._slots.get(peer)
        if slots is None:
            slots = self._slots[peer] = deque(maxlen=_SLOTS)
        else:
            self._slots.move_to_end(peer)
        slot = int(now // SLOT_S)
        if slots and slots[-1][0] == slot:
            slots[-1][1] += count
        else:
            slots.append([slot, count])
        if len(self._slots) > PEERS_REMEMBERED_MAX:
            self._slots.popitem(last=False)

    def credits(self, peer: str, now: float) -> int:
        slots = self._slots.get(peer)
        if slots is None:
            return 0
        oldest = int(now // SLOT_S) - _SLOTS
        while slots and slots[0][0] <= oldest:
            slots.popleft()
        if not slots:
            del self._slots[peer]
        return sum(count for _, count in slots)

    @property
    def peers_remembered(self) -> int:
        return len(self._slots)
