"""`stagepost trace`: every receipt of one message, as lanes."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME

if TYPE_CHECKING:
    from stagepost.remp.verdict.trace import Trace
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
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Data folder of a full node or devnet. [stagepost-data]",
)
@click.option(
    "--outbox",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of the outbox, if it lies outside of --data.",
)
@click.option(
    "--dump",
    metavar="FILE|-",
    type=click.Path(allow_dash=True, readable=False),
    help="Dump of a topic, or a file of receipts, to read instead of --data.",
)
@click.option(
    "--validator-sets",
    "sets_path",
    type=click.Path(path_type=Path),
    help="Validator-sets file: the keys that may sign receipts. [from --data]",
)
@click.option(
    "--as-of", "as_of_ms", type=click.IntRange(min=0), help="Time of the verdict, in Unix milliseconds. [now]"
)
@click.option(
    "--svg",
    "drawing_path",
    type=click.Path(path_type=Path),
    help="Write the lanes as a drawing to this file instead of printing them.",
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
            from stagepost.cli.trace.follow import follow_trace

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
