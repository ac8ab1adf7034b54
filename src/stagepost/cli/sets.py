"""`stagepost sets`: who may sign receipts, as a data folder has it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from stagepost.cli.options.shared import path_option


@click.group()
def sets() -> None:
    """Write the validator sets that a full node has seen.

    \b
    Example:
      stagepost sets export --data stagepost-data --out sets.json
    """


@sets.command()
@path_option("--data", required=True, metavar="DIR", help="Data folder of a full node or devnet.")
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(allow_dash=True, readable=False),
    help="File to write; - for standard output.",
)
def export(data: Path, out: str) -> None:
    """Write the validator-sets file that `verify`, `trace` and the pipeline need.

    The file holds every session that the node knows, each with its validators and the time in which they sign.

    \b
    Example:
      stagepost sets export --data stagepost-data --out sets.json
    """
    import json

    from stagepost.errors import StorageError
    from stagepost.full_node.known_sets import sets_document
    from stagepost.trace.session_records import load_sets

    # Read and written anew, so that nobody is given a file that nobody can use.
    found = load_sets(data)
    content = json.dumps(sets_document(found), indent=1) + "\n"
    if out == "-":
        sys.stdout.write(content)
        return
    try:
        Path(out).write_text(content, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{out} cannot be written: {error.strerror}", advice="check the folder and the space left on it"
        ) from error
    click.echo(f"{len(found.sessions)} sessions written to {out}", err=True)
