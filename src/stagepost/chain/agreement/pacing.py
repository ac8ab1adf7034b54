"""The time-outs of slots, the wishes of validators for a next slot, and the clock of the current slot.

A slot is good when its block became final, and has failed when it was skipped or its block stays open. Once
more slots in a row have failed than there may be faulty leaders, each further one doubles the time-out: one of
the failed leaders was honest, so the time-out was too short for it. Time-outs halve again after a round of
good slots that were quick. Between two final blocks they only grow.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stagepost.chain.agreement.session import Session
from stagepost.ground.statemachine.lifecycle import StartAnswers

DELTA_S = 0.2
ROUNDS_PER_SLOT = 3
"""Message delays of a slot: a candidate, its votes, and the messages that a leader had to hear first."""

TIMEOUT_S_MAX = 30.0
"""Seconds, at most, that a validator waits in a slot. Where messages take longer than a third of that, the chain
stays safe and need not go on.
"""

OPEN_SLOTS_USUAL = 2
"""Slots, at most, by which the votes that make a block final may trail behind the slot in which validators are."""

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
    others remember more of us than our own disk. `answers`: how many others must have answered then.
    """

    delta_s: float = DELTA_S
    idle_period_s: float | None = IDLE_PERIOD_S
    want_pause_s: float = WANT_PAUSE_S
    ask_every_s: float = ASK_EVERY_S
    ask_when_idle_s: float = ASK_WHEN_IDLE_S
    query_timeout_s: float = QUERY_TIMEOUT_S
    start_wait_s: float = START_WAIT_S
    stalled_after_s: float = STALLED_AFTER_S
    answers: StartAnswers = StartAnswers.QUORUM


class Timeouts:
    """The time-out of slots. `level`: how often it was doubled and not halved again."""

    def __init__(self, session: Session, delta_s: float) -> None:
        self._session = session
        self._delta_s = delta_s
        self._failed = 0
        self._good = 0
        self._slow = 0
        self.level = 0

    @property
    def slot_s(self) -> float:
        return min(ROUNDS_PER_SLOT * self._delta_s * (1 << self.level), TIMEOUT_S_MAX)

    def slot_failed(self, silent: int) -> None:
        """Note that another slot failed. `silent`: validators that say nothing at all, so that fewer of those who led
        the failed slots can be faulty.
        """
        self._failed += 1
        if self._failed > max(self._session.faulty_max - silent, 0):
            self._good = self._slow = 0
            if self.slot_s < TIMEOUT_S_MAX:
                self.level += 1

    def slot_succeeded(self, lasted_s: float | None) -> None:
        """Note that a block became final. `lasted_s`: the time until the block was notarised; None if the slot was
        counted as failed before.
        """
        self._failed = 0
        if lasted_s is None:
            return
        self._good += 1
        # Two delays have passed, and three must fit into half of this time-out.
        self._slow += ROUNDS_PER_SLOT * lasted_s > self.slot_s
        if self._good >= self._session.size:
            if self._slow <= self._session.faulty_max:
                self.level = max(self.level - 1, 0)
            self._good = self._slow = 0


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
        self._notarised: dict[int, float] = {}
        self._stalls_at = NEVER
        self.enter(now)

    @property
    def is_awaited(self) -> bool:
        return self._awaited_since is not None

    @property
    def next_wake(self) -> float:
        timer_at = NEVER if self._timer_at is None else self._timer_at
        return min(timer_at, self._stalls_at, self._impatient_at, self._idle_at)

    def leave(self, slot: int, *, is_skipped: bool, silent: int, now: float) -> None:
        """Note that `slot` ended while we were in it. A slot that nobody waited for, since its leader is silent, has
        not failed. `silent`: number of silent validators.
        """
        if not is_skipped:
            self._notarised[slot] = 0.0 if self._awaited_since is None else now - self._awaited_since
        elif not self._is_leader_silent:
            self.timeouts.slot_failed(silent)
        for number in [one for one in self._notarised if one <= slot - OPEN_SLOTS_USUAL]:
            del self._notarised[number]
            self.timeouts.slot_failed(silent)
        self.enter(now)

    def finalised(self, slots: Iterable[int]) -> None:
        """Note that the blocks of `slots`, in order, have become final."""
        for slot in slots:
            self.timeouts.slot_succeeded(self._notarised.pop(slot, None))
            self._notarised = {one: lasted_s for one, lasted_s in self._notarised.items() if one > slot}
        self._stalls_at = NEVER

    def enter(self, now: float) -> None:
        self._entered_at = now
        self._awaited_since: float | None = None
        self._timer_at: float | None = None
        self._is_over = False
        self._is_leader_silent = False
        self._impatient_at = now + self._options.delta_s
        idle_s = self._options.idle_period_s
        self._idle_at = NEVER if idle_s is None else now + idle_s

    def watch(self, is_awaited: bool, now: float, *, is_leader_silent: bool = False) -> None:
        """Time the slot from now on if `is_awaited`; its time is over at once if its leader is silent."""
        if self._stalls_at == NEVER and is_awaited:
            self._stalls_at = now + self._options.stalled_after_s
        if self._is_over:
            return
        if not is_awaited:
            self._awaited_since = self._timer_at = None
            self._stalls_at = NEVER
        elif self._awaited_since is None:
            self._awaited_since = now
            self._is_leader_silent = is_leader_silent
            self._timer_at = now if is_leader_silent else now + self.timeouts.slot_s

    def passed(self, now: float) -> bool:
        """Return whether the slot's time is over; True only once a slot."""
        self._impatient_at = NEVER if now >= self._impatient_at else self._impatient_at
        self._idle_at = NEVER if now >= self._idle_at else self._idle_at
        if self._timer_at is None or now < self._timer_at:
            return False
        self._timer_at, self._is_over = None, True
        return True

    def has_stalled(self, now: float) -> bool:
        """Return whether a block is awaited and none has become final for `stalled_after_s`; True once for each such
        period.
        """
        if now < self._stalls_at:
            return False
        self._stalls_at = now + self._options.stalled_after_s
        return True

    def is_idle_for_long(self, now: float) -> bool:
        idle_s = self._options.idle_period_s
        return idle_s is not None and now >= self._entered_at + idle_s

    def is_impatient(self, now: float) -> bool:
        """Return whether a message that was sent when the slot began should have arrived by now."""
        return now >= self._entered_at + self._options.delta_s
