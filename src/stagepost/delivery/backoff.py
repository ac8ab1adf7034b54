"""The wait before the next attempt: doubling up to a limit, with a random spread that keeps senders apart; and the wait that
the network's pace asks for, which holds all messages back alike.
"""

from __future__ import annotations

from random import Random

from stagepost.delivery.entry import NEVER, ClockTimes
from stagepost.delivery.transport import SendPaced


class PaceGate:
    """The rule of a network by which nothing is sent for a while. `closed_by` is None while messages may be sent."""

    def __init__(self) -> None:
        self.closed_by: SendPaced | None = None
        self.opens_at = NEVER
        self.opens_ms = 0
        """Time of the next message, in Unix milliseconds, while the gate is closed."""

    def close(self, pace: SendPaced, now: ClockTimes) -> None:
        self.closed_by = pace
        self.opens_at = now.mono_s + pace.wait_s
        self.opens_ms = now.unix_ms + int(pace.wait_s * 1_000)

    def is_closed(self, now: ClockTimes) -> bool:
        if self.closed_by is not None and now.mono_s >= self.opens_at:
            self.closed_by, self.opens_at = None, NEVER
        return self.closed_by is not None


def delay_before(attempt: int, first_s: float, most_s: float) -> float:
    """Return the wait before attempt number `attempt` (1 is the first retry), without spread."""
    # 2 ** 64 times any sensible delay is beyond any limit, and larger powers would overflow.
    return min(first_s * 2.0 ** min(attempt - 1, 64), most_s)


def spread(delay_s: float, jitter: float, chance: Random) -> float:
    """Return `delay_s` times a uniform factor between 1 - jitter and 1 + jitter."""
    if not jitter:
        return delay_s
    return delay_s * chance.uniform(1 - jitter, 1 + jitter)
