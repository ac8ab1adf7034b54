"""`stagepost trace`: every receipt of one message, as lanes; with `--follow` until the message has ended. On a terminal the
lanes are drawn anew then; elsewhere each change of the verdict is a line.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.shared import path_option
from stagepost.cli.trace.lanes import end_line, headline, trace_lines
from stagepost.remp.verdict.trace import Trace
from stagepost.trace.kept_proofs import keeps_proofs
from stagepost.trace.reading import TraceTail, trace_object
from stagepost.trace.reasons import why

if TYPE_CHECKING:
    from stagepost.trace.reading import NotOneMessage

PREFIX_DIGITS_MIN = 8
KEY_CHARACTERS_MAX = 255

_HEX = re.compile(r"[0-9a-fA-F]+")


def _name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Take any id, or a key: only what can be neither is refused here."""
    if (
        not value
        or len(value) > KEY_CHARACTERS_MAX
        or (_HEX.fullmatch(value) and len(value) < PREFIX_DIGITS_MIN)
    ):
        raise click.BadParameter(
            f"{value[:KEY_CHARACTERS_MAX]!r} is not a message id; give at least {PREFIX_DIGITS_MIN} of its hexadecimal digits, "
            "or the idempotency key",
            context,
            parameter,
        )
    return value


@click.command()
@click.argument("prefix", metavar="ID", callback=_name)
@path_option("--data", metavar="DIR", help="Data folder of a full node or devnet. [stagepost-data]")
@path_option("--outbox", metavar="DIR", help="Folder of the outbox, if it lies outside of --data.")
@click.option(
    "--dump",
    metavar="FILE|-",
    type=click.Path(allow_dash=True, readable=False),
    help="Dump of a topic, or a file of receipts, to read instead of --data.",
)
@path_option(
    "--validator-sets",
    "sets_path",
    help="Validator-sets file: the keys that may sign receipts. [from --data]",
)
@click.option(
    "--as-of", "as_of_ms", type=click.IntRange(min=0), help="Time of the verdict, in Unix milliseconds. [now]"
)
@path_option(
    "--svg", "drawing_path", help="Write the lanes as a drawing to this file instead of printing them."
)
@click.option(
    "--only-trouble", is_flag=True, help="Show only lanes with a fault, and lanes without any receipt."
)
@click.option(
    "--follow",
    is_flag=True,
    help="Continue until the message has ended: redraw on a terminal, else print a line for each change.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: the row of `messages`, and all receipts."
)
@click.pass_context
def trace(
    context: click.Context,
    prefix: str,
    data: Path | None,
    outbox: Path | None,
    dump: str | None,
    sets_path: Path | None,
    as_of_ms: int | None,
    drawing_path: Path | None,
    only_trouble: bool,
    follow: bool,
    as_json: bool,
) -> int:
    """Show the way of one message, from the program to the proof. ID is any of its ids (delivery id, DMQ id, external
    message id), at least eight of the first digits of one, or its idempotency key.

    \b
    Example:
      stagepost trace 16923245 --data stagepost-data
      stagepost trace 16923245 --data stagepost-data --follow
      stagepost trace 16923245 --dump statuses.jsonl --validator-sets sets.json
    """
    from stagepost.cli.trace.lanes import trace_lines
    from stagepost.ground.files.running_nodes import DATA_DIR
    from stagepost.trace.reading import NotOneMessage, trace_object

    if data is None and dump is None and sets_path is None:
        data = Path(DATA_DIR)
    elif data is None and (dump is None or sets_path is None):
        raise click.UsageError("--dump and --validator-sets go together, or give --data", context)
    now_ms = int(time.time() * 1_000) if as_of_ms is None else as_of_ms
    try:
        if follow:
            if data is None or dump or sets_path or drawing_path or as_of_ms is not None:
                raise click.UsageError("--follow needs --data, and cannot be used with --dump", context)
            return follow_trace(
                data, prefix, outbox=outbox, only_trouble=only_trouble, as_json=as_json, color=context.color
            )
        result = _read(data, outbox, dump, sets_path, prefix, now_ms)
    except NotOneMessage as error:
        if as_json:
            raise
        return _not_one(error)
    if drawing_path is not None:
        _draw(result, drawing_path)
    elif as_json:
        click.echo(json.dumps(trace_object(result), ensure_ascii=False))
    else:
        for line in trace_lines(result, only_trouble=only_trouble):
            click.echo(line, color=context.color)
    return 0


def _read(
    data: Path | None,
    outbox: Path | None,
    dump: str | None,
    sets_path: Path | None,
    prefix: str,
    as_of_ms: int,
) -> Trace:
    from stagepost.remp.verdict.trace import trace_of
    from stagepost.trace.reading import (
        NotAMessageId,
        dump_records,
        matching,
        only_one,
        read_trace,
        require_prefix,
        topic_records,
    )
    from stagepost.trace.session_records import load_sets

    if data is not None and dump is None and sets_path is None:
        return read_trace(data, prefix, as_of_ms, outbox)
    if data is not None:
        sets_path = sets_path or data
    assert sets_path is not None, "one of the two was given"
    try:
        prefix = require_prefix(prefix)
    except NotAMessageId as error:
        raise click.UsageError(f"{error.text}; a key needs --data alone") from error
    sets = load_sets(sets_path)
    if dump is not None:
        records, source = dump_records(dump), dump
    else:
        assert data is not None, "one of the two was given"
        records, source = topic_records(data), str(data)
    message_id, found = only_one(matching(records, prefix), prefix, source)
    return trace_of(bytes.fromhex(message_id), found, sets, as_of_ms)


def _draw(result: Trace, path: Path) -> None:
    from stagepost.errors import StorageError
    from stagepost.trace.drawing import draw_trace

    try:
        path.write_text(draw_trace(result), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}", advice="give another file with --svg"
        ) from error


def _not_one(error: NotOneMessage) -> int:
    found = error.message_ids
    click.echo(f"{error.text}{':' if found else ''}", err=True)
    for message_id, count in found.items():
        click.echo(f"  {message_id}  {count} records", err=True)
    click.echo(f"  {error.advice}", err=True)
    return NOT_THAT_OUTCOME


POLL_S = 0.2
"""Seconds between two looks for news."""
DRAWN_AGAIN_AFTER_S = 1.0
"""Seconds without news after which a terminal is drawn anew: the time for which the message has been open grows by itself."""


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
