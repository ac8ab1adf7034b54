"""How much trouble a peer has been: high is bad, and time heals."""

from __future__ import annotations

REJECTED_POINTS = 1.0
ACCEPTED_POINTS = -3.0
DRAIN_PER_S = 0.1
SCORE_MIN = 0.0
SCORE_MAX = 900.0
CLAIM_DELAY_MAX_S = 0.25
"""How much longer than others the worst of all peers waits before it may download a message."""


class PeerScore:
    """One peer's. Times are seconds of a clock that never goes back."""

    __slots__ = ("_points", "_since")

    def __init__(self, now: float) -> None:
        self._points = SCORE_MIN
        self._since = now

    def points(self, now: float) -> float:
        if self._points == SCORE_MIN:
            return SCORE_MIN
        return max(SCORE_MIN, self._points - DRAIN_PER_S * (now - self._since))

    def rejected(self, now: float) -> None:
        """A message of this peer was refused, or asked for and not given."""
        self._add(REJECTED_POINTS, now)

    def accepted(self, now: float, count: int = 1) -> None:
        self._add(ACCEPTED_POINTS * count, now)

    def claim_delay_s(self, now: float) -> float:
        if self._points == SCORE_MIN:
            return 0.0
        return CLAIM_DELAY_MAX_S * self.points(now) / SCORE_MAX

    def is_at_ceiling(self, now: float) -> bool:
        return self.points(now) >= SCORE_MAX

    def _add(self, points: float, now: float) -> None:
        self._points = min(SCORE_MAX, max(SCORE_MIN, self.points(now) + points))
        self._since = now
