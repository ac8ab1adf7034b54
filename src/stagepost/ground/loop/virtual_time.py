"""An event loop whose clock jumps: when nothing is ready to run, the time of the next timer comes at once.

Programs with long time-outs run in no time and always in the same order. Sockets work as far as both ends
live in this process; threads and other processes have no part in virtual time.

The loop ends a run that gets nowhere (see `Patience`) and reports its state in words: every task with the
place where it waits, the handles that are ready, and the next timers.
"""

from __future__ import annotations

import asyncio
import linecache
import selectors
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, TypeVar

from stagepost.ground.loop.clock import loop_clock

TASKS_SHOWN_MAX = 200
HANDLES_SHOWN_MAX = 20
FRAMES_SHOWN_MAX = 12


def loop_report(loop: asyncio.AbstractEventLoop, frame: FrameType | None = None) -> str:
    """Return the state of the loop in words. `frame` is the code that runs at present, if something
    interrupted it."""
    lines: list[str] = []
    if frame is not None:
        lines += ["running:", *_indented(_frames_from(frame))]
    ready, timers = _handles(loop)
    lines += _part("ready to run", [repr(handle) for handle in ready], HANDLES_SHOWN_MAX)
    due = sorted(timers, key=lambda timer: timer.when())
    lines += _part("timers", [f"{timer.when():.6f} s {timer!r}" for timer in due], HANDLES_SHOWN_MAX)
    # By name: a set of tasks has no order that would be the same next time.
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: (task.get_name(), repr(task.get_coro())))
    lines.append(f"tasks: {len(tasks)}")
    for task in tasks[:TASKS_SHOWN_MAX]:
        lines += [f"  {task.get_name()}", *_indented(_indented(_waits_at(task)))]
    return "\n".join(lines)


def _handles(
    loop: asyncio.AbstractEventLoop,
) -> tuple[Sequence[asyncio.Handle], Sequence[asyncio.TimerHandle]]:
    # asyncio keeps both to itself and has no way to ask; another loop shows its tasks only.
    ready: Iterable[asyncio.Handle] = getattr(loop, "_ready", ())
    scheduled: Iterable[asyncio.TimerHandle] = getattr(loop, "_scheduled", ())
    return list(ready), [timer for timer in scheduled if not timer.cancelled()]


def _part(title: str, shown: Sequence[str], shown_max: int) -> list[str]:
    more = [f"and {len(shown) - shown_max} more"] if len(shown) > shown_max else []
    return [f"{title}: {len(shown)}", *_indented([*shown[:shown_max], *more])]


def _waits_at(task: asyncio.Task[Any]) -> list[str]:
    """Return the places from the task's own coroutine down to the innermost awaitable."""
    places: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(places) < FRAMES_SHOWN_MAX:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            places.append(f"waits for {awaited!r}")
            break
        places.append(_place(frame))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return places or [repr(task)]


def _frames_from(frame: FrameType | None) -> list[str]:
    """Return the places of the frames, the innermost last, as in tracebacks."""
    places: list[str] = []
    while frame is not None and len(places) < FRAMES_SHOWN_MAX:
        places.append(_place(frame))
        frame = frame.f_back
    return places[::-1]


def _place(frame: FrameType) -> str:
    code = frame.f_code
    name = "/".join(code.co_filename.rsplit("/", 2)[-2:])
    line = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f"{name}:{frame.f_lineno} {code.co_name}: {line}"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


T = TypeVar("T")

REAL_S_MAX = 900.0
"""Seconds of real time. Runs of tests take seconds, and have taken a minute on a machine with ten times the load it could bear."""
STEPS_AT_ONCE_MAX = 1_000_000
"""Turns of the loop during which no virtual time passes. Busy worlds need some hundreds."""
ENDING_S_MAX = 10.0
"""Seconds of real time in which the tasks of a stuck run may end; then the loop abandons them."""

INTERRUPT_AFTER_S = 1.0
"""Seconds that the signal comes after the loop's own check of the clock, which can always leave the loop safely."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits beyond which a run counts as stuck.

    The first two depend on nothing but the run; `real_s_max` catches all that they miss. A signal interrupts
    a callback that never returns, so only where the loop runs in the main thread.
    """

    steps_at_once_max: int = STEPS_AT_ONCE_MAX
    virtual_s_max: float | None = None
    real_s_max: float = REAL_S_MAX


class VirtualTimeStuck(RuntimeError):
    """Failure of a run in virtual time to get anywhere. The text names the run, the reason, and what every
    task and timer waits for."""


