"""When something has to happen to an entry: one heap for all, with one item for each entry, set late and cleaned rarely.

A deadline that moves away leaves its item where it is: when that comes up, the entry is looked at and set again. So
an answer that arrives in time, which is the usual case, costs nothing here.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from stagepost.delivery.entry import NEVER, Entry

STALE_MAX = 1_024


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._entries: dict[int, Entry] = {}
        self.next_at = NEVER
        """Not later than the next deadline; `NEVER` if there is none."""

    def watch(self, entries: dict[int, Entry]) -> None:
        """The table that tells which entries are still there."""
        self._entries = entries

    def set(self, entry: Entry) -> None:
        """To be called whenever one of the entry's times may have come nearer."""
        wanted = entry.wait_until
        if entry.budget_at < wanted:
            wanted = entry.budget_at
        if entry.expires_at < wanted:
            wanted = entry.expires_at
        if wanted < entry.timer_at:
            self.look_at(entry, wanted)

    def look_at(self, entry: Entry, at: float) -> None:
        """Not later than that, whatever happens to its times until then."""
        entry.timer_at = at
        heappush(self._heap, (at, entry.sequence))
        if at < self.next_at:
            self.next_at = at
        if len(self._heap) > STALE_MAX + 2 * len(self._entries):
            self._clean()

    def due(self, now_s: float) -> list[Entry]:
        """Entries whose item has come up, in order of time; the caller looks what is due and sets them again."""
        found: list[Entry] = []
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
