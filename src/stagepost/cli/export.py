"""`stagepost export`: messages and receipts of the tables, by filter, as one file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from stagepost.cli.options.shared import json_option, path_option
from stagepost.errors import StagepostError

F = TypeVar("F", bound=Callable[..., Any])

FILTERS = {
    "id": ("DIGITS", "Message id, or its first digits."),
    "outcome": ("VERDICT,…", "Verdicts, such as rejected,expired."),
    "kind": ("KIND,…", "Kinds of receipts, such as Finalized,RejectedByQueue."),
    "since": ("TIME", "From this time on: ISO 8601, Unix milliseconds, or a time ago (10m)."),
    "until": ("TIME", "Before this time; the same forms."),
    "topic": ("NAME", "Topic that the message was sent to."),
    "pool": ("POOL", "Pool that signed the DMQ message: 56 hexadecimal digits or pool1…"),
    "validator": (
        "NAME|KEY|V1",
        "Validator: its name, if the tables lie in the node's data folder; the first digits of its key id; or its place in the session that decided.",
    ),
}
"""The names are those of `pipeline.message_filter`, which the API and URLs use as well."""


def with_filters(command: F) -> F:
    for name, (shape, text) in reversed(FILTERS.items()):
        command = click.option(f"--{name}", name, metavar=shape, help=text)(command)
    return command


@click.command()
@click.argument("what", type=click.Choice(["messages", "receipts"]), default="messages")
@path_option("--tables", "folder", required=True, help="Folder of the tables.")
@with_filters
@click.option(
    "--to",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    help="Format of the file. [by the ending of --out, else csv]",
)
@click.option(
    "--out",
    required=True,
    metavar="PATH",
    type=click.Path(allow_dash=True, readable=False),
    help="File to write; - for standard output.",
)
@json_option
def export(what: str, folder: Path, to: str | None, out: str, as_json: bool, **given: str | None) -> None:
    """Write the messages of the tables, or their receipts that count, that fulfil all filters given.

    \b
    Example:
      stagepost export --tables tables --outcome rejected,expired --since 1d --to csv --out troubles.csv
      stagepost export receipts --tables tables --id 16923245 --to jsonl --out -
    """
    from stagepost.pipeline.spark import refuse_missing_packages
    from stagepost.pipeline.tables.filter import Exported, FileFormat, MessageFilter
    from stagepost.pipeline.tables.filter import export as write
    from stagepost.pipeline.tables.reader import STANDARD_OUTPUT, Reader

    refuse_missing_packages(("duckdb",))
    wanted = MessageFilter.read(given, time.time(), _names_beside(folder))
    suffix = Path(out).suffix.removeprefix(".")
    if to is None and suffix and out != STANDARD_OUTPUT and suffix not in tuple(FileFormat):
        raise click.UsageError(f"no file of type .{suffix} can be written; give --to csv, jsonl or parquet")
    form = FileFormat(to or suffix or FileFormat.CSV)
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


def _names_beside(tables: Path) -> Mapping[bytes, str]:
    """Return the names of validators by their key ids, from the sets in the folder that holds the tables; no name if there
    are none or nobody can read them."""
    from stagepost.remp.validator_sets import SETS_FILE
    from stagepost.trace.session_records import SetsFolder

    folder = SetsFolder(tables.resolve().parent / SETS_FILE)
    with suppress(StagepostError):
        folder.look()
    return folder.sets.names
