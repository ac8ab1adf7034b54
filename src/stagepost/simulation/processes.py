"""Which simulated process a task belongs to, so that a crash can end all of one process and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

KILL_ROUNDS = 100

_PROCESS: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


class Process:
    """One life of a program: tasks begun by its tasks, timers and connections are its own."""

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
        """What `function` makes (events, bearers, tasks) belongs to this process."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return context.run(function)

    def kill(self) -> None:
        """End every task. What they still do while they end must reach nobody: cut disk and network off first."""
        self.is_alive = False
        self._end_tasks(KILL_ROUNDS)

    def _end_tasks(self, rounds: int) -> None:
        for task in list(self.tasks):
            task.cancel()
        # Tasks that clean up wait for things which will never happen to a dead program.
        if self.tasks and rounds:
            asyncio.get_running_loop().call_soon(self._end_tasks, rounds - 1)


def current_process() -> Process | None:
    return _PROCESS.get()


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on every task of `loop` is written down with the process that began it."""

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
        # Nobody asks a dead program's tasks what they failed of.
        if not process.is_alive and not task.cancelled():
            task.exception()

    return forget
