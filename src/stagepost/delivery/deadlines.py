"""Times of a publisher: deadlines of entries, the wait before the next attempt, and the network's pace.

All deadlines are in one heap, with one item for each entry, set late and cleaned rarely.

A deadline that moves away leaves its item where it is: when the item comes up, the core looks at the entry and sets the
deadline again. So an answer that arrives in time, which is the usual case, costs nothing here.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from random import Random

from stagepost.delivery.entry import NEVER, ClockTimes, OutboxEntry
from stagepost.delivery.transport import SendPaced

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


class PaceGate:
    """The rule of a network by which nothing is sent for a while. `closed_by` is None while messages may be sent."""

    def __init__(self) -> None:
        self.closed_by: SendPaced | None = None
        self.opens_at = NEVER
        self.opens_ms = 0
        """Time of the next message, in Unix milliseconds, while the gate is closed."""

    def close(self, pace: SendPaced, now: ClockTimes) -> None:
        self.closed_by = pace
        self.opens_at = now.mono_s + pace.wait_s
        self.opens_ms = now.unix_ms + int(pace.wait_s * 1_000)

    def is_closed(self, now: ClockTimes) -> bool:
        if self.closed_by is not None and now.mono_s >= self.opens_at:
            self.closed_by, self.opens_at = None, NEVER
        return self.closed_by is not None


def delay_before(attempt: int, first_s: float, most_s: float) -> float:
    """Return the wait before attempt number `attempt` (1 is the first retry), without spread."""
    # 2 ** 64 times any sensible delay is beyond any limit, and larger powers would overflow.
    return min(first_s * 2.0 ** min(attempt - 1, 64), most_s)


def spread(delay_s: float, jitter: float, chance: Random) -> float:
    """Return `delay_s` times a uniform factor between 1 - jitter and 1 + jitter."""
    if not jitter:
        return delay_s
    return delay_s * chance.uniform(1 - jitter, 1 + jitter)
