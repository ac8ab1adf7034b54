"""Deadlines of entries: one heap for all, with one item for each entry, set late and cleaned rarely.

A deadline that moves away leaves its item where it is: when the item comes up, the core looks at the entry and sets the
deadline again. So an answer that arrives in time, which is the usual case, costs nothing here.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from stagepost.delivery.entry import NEVER, OutboxEntry

STALE_MAX = 1_024
"""Stale items, at most, in the heap beside two for each entry; then the heap is cleaned."""


class Deadlines:
    """The next time of every entry in `entries`, the table that tells which entries are still there."""

    def __init__(self, entries: dict[int, OutboxEntry]) -> None:
        self._heap: list[tuple[float, int]] = []
        self._entries = entries
        self.next_at = NEVER
        """A time not later than the next deadline; `NEVER` if there is none."""

    def set(self, entry: OutboxEntry) -> None:
        """Set the deadline of an entry; to be called whenever one of its times may have come nearer."""
        wanted = entry.wait_until
        if entry.budget_at < wanted:
            wanted = entry.budget_at
        if entry.expires_at < wanted:
            wanted = entry.expires_at
        if wanted < entry.timer_at:
            self.look_at(entry, wanted)

    def look_at(self, entry: OutboxEntry, at: float) -> None:
        """Look at the entry not later than `at`, whatever happens to its times until then."""
        entry.timer_at = at
        heappush(self._heap, (at, entry.sequence))
        if at < self.next_at:
            self.next_at = at
        if len(self._heap) > STALE_MAX + 2 * len(self._entries):
            self._clean()

    def due(self, now_s: float) -> list[OutboxEntry]:
        """Return the entries whose item has come up, in order of time; the caller acts and sets them again."""
        found: list[OutboxEntry] = []
        while self._heap and self._heap[0][0] <= now_s:
            at, sequence = heappop(self._heap)
            entry = self._entries.get(sequence)
            if entry is not None and entry.timer_at == at:
                entry.timer_at = NEVER
                found.append(entry)
        self._first_has_changed()
        return found

    def _clean(self) -> None:
        self._heap = [
            (at, sequence)
            for at, sequence in self._heap
            if (entry := self._entries.get(sequence)) is not None and entry.timer_at == at
        ]
        heapify(self._heap)
        self._first_has_changed()

    def _first_has_changed(self) -> None:
        self.next_at = self._heap[0][0] if self._heap else NEVER
