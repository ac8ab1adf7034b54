"""The wait before the next attempt: doubling up to a limit, with a random spread that keeps senders apart."""

from __future__ import annotations

from random import Random


def delay_before(attempt: int, first_s: float, most_s: float) -> float:
    """Return the wait before attempt number `attempt` (1 is the first retry), without spread."""
    # 2 ** 64 times any sensible delay is beyond any limit, and larger powers would overflow.
    return min(first_s * 2.0 ** min(attempt - 1, 64), most_s)


def spread(delay_s: float, jitter: float, chance: Random) -> float:
    """Return `delay_s` times a uniform factor between 1 - jitter and 1 + jitter."""
    if not jitter:
        return delay_s
    return delay_s * chance.uniform(1 - jitter, 1 + jitter)
