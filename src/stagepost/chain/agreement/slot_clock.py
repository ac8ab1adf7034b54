"""The times of the slot that a validator is in: since when, until when, and whether anybody waits for it at all."""

from __future__ import annotations

from stagepost.chain.agreement.pacing import MemberOptions, Timeouts
from stagepost.chain.agreement.session import Session

NEVER = float("inf")


class SlotClock:
    """A slot is timed only while it is awaited."""

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
        """The slot ended while we were in it."""
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
        """Whether the slot's time is over, told once."""
        self._impatient_at = NEVER if now >= self._impatient_at else self._impatient_at
        self._idle_at = NEVER if now >= self._idle_at else self._idle_at
        if self._timer_at is None or now < self._timer_at:
            return False
        self._timer_at, self._is_over = None, True
        return True

    def has_stalled(self, now: float) -> bool:
        """Told once a slot."""
        if now < self._stalled_at:
            return False
        self._is_stall_told = True
        return True

    def is_idle_for_long(self, now: float) -> bool:
        idle_s = self._options.idle_period_s
        return idle_s is not None and now >= self._entered_at + idle_s

    def is_impatient(self, now: float) -> bool:
        """Whether what is usually heard within a moment should have been heard."""
        return now >= self._entered_at + self._options.delta_s

    @property
    def _stalled_at(self) -> float:
        if self._is_stall_told or self._awaited_since is None:
            return NEVER
        return self._awaited_since + self._options.stalled_after_s