class _Stuck(BaseException):
    """Exception that leaves the loop. It is a `BaseException`, so that no handler for ordinary errors
    swallows it."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Event loop with a virtual clock. `about` names the run: a world writes its seed there. `load_share` is the load, from
    0 to 1, that the run pretends: turns of a virtual loop take no time.
    """

    def __init__(self, start_s: float = 0.0, patience: Patience | None = None) -> None:
        self.about = "a run without a name"
        self.load_share = 0.0
        self.stuck: str | None = None
        self.steps = 0
        self.steps_at_once = 0
        self._now_s = start_s
        self._patience = patience or Patience()
        self._began_s = time.monotonic()
        self._real_end_s = self._began_s + self._patience.real_s_max
        self._is_leaving = False
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now_s

    def jump(self, by_s: float) -> None:
        if by_s > 0:
            self.steps_at_once = 0
        self._now_s += by_s
        virtual_s_max = self._patience.virtual_s_max
        if virtual_s_max is not None and self._now_s > virtual_s_max and self.stuck is None:
            self.give_up(f"it is not over after {virtual_s_max:g} s of virtual time")

    def step(self) -> None:
        """Count a turn of the loop, and give up when a limit is reached. The selector calls this once per
        turn."""
        if self._is_leaving:
            self._is_leaving = False
            raise _Stuck
        self.steps += 1
        self.steps_at_once += 1
        if self.steps_at_once > self._patience.steps_at_once_max:
            steps_max = self._patience.steps_at_once_max
            self.give_up(f"{steps_max} turns of the loop passed without any time passing")
        # Every 64 turns only: reading the clock costs more than a turn of the loop.
        if self.steps % 64 == 0 and time.monotonic() > self._real_end_s:
            self.give_up(self._too_long())

    def interrupt(self, frame: FrameType | None) -> NoReturn:
        """Give up in the middle of a callback because the real time is up.

        The callback may handle the exception as its own, so the next turn raises it again.
        """
        self._is_leaving = True
        self.give_up(self._too_long(), frame)

    def _too_long(self) -> str:
        return f"it is not over after {self._patience.real_s_max:g} s of real time"

    def give_up(self, why: str, frame: FrameType | None = None) -> NoReturn:
        """End the run by raising. The first reason is the one that is reported; later calls only end the run."""
        if self.stuck is None:
            real_s = time.monotonic() - self._began_s
            self.stuck = (
                f"virtual time is stuck in {self.about}: {why}\n"
                f"at {self._now_s:.6f} s, after {self.steps} turns and {real_s:.1f} s of real time\n"
                f"{loop_report(self, frame)}"
            )
            # Errors of tasks that are being ended are not worth reporting.
            self.set_exception_handler(lambda _loop, _context: None)
        self.steps_at_once = 0
        self._real_end_s = time.monotonic() + ENDING_S_MAX
        raise _Stuck


def run_in_virtual_time(main: Coroutine[Any, Any, T], patience: Patience | None = None) -> T:
    """Run `main` like `asyncio.run`, on a loop of its own whose clock starts at 0.

    Raise `VirtualTimeStuck` if the run gets nowhere.
    """
    patience = patience or Patience()
    loop = VirtualTimeLoop(patience=patience)
    try:
        with (
            loop_clock(loop.time),
            _interrupted_after(patience.real_s_max, loop),
            asyncio.Runner(loop_factory=lambda: loop) as runner,
        ):
            result = runner.run(main)
    except _Stuck:
        assert loop.stuck is not None
        raise VirtualTimeStuck(loop.stuck) from None
    if loop.stuck is not None:
        raise VirtualTimeStuck(loop.stuck)
    return result


@contextmanager
def _interrupted_after(real_s: float, loop: VirtualTimeLoop) -> Iterator[None]:
    """Interrupt the loop by a signal after `real_s` seconds. Only signals reach a callback that never
    returns, and only the main thread gets them."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def interrupt(_: int, frame: FrameType | None) -> None:
        loop.interrupt(frame)

    before: Callable[[int, FrameType | None], Any] | int | None = signal.signal(signal.SIGALRM, interrupt)
    # The timer repeats, in case the tasks that are being ended do not end.
    signal.setitimer(signal.ITIMER_REAL, real_s + INTERRUPT_AFTER_S, ENDING_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _JumpingSelector(selectors.DefaultSelector):
    """Selector that moves the clock to the next timer where the real one would sleep until then."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.step()
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is not None:
            self._loop.jump(timeout)
            return events
        # No timer at all. The loop's own wake-up socket is always registered; if it is the only one, then
        # everybody waits for somebody and nothing can ever happen.
        if len(self.get_map()) <= 1:
            self._loop.give_up("it stands still: every task waits and no timer is set")
        return super().select(None)
