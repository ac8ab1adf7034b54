"""A single timer for a core that says by when it wants to be called.

Its owner sets it after every event. Most of the time the wanted time has not changed, and one comparison
finds that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from stagepost.ground.loop.clock import Clock


class Alarm:
    """Timer that calls `ring` at the earliest time that was set."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._rings_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float | None) -> None:
        """Ring at `at`, in seconds of the monotonic clock, unless an earlier time is set already. None and
        infinity set nothing."""
        if at is None or self._rings_at <= at:
            return
        self.cancel()
        self._rings_at = at
        delay_s = max(at - self._clock.mono_s(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._rings_at = inf

    def _on_timer(self) -> None:
        self._timer = None
        self._rings_at = inf
        self._ring()
