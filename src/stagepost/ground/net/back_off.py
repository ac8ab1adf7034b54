"""When to try a peer again, and whom to keep out: soon after a failure, late after a broken rule.

Pure: time comes in as `now` and chance as a seeded `Random`. What a peer did is remembered after it has gone.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from stagepost.errors import ProtocolTimeout, RemoteProtocolError, StagepostError

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0
PENALTY_FIRST_S = 60.0
PENALTY_MAX_S = 3_600.0
STEADY_AFTER_S = 60.0
RETRY_JITTER = 0.2
"""Peers that lost the same node must not all come back in the same instant."""

BANNED_MAX = 10_000


@dataclass(kw_only=True)
class BackOff:
    """What became of the connections to one peer, and before when there shall be no other."""

    established_at: float | None = None
    ended_at: float | None = None
    not_before: float = 0.0
    failures: int = 0
    penalties: int = 0
    last_violation: str | None = None
    is_penalised: bool = False

    def ended(self, now: float, random: Random, violation: str | None = None) -> None:
        """`violation` says which rule it broke; without one it only could not be reached or went away."""
        if self.established_at is not None and now - self.established_at >= STEADY_AFTER_S:
            # It was there for a while, so earlier failures say nothing any more. One that leaves at once gains nothing.
            self.failures = 0
        self.ended_at = now
        self.is_penalised = violation is not None
        if violation is None:
            self.failures += 1
            delay = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(self.failures - 1, 16))
        else:
            self.penalties += 1
            self.last_violation = violation
            delay = penalty_s(self.penalties)
        self.not_before = now + delay * (1 + RETRY_JITTER * random.random())

    def is_there(self, now: float) -> None:
        """It was heard of: failures to reach it say nothing any more. What it is left alone for stands."""
        if not self.is_penalised and self.ended_at is not None:
            self.failures = 0
            self.not_before = min(self.not_before, max(now, self.ended_at + RETRY_FIRST_S))


def penalty_s(times: int) -> float:
    """For how long a peer is left alone that has broken a rule so many times."""
    return min(PENALTY_MAX_S, PENALTY_FIRST_S * 2.0 ** min(times - 1, 16))


def violation_of(error: StagepostError | None) -> str | None:
    """The code of a broken rule; None if the peer merely went away.

    Silence is no misdeed: a network that lost a peer for a while looks the same, and must not keep it away for longer.
    """
    if isinstance(error, RemoteProtocolError) and not isinstance(error, ProtocolTimeout):
        return str(error.code)
    return None


@dataclass
class _Penalty:
    until: float
    times: int


K = TypeVar("K", bound=Hashable)


@dataclass
class Penalties(Generic[K]):
    """Those who came to us and broke a rule, by what they can be known again: a host, or a key."""

    _penalties: dict[K, _Penalty] = field(default_factory=dict)

    def penalise(self, who: K, now: float) -> None:
        penalty = self._penalties.get(who)
        times = 1 if penalty is None else penalty.times + 1
        if penalty is None and len(self._penalties) >= BANNED_MAX:
            oldest = min(self._penalties, key=lambda known: self._penalties[known].until)
            del self._penalties[oldest]
        self._penalties[who] = _Penalty(now + penalty_s(times), times)

    def refused_until(self, who: K, now: float) -> float | None:
        """Until when its connections are not taken; None if they are."""
        penalty = self._penalties.get(who)
        return penalty.until if penalty is not None and penalty.until > now else None
