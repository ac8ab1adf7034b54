"""The time-outs of slots, the wishes of validators for a next slot, and the clock of the current slot.

Time-outs double when so many slots in a row have failed that one of their leaders was honest, and halve again
after a round of good ones: so the chain lives under any delay that stays finite, and a few bad leaders do not
slow it down.
"""

from __future__ import annotations

import msgspec

from stagepost.chain.agreement.session import Session

DELTA_S = 0.2
ROUNDS_PER_SLOT = 3
"""Message delays of a slot: a candidate, its votes, and the messages that a leader had to hear first."""

LEVEL_MAX = 16
"""Doublings, at most: the longest time-out is 65,536 times the shortest, half a day."""

IDLE_PERIOD_S = None
WANT_PAUSE_S = 1.0
WISHES_AT_ONCE_MAX = 5
"""Wishes of one validator, at most, before it has to pause."""

ASK_EVERY_S = 0.5
ASK_WHEN_IDLE_S = 5.0
QUERY_TIMEOUT_S = 2.0
START_WAIT_S = 2.0
STALLED_AFTER_S = 30.0


class MemberOptions(msgspec.Struct, frozen=True):
    """All times are in seconds. `delta_s`: how long a message usually takes at most. `idle_period_s`: after
    so long without a block an empty one is made; None for never. `want_pause_s`: interval at which another
    validator may end our idling. `ask_every_s`: interval at which we ask a validator what we missed while a
    slot is under way, and `ask_when_idle_s` otherwise. `start_wait_s`: how long we listen first, in case
    others remember more of us than our own disk.
    """

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
    """The validators that want the chain to go on, and the slot up to which each wants it: the next one that
    it leads itself.

    Wishes of others are rationed; otherwise a single faulty validator could keep all busy with empty blocks.
    """

    def __init__(self, session: Session, index: int, pause_s: float) -> None:
        self._session = session
        self._index = index
        self._pause_s = pause_s
        self._until: dict[int, int] = {}
        self._paid_until: dict[int, float] = {}

    def wish(self, validator: int, current: int, now: float, *, is_for_one: bool = False) -> bool:
        """Note a wish of `validator`. Return whether it is new, and granted. `is_for_one`: only for the
        current slot to end.
        """
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


NEVER = float("inf")


class SlotClock:
    """The times of the slot that a validator is in. A slot is timed only while it is awaited."""

    def __init__(self, session: Session, options: MemberOptions, now: float) -> None:
        self.timeouts = Timeouts(session, options.delta_s)
        self._options = options
        self.enter(now)

    @property
    def is_awaited(self) -> bool:
        return self._awaited_since is not None

    @property
    def next_wake(self) -> float:
        timer_at = NEVER if self._timer_at is None else self._timer_at
        return min(timer_at, self._stalled_at, self._impatient_at, self._idle_at)

    def leave(self, *, is_good: bool, now: float) -> None:
        """Note that the slot ended while we were in it."""
        if is_good:
            self.timeouts.slot_succeeded()
        else:
            self.timeouts.slot_failed()
        self.enter(now)

    def enter(self, now: float) -> None:
        self._entered_at = now
        self._awaited_since: float | None = None
        self._timer_at: float | None = None
        self._is_over = False
        self._is_stall_told = False
        self._impatient_at = now + self._options.delta_s
        idle_s = self._options.idle_period_s
        self._idle_at = NEVER if idle_s is None else now + idle_s

    def watch(self, is_awaited: bool, now: float) -> None:
        if self._is_over:
            return
        if not is_awaited:
            self._awaited_since = self._timer_at = None
        elif self._awaited_since is None:
            self._awaited_since = now
            self._timer_at = now + self.timeouts.slot_s

    def passed(self, now: float) -> bool:
        """Return whether the slot's time is over; True only once a slot."""
        self._impatient_at = NEVER if now >= self._impatient_at else self._impatient_at
        self._idle_at = NEVER if now >= self._idle_at else self._idle_at
        if self._timer_at is None or now < self._timer_at:
            return False
        self._timer_at, self._is_over = None, True
        return True

    def has_stalled(self, now: float) -> bool:
        """Return whether the slot has lasted for `stalled_after_s`; True only once a slot."""
        if now < self._stalled_at:
            return False
        self._is_stall_told = True
        return True

    def is_idle_for_long(self, now: float) -> bool:
        idle_s = self._options.idle_period_s
        return idle_s is not None and now >= self._entered_at + idle_s

    def is_impatient(self, now: float) -> bool:
        """Return whether a message that was sent when the slot began should have arrived by now."""
        return now >= self._entered_at + self._options.delta_s

    @property
    def _stalled_at(self) -> float:
        if self._is_stall_told or self._awaited_since is None:
            return NEVER
        return self._awaited_since + self._options.stalled_after_s
