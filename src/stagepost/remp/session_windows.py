"""Windows of time and an index of them: values that hold from one moment to another, found by bisection.

A validator's key belongs to one session after another, tens of thousands in a year. A look-up costs the logarithm of their
number and the windows that it finds, however long the history is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

BEGINNING_MS = -(1 << 63)
"""Milliseconds; before every time that a receipt can have."""

END_MS = 1 << 63
"""Milliseconds; after every time that a receipt can have."""


class Window(NamedTuple):
    """The time [from_ms, to_ms), in Unix ms. `BEGINNING_MS` and `END_MS` stand for a bound that is not there."""

    from_ms: int = BEGINNING_MS
    to_ms: int = END_MS

    @classmethod
    def between(cls, from_ms: int | None, to_ms: int | None) -> Window:
        """Return the window between two bounds, of which None is open."""
        return cls(BEGINNING_MS if from_ms is None else from_ms, END_MS if to_ms is None else to_ms)

    def meets(self, first_ms: int, last_ms: int) -> bool:
        """Return whether the window has a moment in common with [first_ms, last_ms]."""
        return self.from_ms <= last_ms and first_ms < self.to_ms


ALWAYS = Window()


class WindowIndex(Generic[T]):
    """Values with their windows, sorted by the beginning. A value that is entered last and begins last costs O(1).

    `_furthest` holds, for each place, the place up to it whose window ends last: a look-up walks back only while a window
    there can still meet the time. Windows without an end stand in a list of their own, or none would ever stop that walk.
    """

    def __init__(self, entries: Iterable[tuple[Window, T]] = ()) -> None:
        found = sorted(entries, key=lambda entry: entry[0])
        self._ended = [entry for entry in found if entry[0].to_ms < END_MS]
        self._endless = [entry for entry in found if entry[0].to_ms >= END_MS]
        self._furthest: list[int] = []
        self._follow(0)

    def __len__(self) -> int:
        return len(self._ended) + len(self._endless)

    def enter(self, window: Window, value: T) -> None:
        if window.to_ms >= END_MS:
            self._endless.insert(bisect_right(self._endless, window, key=_window), (window, value))
        else:
            place = bisect_right(self._ended, window, key=_window)
            self._ended.insert(place, (window, value))
            self._follow(place)

    def remove(self, window: Window, value: T) -> None:
        """Remove a value that was entered with this window; `KeyError` if it was not."""
        entries = self._endless if window.to_ms >= END_MS else self._ended
        first, last = bisect_left(entries, window, key=_window), bisect_right(entries, window, key=_window)
        for place in range(first, last):
            if entries[place][1] == value:
                del entries[place]
                if entries is self._ended:
                    self._follow(place)
                return
        raise KeyError(window)

    def at(self, time_ms: int) -> T | None:
        """Return one of the values whose windows hold the moment; None if there is none."""
        if self._endless and self._endless[0][0].from_ms <= time_ms:
            return self._endless[0][1]
        place = bisect_right(self._ended, time_ms, key=_begin)
        if place == 0:
            return None
        window, value = self._ended[self._furthest[place - 1]]
        return value if time_ms < window.to_ms else None

    def meeting(self, first_ms: int, last_ms: int) -> Iterator[T]:
        """Yield the values whose windows have a moment in common with [first_ms, last_ms]."""
        yield from (value for _, value in self._endless[: bisect_right(self._endless, last_ms, key=_begin)])
        place = bisect_right(self._ended, last_ms, key=_begin)
        while place and self._ended[self._furthest[place - 1]][0].to_ms > first_ms:
            place -= 1
            window, value = self._ended[place]
            if window.to_ms > first_ms:
                yield value

    def _follow(self, place: int) -> None:
        """Bring `_furthest` up to date from a place on."""
        del self._furthest[place:]
        furthest = self._furthest[-1] if self._furthest else 0
        for following in range(place, len(self._ended)):
            if self._ended[following][0].to_ms >= self._ended[furthest][0].to_ms:
                furthest = following
            self._furthest.append(furthest)


def _window(entry: tuple[Window, object]) -> Window:
    return entry[0]


def _begin(entry: tuple[Window, object]) -> int:
    return entry[0].from_ms


def joined_windows(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Return the same moments as windows in order, of which no two touch."""
    found: list[Window] = []
    for window in sorted(windows):
        if window.from_ms >= window.to_ms:
            continue
        if found and window.from_ms <= found[-1].to_ms:
            found[-1] = Window(found[-1].from_ms, max(found[-1].to_ms, window.to_ms))
        else:
            found.append(window)
    return tuple(found)


def changed_moments(before: Window, after: Window) -> tuple[Window, ...]:
    """Return the moments that one of two windows holds and the other does not."""
    bounds = sorted((*before, *after))
    parts = (Window(first, last) for first, last in pairwise(bounds))
    return joined_windows(
        part
        for part in parts
        if part.from_ms < part.to_ms
        and before.meets(part.from_ms, part.from_ms) != after.meets(part.from_ms, part.from_ms)
    )
