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

_PREFIX = re.compile(rf"[0-9a-fA-F]{{{PREFIX_DIGITS_MIN},64}}")


def _prefix(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if _PREFIX.fullmatch(value) is None:
        raise click.BadParameter(
            f"{value!r} is not a message id; give at least {PREFIX_DIGITS_MIN} of its hexadecimal digits",
            context,
            parameter,
        )
    return value.lower()


@click.command()
@click.argument("prefix", metavar="ID", callback=_prefix)
@click.option(
    "--data", metavar="DIR", type=click.Path(path_type=Path), help="Data folder of a full node or devnet."
)
@click.option(
    "--dump",
    metavar="FILE|-",
    type=click.Path(allow_dash=True, readable=False),
    help="Dump of topics, or a file of receipts. [from --data]",
)
@click.option(
    "--validator-sets",
    "sets_path",
    type=click.Path(path_type=Path),
    help="Who may sign: the validator-sets file. [from --data]",
)
@click.option("--as-of", "as_of_ms", type=click.IntRange(min=0), help="Unix milliseconds; default: now.")
@click.option(
    "--svg", "drawing_path", type=click.Path(path_type=Path), help="Draw the lanes into this file instead."
)
@click.option(
    "--only-trouble", is_flag=True, help="Only lanes in which something went wrong, or nothing came."
)
@click.option(
    "--follow", is_flag=True, help="Go on until it has ended: drawn anew, or a line for each change."
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object: the row of `messages`, and all receipts."
)
@click.pass_context
def trace(
    context: click.Context,
    prefix: str,
    data: Path | None,
    dump: str | None,
    sets_path: Path | None,
    as_of_ms: int | None,
    drawing_path: Path | None,
    only_trouble: bool,
    follow: bool,
    as_json: bool,
) -> int:
    """Every receipt of one message. ID may be the beginning of an id, eight digits or more.

    \b
    Example:
      stagepost trace 16923245 --data stagepost-data
      stagepost trace 16923245 --data stagepost-data --follow
      stagepost trace 16923245 --dump statuses.jsonl --validator-sets sets.json
    """
    from stagepost.cli.trace.lanes import trace_lines
    from stagepost.trace.reading import NotOneMessage, trace_object

    if data is None and (dump is None or sets_path is None):
        raise click.UsageError("give --data, or both --dump and --validator-sets", context)
    now_ms = int(time.time() * 1_000) if as_of_ms is None else as_of_ms
    try:
        if follow:
            if data is None or dump or sets_path or drawing_path or as_of_ms is not None:
                raise click.UsageError("--follow reads what grows in --data, and nothing else", context)
            from stagepost.cli.trace.follow import follow_trace

            return follow_trace(data, prefix, only_trouble=only_trouble, as_json=as_json, color=context.color)
        result = _read(data, dump, sets_path, prefix, now_ms)
    except NotOneMessage as error:
        return _not_one(error)
    if drawing_path is not None:
        _draw(result, drawing_path)
    elif as_json:
        click.echo(json.dumps(trace_object(result), ensure_ascii=False))
    else:
        for line in trace_lines(result, only_trouble=only_trouble):
            click.echo(line, color=context.color)
    return 0


def _read(data: Path | None, dump: str | None, sets_path: Path | None, prefix: str, as_of_ms: int) -> Trace:
    from stagepost.remp.validator_sets import SETS_FILE, ValidatorSets
    from stagepost.remp.verdict.trace import trace_of
    from stagepost.trace.reading import dump_records, matching, only_one, read_trace, topic_records

    if data is not None and dump is None and sets_path is None:
        return read_trace(data, prefix, as_of_ms)
    if data is not None:
        sets_path = sets_path or data / SETS_FILE
    assert sets_path is not None, "one of the two was given"
    sets = ValidatorSets.load(sets_path)
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
    return NOT_THAT_OUTCOME
