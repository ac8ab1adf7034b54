"""Time on a drawing: from left to right, to scale, except where nothing happened for long.

Times are never altered: a stretch that is folded says how long it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

FOLD_SHARE = 0.5
"""A stretch without any event that would take more than this part of the drawing is folded."""
FOLD_MS_MIN = 1_000
FOLD_WIDTH = 56.0
TICKS_MAX = 10


class Fold(NamedTuple):
    """A stretch that is drawn narrower than it is."""

    from_ms: int
    to_ms: int
    left: float
    right: float


class _Knot(NamedTuple):
    at_ms: int
    x: float


class TimeScale:
    """`x` of a time, between 0 and `width`."""

    def __init__(self, times_ms: Sequence[int], width: float) -> None:
        ordered = sorted(set(times_ms)) or [0]
        self.from_ms, self.to_ms = ordered[0], ordered[-1]
        self.width = width
        gaps = _to_fold(ordered)
        span_ms = max(1, self.to_ms - self.from_ms - sum(to_ms - from_ms for from_ms, to_ms in gaps))
        self._per_ms = (width - FOLD_WIDTH * len(gaps)) / span_ms
        self.folds: list[Fold] = []
        knots = [_Knot(self.from_ms, 0.0)]
        for from_ms, to_ms in gaps:
            left = knots[-1].x + (from_ms - knots[-1].at_ms) * self._per_ms
            self.folds.append(Fold(from_ms, to_ms, left, left + FOLD_WIDTH))
            knots += [_Knot(from_ms, left), _Knot(to_ms, left + FOLD_WIDTH)]
        self._knots = knots

    def x(self, at_ms: float) -> float:
        for fold in self.folds:
            if fold.from_ms < at_ms < fold.to_ms:
                share = (at_ms - fold.from_ms) / (fold.to_ms - fold.from_ms)
                return fold.left + share * FOLD_WIDTH
        place = bisect_right(self._knots, at_ms, key=lambda knot: knot.at_ms) - 1
        knot = self._knots[max(place, 0)]
        return knot.x + (at_ms - knot.at_ms) * self._per_ms

    def ticks(self, zero_ms: int) -> list[int]:
        """Round numbers of milliseconds after `zero_ms`, none inside of a fold."""
        step_ms = round_step(self.width / max(1, TICKS_MAX) / self._per_ms)
        first = -((zero_ms - self.from_ms) // step_ms) * step_ms
        found = range(first, self.to_ms - zero_ms + 1, step_ms)
        return [
            after_ms
            for after_ms in found
            if not any(fold.from_ms < zero_ms + after_ms < fold.to_ms for fold in self.folds)
        ]


def _to_fold(ordered: Sequence[int]) -> list[tuple[int, int]]:
    """Longest first: each fold makes the rest of the drawing larger, and with it the share of the next gap."""
    gaps = sorted(
        pairwise(ordered),
        key=lambda gap: gap[0] - gap[1],
    )
    left_ms = ordered[-1] - ordered[0]
    folded: list[tuple[int, int]] = []
    for from_ms, to_ms in gaps:
        length_ms = to_ms - from_ms
        if length_ms < FOLD_MS_MIN or length_ms <= FOLD_SHARE * left_ms or length_ms == left_ms:
            break
        folded.append((from_ms, to_ms))
        left_ms -= length_ms
    return sorted(folded)


def round_step(least: float) -> int:
    """1, 2 or 5 times a power of ten: the smallest that is not less."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least:
                return factor * power
        power *= 10
