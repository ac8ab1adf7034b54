"""The load of the event loop, and the settings of the garbage collector for a process that holds many
objects.

The pacer asks `LoopLoad`, so that work waits for company while the loop has hardly any time left. The collector needs
other settings because nearly all objects that a node makes per message are freed by counting references: with
Python's defaults it would scan all held objects again and again, and the loop would stand still for longer
the more the process holds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

WINDOW_S = 0.1
SCHEDULER = Path("/proc/thread-self/schedstat")
"""Linux' account of a thread: nanoseconds on a processor, nanoseconds that it waited for one, and turns."""


def used_s() -> float:
    """Return the seconds in which this thread worked or waited for a processor.

    The wait belongs to the load: a loop that shares its processors with other programs has no more time to spare than one
    that works all the time. Where the system keeps no such account, return the seconds of work.
    """
    worked_s = time.thread_time()
    try:
        return worked_s + int(SCHEDULER.read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return worked_s


class LoopLoad:
    """Meter of the share of its time that the loop's thread uses. Ask it on the loop's own thread."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, worked_s: Callable[[], float] = used_s
    ) -> None:
        self._now = now_s
        self._worked = worked_s
        self._since_s = now_s()
        self._worked_s = worked_s()
        self._share = 0.0

    def share(self) -> float:
        """Return the share, from 0 to 1, over the last tenth of a second, or since the last call if that is
        longer ago."""
        now_s = self._now()
        passed_s = now_s - self._since_s
        if passed_s >= WINDOW_S:
            worked_s = self._worked()
            self._share = min((worked_s - self._worked_s) / passed_s, 1.0)
            self._since_s, self._worked_s = now_s, worked_s
        return self._share


YOUNG_OBJECTS = 20_000
"""New containers before the collector scans the youngest generation. A few hundred messages make Python's own 700."""


def look_less_often() -> None:
    """Exempt all present objects from garbage collection, and scan new ones less often.

    A long-lived process calls this once, when its parts are set up.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
