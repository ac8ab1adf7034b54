"""Pacer of an event loop: how long work waits so that more of the same kind comes and is done together.

Announcing, writing and proposing cost nearly the same however much one announcement, write or block holds. While the loop
has time to spare, each of them is done at once, because waiting would only delay messages. When the loop has hardly any
time left, each waits for the longest pause that its owner allows, and the cost of a message falls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary, ref

from stagepost.ground.loop.load import LoopLoad
from stagepost.ground.loop.virtual_time import VirtualTimeLoop

CALM_SHARE, BUSY_SHARE = 0.8, 1.0
"""Shares of the loop's time. Up to the first one the pressure is 0, from the second one on it is 1."""


class Pacer:
    """`share` returns the share of its time, from 0 to 1, in which the loop works or waits for a processor."""

    def __init__(self, share: Callable[[], float]) -> None:
        self._share = share

    def pressure(self) -> float:
        """Return 0.0 while the loop has time to spare, up to 1.0 when it has hardly any."""
        return min(max(self._share() - CALM_SHARE, 0.0) / (BUSY_SHARE - CALM_SHARE), 1.0)

    def pause_s(self, calm_s: float, busy_s: float) -> float:
        """Return the seconds to wait for company: `calm_s` without pressure, `busy_s` under full pressure."""
        return calm_s + (busy_s - calm_s) * self.pressure()


_PACERS: WeakKeyDictionary[asyncio.AbstractEventLoop, Pacer] = WeakKeyDictionary()


def pacer() -> Pacer:
    """Return the pacer of the running loop: all parts of a process share it.

    Turns of a virtual loop take no time, so its load is a number that the run sets: the same seed paces alike.
    """
    loop = asyncio.get_running_loop()
    if loop not in _PACERS:
        _PACERS[loop] = Pacer(_virtual_share(loop) if isinstance(loop, VirtualTimeLoop) else LoopLoad().share)
    return _PACERS[loop]


def _virtual_share(loop: VirtualTimeLoop) -> Callable[[], float]:
    # A strong reference would keep the loop, which is the key of the pacer, for ever.
    weak = ref(loop)

    def share() -> float:
        there = weak()
        return 0.0 if there is None else there.load_share

    return share
