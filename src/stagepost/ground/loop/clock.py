"""Clocks as arguments: the time of day, and the monotonic time. No other part of a node asks the machine for
the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Clock(Protocol):
    def unix_s(self) -> float:
        """Return seconds since 1970 by the wall clock, which may be set back."""
        ...

    def mono_s(self) -> float:
        """Return seconds on the event loop's clock, which never goes back and means nothing outside of this
        process."""
        ...


_now: Callable[[], float] = time.monotonic


def loop_time() -> float:
    """Return the event loop's time, virtual or real.

    A module variable holds the clock: to look up the running loop costs more than to read the time, and one
    message asks for the time hundreds of times.
    """
    return _now()


@contextmanager
def loop_clock(now: Callable[[], float]) -> Iterator[None]:
    """Make `now` the loop's clock while the context lasts, for a loop whose time is not the machine's."""
    global _now  # a process has one loop at a time that counts
    before, _now = _now, now
    try:
        yield
    finally:
        _now = before


class SystemClock:
    """Clocks of this machine."""

    def unix_s(self) -> float:
        return time.time()

    def mono_s(self) -> float:
        return loop_time()


class LoopClock:
    """Wall clock that follows the event loop: in virtual time a day passes at once. It can be set, like a
    real one."""

    def __init__(self, start_unix_s: float) -> None:
        self._offset_s = start_unix_s - loop_time()

    def unix_s(self) -> float:
        return self._offset_s + loop_time()

    def mono_s(self) -> float:
        return loop_time()

    def step(self, by_s: float) -> None:
        """Set the wall clock forward by `by_s` seconds, or back with a negative number. The monotonic clock
        does not change."""
        self._offset_s += by_s


class FlooredClock:
    """Clock that never shows a time before its floor: if the clock beneath is set back, this one stands still
    until that has caught up.

    Messages that expired must stay expired, or the node would accept a replay. Standing still ends by itself.
    """

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._floor_unix_s = 0.0

    def unix_s(self) -> float:
        return max(self._base.unix_s(), self._floor_unix_s)

    def mono_s(self) -> float:
        return self._base.mono_s()

    def raise_floor(self, unix_s: float) -> None:
        """Raise the floor to `unix_s`; a lower value than the present floor changes nothing."""
        self._floor_unix_s = max(self._floor_unix_s, unix_s)

    @property
    def behind_s(self) -> float:
        """Seconds by which the clock beneath lies behind the floor; 0 in normal operation."""
        return max(0.0, self._floor_unix_s - self._base.unix_s())
