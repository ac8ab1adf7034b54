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


LEAD_MAX_S = 300.0
"""Seconds by which the wall clock may go ahead at once and still be believed; the floor is never lifted further at once."""
BELIEVED_AFTER_S = 900.0
"""Seconds after which a wall clock that went further ahead is believed all the same: a machine that stood still is right."""


class SureTime:
    """Time for what cannot be taken back, such as to forget: it follows a wall clock that goes far ahead at once by `LEAD_MAX_S`
    only, until `BELIEVED_AFTER_S` are over. A clock that a process starts with is believed.
    """

    def __init__(self) -> None:
        self._offset_s: float | None = None
        self._leads_since: float | None = None

    def lead_s(self, unix_s: float, mono_s: float) -> float:
        """Return the seconds by which the wall clock went ahead at once, as long as that is not believed; 0 in normal
        operation."""
        offset_s = unix_s - mono_s
        if self._offset_s is not None and (lead_s := offset_s - self._offset_s) > LEAD_MAX_S:
            if self._leads_since is None:
                self._leads_since = mono_s
            if mono_s - self._leads_since < BELIEVED_AFTER_S:
                return lead_s
        self._offset_s, self._leads_since = offset_s, None
        return 0.0

    def at(self, unix_s: float, mono_s: float) -> float:
        return unix_s - max(0.0, self.lead_s(unix_s, mono_s) - LEAD_MAX_S)


class FlooredClock:
    """Clock that never shows a time before its floor: if the clock beneath is set back, this one stands still
    until that has caught up.

    Messages that expired must stay expired, or the node would accept a replay. Standing still ends by itself. A wall clock
    that suddenly goes far ahead may be wrong, and a floor there would refuse every message until then. So what is written
    or forgotten for good goes by `sure_s`.
    """

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._floor_unix_s = 0.0
        self._sure = SureTime()
        self._sure.at(base.unix_s(), base.mono_s())

    def unix_s(self) -> float:
        return max(self._base.unix_s(), self._floor_unix_s)

    def mono_s(self) -> float:
        return self._base.mono_s()

    def raise_floor(self, unix_s: float) -> None:
        """Raise the floor to `unix_s`; a lower value than the present floor changes nothing."""
        self._floor_unix_s = max(self._floor_unix_s, unix_s)

    @property
    def lead_s(self) -> float:
        """Seconds by which the clock beneath went ahead at once, as long as that is not believed; 0 in normal operation."""
        return self._sure.lead_s(self._base.unix_s(), self._base.mono_s())

    @property
    def sure_s(self) -> float:
        """Return the time for what cannot be taken back: never before the floor, and not far ahead at once."""
        return max(self._sure.at(self._base.unix_s(), self._base.mono_s()), self._floor_unix_s)

    @property
    def behind_s(self) -> float:
        """Seconds by which the clock beneath lies behind the floor; 0 in normal operation."""
        return max(0.0, self._floor_unix_s - self._base.unix_s())
