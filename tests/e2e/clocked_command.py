"""Run one `stagepost` command with a wall clock that begins where a test says: messages of a kept folder have not expired then.

python -m tests.e2e.clocked_command UNIX_S COMMAND …
"""

from __future__ import annotations

import importlib
import sys
import time


def set_clock(unix_s: float) -> None:
    """Let the wall clock of this process go on from `unix_s`; the monotonic clock stays the machine's."""
    began_s = time.monotonic()

    def now_s() -> float:
        return unix_s + time.monotonic() - began_s

    def now_ns() -> int:
        return int(now_s() * 1_000_000_000)

    time.time, time.time_ns = now_s, now_ns


if __name__ == "__main__":
    set_clock(float(sys.argv[1]))
    # Imported after the clock is set: no module keeps the real one.
    importlib.import_module("stagepost.cli.main").main(sys.argv[2:])
