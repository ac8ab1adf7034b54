"""One timer for a core that says when it wants to be called at the latest.

It is set after everything that happens, so most of the time nothing has changed, and that is seen by one comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from stagepost.ground.loop.clock import Clock


class Alarm:
    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._rings_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float | None) -> None:
        """On the clock that only moves forward; None and infinity: not at all. An earlier time that was asked for stays."""
        if at is None or self._rings_at <= at:
            return
        self.cancel()
        self._rings_at = at
        delay_s = max(at - self._clock.mono_s(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._rung)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._rings_at = inf

    def _rung(self) -> None:
        self._timer = None
        self._rings_at = inf
        self._ring()
