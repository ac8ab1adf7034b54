"""Back-off: when to dial a peer again, and whom to refuse: soon after a failure, late after a broken rule.

Pure: time comes in as `now` and chance as a seeded `Random`. The record of a peer outlives its connections.
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
"""Share of the delay, added at random: peers that lost the same node must not all come back in the same instant."""

BANNED_MAX = 10_000


@dataclass(kw_only=True)
class BackOff:
    """History of the connections to one peer, and the time before which no other may begin."""

    established_at: float | None = None
    ended_at: float | None = None
    not_before: float = 0.0
    failures: int = 0
    penalties: int = 0
    last_violation: str | None = None
    is_penalised: bool = False

    def ended(self, now: float, chance: Random, violation: str | None = None) -> None:
        """Record that the connection ended.

        `violation` names the rule that the peer broke; None means that it could not be reached or went away.
        """
        if self.established_at is not None and now - self.established_at >= STEADY_AFTER_S:
            # A connection that lasted cancels earlier failures. A peer that leaves at once gains nothing.
            self.failures = 0
        self.ended_at = now
        self.is_penalised = violation is not None
        if violation is None:
            self.failures += 1
            delay = doubled_s(RETRY_FIRST_S, RETRY_MAX_S, self.failures)
        else:
            self.penalties += 1
            self.last_violation = violation
            delay = penalty_s(self.penalties)
        self.not_before = now + delay * (1 + RETRY_JITTER * chance.random())

    def is_there(self, now: float) -> None:
        """Forget failures to reach the peer, since there is news of it. A penalty for a broken rule stays."""
        if not self.is_penalised and self.ended_at is not None:
            self.failures = 0
            self.not_before = min(self.not_before, max(now, self.ended_at + RETRY_FIRST_S))


def doubled_s(first_s: float, most_s: float, times: int) -> float:
    """Return the pause after the failure number `times` (1 is the first): doubling from `first_s` up to `most_s`."""
    # Larger powers are beyond any limit here, and would overflow in the end.
    return min(most_s, first_s * 2.0 ** min(times - 1, 16))


def penalty_s(times: int) -> float:
    """Return the seconds for which to leave a peer alone that has broken a rule `times` times."""
    return doubled_s(PENALTY_FIRST_S, PENALTY_MAX_S, times)


def violation_of(error: StagepostError | None) -> str | None:
    """Return the code of a broken rule; None if the peer merely went away.

    Silence does not break a rule: a network that lost a peer for a while looks the same, and must not keep
    the peer away for longer.
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
    """Sources of incoming connections that broke a rule, known again by a host or a key; at most
    `BANNED_MAX`."""

    first_s: float = PENALTY_FIRST_S
    most_s: float = PENALTY_MAX_S
    _penalties: dict[K, _Penalty] = field(default_factory=dict)

    def penalise(self, who: K, now: float) -> None:
        penalty = self._penalties.get(who)
        times = 1 if penalty is None else penalty.times + 1
        if penalty is None and len(self._penalties) >= BANNED_MAX:
            oldest = min(self._penalties, key=lambda known: self._penalties[known].until)
            del self._penalties[oldest]
        self._penalties[who] = _Penalty(now + doubled_s(self.first_s, self.most_s, times), times)

    def refused_until(self, who: K, now: float) -> float | None:
        """Return the time until which connections of `who` are refused; None if they are welcome."""
        penalty = self._penalties.get(who)
        return penalty.until if penalty is not None and penalty.until > now else None
