"""Waiting for what another thread or process does, with an end."""

from __future__ import annotations

import threading
from collections.abc import Callable

WITHIN_S = 300.0
LOOK_EVERY_S = 0.05


def wait_until(holds: Callable[[], bool]) -> None:
    """`holds` may itself say that it never will."""
    pause = threading.Event()
    for _ in range(int(WITHIN_S / LOOK_EVERY_S)):
        if holds():
            return
        pause.wait(LOOK_EVERY_S)
    raise AssertionError(f"it did not come within {WITHIN_S:g} s")
