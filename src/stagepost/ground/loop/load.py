"""How much of its time the event loop works, lately: whoever can wait lets it be when it has hardly any left.

The garbage collector of a process that holds much and makes few cycles.

Nearly all that a node makes per message is freed by counting references. Left alone, the collector would look through
everything that is held again and again, and each time the loop would stand still for it: the longer, the more is held.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

WINDOW_S = 0.1


class LoopLoad:
    """Asked on the loop, for its thread alone."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, worked_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._now = now_s
        self._worked = worked_s
        self._since_s = now_s()
        self._worked_s = worked_s()
        self._share = 0.0

    def share(self) -> float:
        """From 0 to 1, over the last tenth of a second or what has passed since it was asked before, if that is longer."""
        now_s = self._now()
        passed_s = now_s - self._since_s
        if passed_s >= WINDOW_S:
            worked_s = self._worked()
            self._share = min((worked_s - self._worked_s) / passed_s, 1.0)
            self._since_s, self._worked_s = now_s, worked_s
        return self._share


YOUNG_OBJECTS = 20_000
"""New containers before the youngest are looked through. Python's own 700 are made by a few hundred messages."""


def look_less_often() -> None:
    """For a long-lived process, once its parts stand: they are not looked at again, and the rest is seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
