"""How long a slot may take, and whether anybody wants one at all.

Time-outs double when so many slots in a row have failed that one of their leaders was honest, and halve again after a
round of good ones: so the chain lives under any delay that stays finite, and a few bad leaders do not slow it down.
"""

from __future__ import annotations

import msgspec

from stagepost.chain.agreement.session import Session

DELTA_S = 0.2
ROUNDS_PER_SLOT = 3
"""A candidate, its votes, and whatever a leader had to hear first."""

LEVEL_MAX = 16
"""The longest time-out is 65,536 times the shortest: half a day."""

IDLE_PERIOD_S = None
WANT_PAUSE_S = 1.0
WISHES_AT_ONCE_MAX = 5
"""Of one validator, before it has to pause."""

ASK_EVERY_S = 0.5
ASK_WHEN_IDLE_S = 5.0
QUERY_TIMEOUT_S = 2.0
START_WAIT_S = 2.0
STALLED_AFTER_S = 30.0


class MemberOptions(msgspec.Struct, frozen=True):
    """`delta_s`: how long a message usually takes at most. `idle_period_s`: after so long without a block an empty one
    is made; None for never. `want_pause_s`: how often another validator may make us do without idling.
    `ask_every_s`: how often we ask somebody what we missed while a slot is under way, and `ask_when_idle_s` otherwise.
    `start_wait_s`: how long we listen first, in case others remember more of us than our own disk."""

    delta_s: float = DELTA_S
    idle_period_s: float | None = IDLE_PERIOD_S
    want_pause_s: float = WANT_PAUSE_S
    ask_every_s: float = ASK_EVERY_S
    ask_when_idle_s: float = ASK_WHEN_IDLE_S
    query_timeout_s: float = QUERY_TIMEOUT_S
    start_wait_s: float = START_WAIT_S
    stalled_after_s: float = STALLED_AFTER_S


class Timeouts:
    def __init__(self, session: Session, delta_s: float) -> None:
        self._session = session
        self._delta_s = delta_s
        self._failed = 0
        self._good = 0
        self.level = 0

    @property
    def slot_s(self) -> float:
        return ROUNDS_PER_SLOT * self._delta_s * (1 << self.level)

    def slot_failed(self) -> None:
        self._failed += 1
        if self._failed > self._session.faulty_max:
            self._failed = self._good = 0
            self.level = min(self.level + 1, LEVEL_MAX)

    def slot_succeeded(self) -> None:
        self._failed = 0
        self._good += 1
        if self._good >= self._session.size:
            self._good = 0
            self.level = max(self.level - 1, 0)


class Wishes:
    """Who wants the chain to go on, and up to which slot: until it leads one itself. Wishes of others are rationed, or a
    single faulty one could keep all busy with empty blocks."""

    def __init__(self, session: Session, index: int, pause_s: float) -> None:
        self._session = session
        self._index = index
        self._pause_s = pause_s
        self._until: dict[int, int] = {}
        self._paid_until: dict[int, float] = {}

    def wish(self, validator: int, current: int, now: float, *, is_for_one: bool = False) -> bool:
        """Whether this is a new wish, and granted. `is_for_one`: only for this slot to end."""
        if self._until.get(validator, 0) >= current:
            return False
        if validator != self._index:
            paid_until = max(self._paid_until.get(validator, now), now)
            if paid_until > now + (WISHES_AT_ONCE_MAX - 1) * self._pause_s:
                return False
            self._paid_until[validator] = paid_until + self._pause_s
        self._until[validator] = current if is_for_one else self._session.next_led_by(validator, current)
        return True

    def is_wanted(self, slot: int) -> bool:
        return any(until >= slot for until in self._until.values())

    def fulfil(self, validator: int) -> None:
        self._until.pop(validator, None)
