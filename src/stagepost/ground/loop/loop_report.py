"""What a loop is busy with, in words: every task with the place where it waits, what is ready, and the next timers."""

from __future__ import annotations

import asyncio
import linecache
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

TASKS_SHOWN_MAX = 200
HANDLES_SHOWN_MAX = 20
FRAMES_SHOWN_MAX = 12


def loop_report(loop: asyncio.AbstractEventLoop, frame: FrameType | None = None) -> str:
    """`frame` is what runs at present, where somebody interrupted it."""
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
    """From the task's own coroutine down to what it awaits."""
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
    """The innermost last, as tracebacks have it."""
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
