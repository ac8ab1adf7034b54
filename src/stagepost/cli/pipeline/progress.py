"""Progress of a pipeline on standard error: every line for a person at a terminal, one in a while for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

LOG_LINE_EVERY_S = 5.0
"""Seconds, at least, between two lines of progress where no terminal shows them."""

POINTS = {
    "after write": "records are checked",
    "after messages": "messages are evaluated",
    "after manifest": "tables are committed",
}
"""Points of a commit that people are told of, and the words for them."""


class PipelineProgress:
    """Lines of one command. Off a terminal the first line is shown, and then the newest one every few seconds."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        *,
        is_terminal: Callable[[], bool] = lambda: sys.stderr.isatty(),
    ) -> None:
        self._now, self._is_terminal = now, is_terminal
        self._shown_at: float | None = None

    def say(self, text: str) -> None:
        now = self._now()
        is_due = self._shown_at is None or now - self._shown_at >= LOG_LINE_EVERY_S
        if is_due or self._is_terminal():
            self._shown_at = now
            click.echo(text, err=True)

    def at_point(self, point: str) -> None:
        """Say what a commit has done; for `Tables`."""
        if point in POINTS:
            self.say(POINTS[point])
