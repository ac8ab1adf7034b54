"""Ratios to one signature check by libsodium, measured beside it in the same process.

Absolute times differ from machine to machine and from minute to minute; how many times a signature check something
costs does not. Each round measures the unit, the step and the unit again, in processor time, and gives one ratio;
the median of the rounds is the figure, so that a disturbed round does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import process_time

ROUND_S = 0.004
ROUNDS = 61


@dataclass(frozen=True)
class Step:
    """One thing to measure: `repeat(n)` does it n times. Without a limit it is only printed."""

    name: str
    repeat: Callable[[int], object]
    limit: float | None = None


@dataclass(frozen=True)
class Figure:
    step: str
    ratio: float
    limit: float | None
    unit_us: float

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.ratio > self.limit


def measure(step: Step, unit: Callable[[int], object], rounds: int = ROUNDS) -> Figure:
    step_count, unit_count = _count(step.repeat), _count(unit)
    ratios, units = [], []
    for _ in range(rounds):
        before = _seconds(unit, unit_count)
        taken = _seconds(step.repeat, step_count)
        one_unit = (before + _seconds(unit, unit_count)) / 2
        ratios.append(taken / one_unit)
        units.append(one_unit)
    return Figure(step.name, median(ratios), step.limit, median(units) * 1e6)


def _seconds(repeat: Callable[[int], object], count: int) -> float:
    began = process_time()
    repeat(count)
    return (process_time() - began) / count


def _count(repeat: Callable[[int], object]) -> int:
    """How often it fits into a round.

    In processor time as well: by the clock on the wall, a moment in which something else runs looks like one slow
    call, and a round of a single call measures little but the measuring.
    """
    count = 1
    while True:
        taken = _seconds(repeat, count) * count
        if taken >= ROUND_S:
            return count
        count = max(count + 1, min(count * 10, int(count * ROUND_S / max(taken, 1e-9)) + 1))
