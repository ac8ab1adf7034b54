"""An event loop whose clock jumps: when nothing is ready to run, it is at once the time of the next timer.

Programs with long time-outs run in no time and always in the same order. Sockets work as far as both ends
live in this process; threads and other processes have no part in virtual time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now_s

    def jump(self, by_s: float) -> None:
        self._now_s += by_s


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on a loop of its own whose clock starts at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


class _JumpingSelector(selectors.DefaultSelector):
    """Where the real selector would sleep until the next timer, move the clock there instead."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is not None:
            self._loop.jump(timeout)
            return events
        # No timer at all. The loop's own wake-up socket is always registered; if it is the only one, then
        # everybody waits for somebody and nothing can ever happen.
        if len(self.get_map()) <= 1:
            raise RuntimeError("virtual time stands still: every task waits and no timer is set")
        return super().select(None)
