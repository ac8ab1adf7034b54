"""The time of day and the time that only moves forward, as arguments: nobody else in the node asks the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Clock(Protocol):
    def unix_s(self) -> float:
        """Seconds since 1970 by the wall clock; may be set back."""
        ...

    def mono_s(self) -> float:
        """Seconds on the event loop's clock; never goes back, means nothing outside of this process."""
        ...


_now: Callable[[], float] = time.monotonic


def loop_time() -> float:
    """The event loop's time, virtual or real. Nobody is asked which loop runs: that costs more than the time itself, and this
    is asked for hundreds of times for one message."""
    return _now()


@contextmanager
def telling_time(now: Callable[[], float]) -> Iterator[None]:
    """For as long as a loop runs whose time is not the machine's."""
    global _now  # a process has one loop at a time that counts
    before, _now = _now, now
    try:
        yield
    finally:
        _now = before


class SystemClock:
    """The machine's own clocks."""

    def unix_s(self) -> float:
        return time.time()

    def mono_s(self) -> float:
        return loop_time()


class LoopClock:
    """A wall clock that follows the event loop: in virtual time a day passes at once. It can be set, like a real one."""

    def __init__(self, start_unix_s: float) -> None:
        self._offset_s = start_unix_s - loop_time()

    def unix_s(self) -> float:
        return self._offset_s + loop_time()

    def mono_s(self) -> float:
        return loop_time()

    def step(self, by_s: float) -> None:
        """Set the wall clock forward, or back with a negative number. The monotonic clock does not notice."""
        self._offset_s += by_s


class FlooredClock:
    """A clock that never shows a time before its floor: one that was set back stands still until it caught up.

    Messages that expired must stay expired, or a replay would be accepted. Standing still heals by itself.
    """

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._floor_unix_s = 0.0

    def unix_s(self) -> float:
        return max(self._base.unix_s(), self._floor_unix_s)

    def mono_s(self) -> float:
        return self._base.mono_s()

    def raise_floor(self, unix_s: float) -> None:
        """A lower floor than the present one changes nothing."""
        self._floor_unix_s = max(self._floor_unix_s, unix_s)

    @property
    def behind_s(self) -> float:
        """How far the clock underneath lies behind the floor; 0 when all is well."""
        return max(0.0, self._floor_unix_s - self._base.unix_s())
