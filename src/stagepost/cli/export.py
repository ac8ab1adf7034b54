"""`stagepost export`: messages and receipts of the tables, by filter, as one file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

FILTERS = {
    "id": ("DIGITS", "A message id, or the digits that it begins with."),
    "outcome": ("VERDICT,…", "Verdicts, as in rejected,expired."),
    "kind": ("KIND,…", "Kinds of receipts, as in Finalized,RejectedByQueue."),
    "since": ("TIME", "From this moment on: ISO 8601, Unix milliseconds, or how long ago (10m)."),
    "until": ("TIME", "Before this moment."),
    "topic": ("NAME", "The topic that the message was sent on."),
    "pool": ("POOL", "The pool that signed its DMQ message: 56 hexadecimal digits or pool1…"),
    "validator": (
        "V1|KEY",
        "A validator of the session that decided, or the digits that its key id begins with.",
    ),
}
"""The names are those of `pipeline.message_filter`, which the API and URLs use as well."""


def with_filters(command: F) -> F:
    for name, (shape, text) in reversed(FILTERS.items()):
        command = click.option(f"--{name}", name, metavar=shape, help=text)(command)
    return command


@click.command()
@click.argument("what", type=click.Choice(["messages", "receipts"]), default="messages")
@click.option(
    "--tables", "folder", required=True, type=click.Path(path_type=Path), help="Folder of the tables."
)
@with_filters
@click.option(
    "--to",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    help="The format.  [default: as --out ends, else csv]",
)
@click.option(
    "--out",
    required=True,
    metavar="PATH",
    type=click.Path(allow_dash=True, readable=False),
    help="The file; - for standard output.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def export(what: str, folder: Path, to: str | None, out: str, as_json: bool, **given: str | None) -> None:
    """Write the messages, or the receipts that count, which a filter lets through. Everything that is given must hold.

    \b
    Example:
      stagepost export --tables tables --outcome rejected,expired --since 1d --to csv --out troubles.csv
      stagepost export receipts --tables tables --id 16923245 --to jsonl --out -
    """
    from stagepost.pipeline.spark import refuse_missing_packages
    from stagepost.pipeline.tables.export import Exported, FileFormat
    from stagepost.pipeline.tables.export import export as write
    from stagepost.pipeline.tables.filter import MessageFilter
    from stagepost.pipeline.tables.reader import STANDARD_OUTPUT, Reader

    refuse_missing_packages(("duckdb",))
    wanted = MessageFilter.read(given, time.time())
    suffix = Path(out).suffix.removeprefix(".")
    form = FileFormat(to or (suffix if suffix in tuple(FileFormat) else FileFormat.CSV))
    if out == STANDARD_OUTPUT and form is FileFormat.PARQUET:
        raise click.UsageError("parquet needs a file: give one with --out")
    reader = Reader(folder)
    try:
        rows = write(reader, Exported(what), wanted, form, out)
    finally:
        reader.close()
    told = {"what": what, "rows": rows, "file": out, "filter": wanted.texts()}
    is_out_taken = out == STANDARD_OUTPUT
    click.echo(json.dumps(told) if as_json else f"{what}: {rows} rows", err=is_out_taken)
