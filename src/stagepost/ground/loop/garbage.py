"""The garbage collector of a process that holds much and makes few cycles.

Nearly all that a node makes per message is freed by counting references. Left alone, the collector would look through
everything that is held again and again, and each time the loop would stand still for it: the longer, the more is held.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000
"""New containers before the youngest are looked through. Python's own 700 are made by a few hundred messages."""


def look_less_often() -> None:
    """For a long-lived process, once its parts stand: they are not looked at again, and the rest is seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
