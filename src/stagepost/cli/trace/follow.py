"""`stagepost trace --follow`: one message until it has ended. On a terminal the lanes are drawn anew; elsewhere each change
of the verdict is a line."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from stagepost.cli.trace.lanes import end_line, headline, trace_lines
from stagepost.remp.verdict.trace import Trace
from stagepost.trace.kept_proofs import keeps_proofs
from stagepost.trace.reading import TraceTail, trace_object
from stagepost.trace.reasons import why

POLL_S = 0.2
DRAWN_AGAIN_AFTER_S = 1.0
"""Without news: how long it is open changes by itself."""


def follow_trace(
    data: Path,
    prefix: str,
    *,
    outbox: Path | None = None,
    only_trouble: bool,
    as_json: bool,
    color: bool | None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Also waits for a message of which nothing is known yet. `NotOneMessage` if several begin so."""
    tail = TraceTail(data, prefix, outbox)
    is_terminal = sys.stdout.isatty() and not as_json
    show: _Drawing | _Lines = _Drawing(only_trouble, color) if is_terminal else _Lines(as_json=as_json)
    while True:
        trace = tail.trace(int(time.time() * 1_000))
        if trace is None:
            show.nothing(prefix)
        else:
            show.trace(trace)
            if trace.proved is not None:
                return 0
            if trace.verdict is None and trace.way.has_ended:
                return 0
            if trace.verdict is not None and not trace.is_open and not keeps_proofs(data):
                return 0  # claims are all that this folder will ever hold
        sleep(POLL_S)


class _Lines:
    """Printer of one line, or JSON object, for each change of the message's trace."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._said = ""

    def nothing(self, prefix: str) -> None:
        if not self._said:
            self._said = "nothing"
            click.echo(f"no record is of a message that begins with {prefix} yet", err=True)

    def trace(self, trace: Trace) -> None:
        said = f"{trace.words}, {end_line(trace)}"
        if said == self._said:
            return
        self._said = said
        if self._as_json:
            click.echo(json.dumps(trace_object(trace), ensure_ascii=False))
        else:
            click.echo("   ".join(filter(None, [headline(trace), end_line(trace), why(trace)])))
        sys.stdout.flush()


class _Drawing:
    """The whole picture in place of the one before."""

    def __init__(self, only_trouble: bool, color: bool | None) -> None:
        self._only_trouble = only_trouble
        self._color = color
        self._points = -1
        self._height = 0
        self._drawn_at = 0.0

    def nothing(self, prefix: str) -> None:
        if not self._height:
            self._show([f"no record is of a message that begins with {prefix} yet"])

    def trace(self, trace: Trace) -> None:
        is_old = time.monotonic() - self._drawn_at >= DRAWN_AGAIN_AFTER_S
        if len(trace.points) == self._points and trace.proved is None and not is_old:
            return
        self._points = len(trace.points)
        self._show(list(trace_lines(trace, only_trouble=self._only_trouble)))

    def _show(self, lines: list[str]) -> None:
        if self._height:
            sys.stdout.write(f"\x1b[{self._height}F\x1b[J")
        click.echo("\n".join(lines), color=self._color)
        columns = shutil.get_terminal_size().columns
        self._height = sum(max(1, -(-len(click.unstyle(line)) // columns)) for line in lines)
        self._drawn_at = time.monotonic()
