"""Notices what a program should never report of itself: exceptions that nobody handled, and errors in its log.

What it says of others is noted as well: in a world of honest nodes nobody has anything to complain about.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from stagepost.simulation.history import History
from stagepost.simulation.processes import current_process

_LOGGER = "stagepost"


class BugWatch(logging.Handler):
    """Writes them into the history, unless they come from a process that was killed: dying is not orderly."""

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
