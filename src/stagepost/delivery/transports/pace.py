"""How fast a node lets us send: it names the seconds to wait when a message came too soon after the last one."""

from __future__ import annotations

import re

from stagepost.dmq.outcome import Rejected
from stagepost.dmq.validation import MESSAGE_GAP_S
from stagepost.errors import ErrorCode
from stagepost.ground.loop.clock import Clock

WAIT_MAX_S = 3_600.0
"""What a node says is not taken literally beyond this."""

_NAMED = re.compile(r"wait (\d{1,9}(?:\.\d{1,9})?) s\b")
_TOO_FREQUENT_ELSEWHERE = "TooFrequent"


def seconds_named(outcome: Rejected) -> float | None:
    """None if the message did not come too soon. Nodes that name no time have the public networks' gap."""
    if outcome.code is not ErrorCode.MSG_TOO_FREQUENT and _TOO_FREQUENT_ELSEWHERE not in outcome.text:
        return None
    named = _NAMED.search(outcome.text)
    return min(float(named[1]), WAIT_MAX_S) if named else float(MESSAGE_GAP_S)


class Pace:
    """Nothing is signed or submitted while the node is known to refuse it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._not_before_s = 0.0

    def hold(self, wait_s: float) -> None:
        self._not_before_s = max(self._not_before_s, self._clock.mono_s() + wait_s)

    @property
    def wait_s(self) -> float:
        """0 if it may be sent."""
        return max(0.0, self._not_before_s - self._clock.mono_s())
