"""Simulated processes: each task belongs to one, so that a crash can end all of one process and nothing else.

`BugWatch` notices what a program should never report of itself: unhandled exceptions, and errors in its log.
It also notes what a program says of others: in a world of honest nodes nobody has anything to complain about.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from stagepost.simulation.history import History

T = TypeVar("T")

KILL_ROUNDS = 100

_PROCESS: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


class Process:
    """Life of a program: tasks begun by its tasks, timers and connections are its own."""

    def __init__(self, name: str, life: int) -> None:
        self.name = name
        self.life = life
        self.is_alive = True
        # A dictionary, for its order: tasks are ended in the order in which they began.
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def run(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task of this process."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return asyncio.get_running_loop().create_task(coroutine, context=context)

    def call(self, function: Callable[[], T]) -> T:
        """Call `function` so that the events, bearers and tasks that it makes belong to this process."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return context.run(function)

    def kill(self) -> None:
        """End every task. Cut disk and network off first: what tasks do while they end must reach nobody."""
        self.is_alive = False
        self._end_tasks(KILL_ROUNDS)

    def _end_tasks(self, rounds: int) -> None:
        for task in list(self.tasks):
            task.cancel()
        # Tasks that clean up wait for events which will never happen to a dead program.
        if self.tasks and rounds:
            asyncio.get_running_loop().call_soon(self._end_tasks, rounds - 1)


def current_process() -> Process | None:
    return _PROCESS.get()


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Record every new task of `loop` with the process that began it."""

    def begin(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        context = options.get("context")
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(_forget(process))
            if not process.is_alive:
                task.cancel()
        return task

    loop.set_task_factory(begin)  # type: ignore[arg-type]  # later Pythons pass more options


def _forget(process: Process) -> Callable[[asyncio.Task[Any]], None]:
    def forget(task: asyncio.Task[Any]) -> None:
        process.tasks.pop(task, None)
        # Nobody asks why the tasks of a dead program failed.
        if not process.is_alive and not task.cancelled():
            task.exception()

    return forget


_LOGGER = "stagepost"


class BugWatch(logging.Handler):
    """Log handler that writes bugs into the history, unless they come from a killed process: dying is not
    orderly."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.WARNING)
        self._history = history

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_exception_handler(self._unhandled)
        logging.getLogger(_LOGGER).addHandler(self)

    def end(self) -> None:
        logging.getLogger(_LOGGER).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        if process is not None and not process.is_alive:
            return
        who = "the world" if process is None else process.name
        if record.levelno >= logging.ERROR:
            error = "" if record.exc_info is None else f": {record.exc_info[1]!r}"
            self._history.bugs.append(f"{who} logged an error: {record.getMessage()}{error}")
        elif hasattr(record, "code"):
            said = f"{record.getMessage()}: {record.code} {getattr(record, 'reason', '')}"
            self._history.accusations.append(f"{who} says of {getattr(record, 'peer', '?')}: {said}")

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        task = context.get("task") or context.get("future")
        process = current_process()
        if process is None or process.is_alive:
            self._history.bugs.append(
                f"nobody handled: {context.get('message')} {context.get('exception')!r} {task!r}"
            )
