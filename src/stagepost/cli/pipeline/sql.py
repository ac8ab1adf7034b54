"""`stagepost pipeline sql`, `show`, `catalog` and `jars`: questions to the tables without Spark, and what a Spark with Delta needs."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.shared import path_option

ROWS_ALIGNED_MAX = 1_000
"""Rows of a result whose columns are made as wide as their widest value; later rows use the same widths."""

address_option = click.option(
    "--tables", "address", required=True, metavar="DIR|s3://…", help="Folder or address of the tables."
)


@click.command()
@click.argument("query")
@address_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values, with a header.")
def sql(query: str, address: str, as_json: bool, as_csv: bool) -> None:
    """Answer one SELECT over the tables, without Spark. The tables are only read; docs/tables.md has their columns.

    \b
    Example:
      stagepost pipeline sql "SELECT verdict, count(*) AS messages FROM messages GROUP BY verdict" --tables tables
      stagepost pipeline sql "SELECT * FROM receipts WHERE day = DATE '2026-01-31'" --tables s3://lake/tables --json
    """
    from stagepost.pipeline.spark import refuse_missing_packages
    from stagepost.pipeline.tables.query import TableQuery, as_json_value
    from stagepost.pipeline.tables.store import TableStore

    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    refuse_missing_packages(("duckdb", "pyarrow", "deltalake"))
    with TableQuery(TableStore.at(address), query) as found:
        rows = ([as_json_value(value) for value in row] for row in found.rows())
        if as_json:
            for row in rows:
                click.echo(json.dumps(dict(zip(found.names, row, strict=True)), ensure_ascii=False))
        elif as_csv:
            _print_csv(found.names, rows)
        else:
            for line in _aligned(found.names, rows):
                click.echo(line)


@click.command()
@click.argument("message_id")
@address_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def show(context: click.Context, message_id: str, address: str, as_json: bool) -> None:
    """Show one message of the tables, without Spark: its verdict, its receipts and its quarantined records.

    Exit code 1 if the tables hold nothing of it.

    \b
    Example:
      stagepost pipeline show 16923245e0b1c4d27f0a9c358e4d6f7b16923245e0b1c4d27f0a9c358e4d6f7b --tables tables
    """
    from stagepost.pipeline.spark import refuse_missing_packages
    from stagepost.pipeline.tables.look_up import stored_message
    from stagepost.pipeline.tables.query import as_json_value
    from stagepost.pipeline.tables.store import TableStore

    refuse_missing_packages(("duckdb", "pyarrow", "deltalake"))
    found = stored_message(TableStore.at(address), message_id)
    if found is None:
        click.echo(f"{address} holds nothing of {message_id}", err=True)
        context.exit(NOT_THAT_OUTCOME)
    if as_json:
        click.echo(json.dumps(as_json_value(found._asdict()), ensure_ascii=False))
        return
    for name, value in (found.message or {"message_id": message_id}).items():
        if value is not None and value != []:
            click.echo(f"{name:<14}{as_json_value(value)}")
    for receipt in found.receipts:
        source, error = receipt["source_id"], receipt["error"]
        click.echo(
            f"{receipt['timestamp_ms']}  {receipt['kind']}  {source}" + (f"  {error}" if error else "")
        )
    for record in found.quarantined:
        click.echo(f"{record['arrived_ms']}  quarantined: {record['reason']}, {_place(record)}")


def _place(record: dict[str, Any]) -> str:
    return f"{record['topic']} partition {record['partition']} offset {record['offset']}"


@click.command()
@address_option
@click.option(
    "--database", default="stagepost", show_default=True, help="Schema of the catalog that gets them."
)
def catalog(address: str, database: str) -> None:
    """Print the statements that register the tables in the catalog of a Spark with Delta, for `spark-sql -f`.

    \b
    Example:
      stagepost pipeline catalog --tables tables > register.sql
      spark-sql -f register.sql
    """
    from stagepost.pipeline.catalog import statements
    from stagepost.pipeline.spark import refuse_missing_packages
    from stagepost.pipeline.tables.store import TableStore

    refuse_missing_packages(("pyarrow", "deltalake"))
    for statement in statements(TableStore.at(address), database):
        click.echo(f"{statement};")


@click.command()
@path_option("--jars", "folder", help="Where the jars go; default: the user's cache.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def jars(folder: Path | None, as_json: bool) -> None:
    """Fetch the jars of Delta Lake for Spark with Maven, unless they are there, and print the setting `spark.jars`.

    \b
    Example:
      stagepost pipeline jars
    """
    from stagepost.topics.kafka.jars import Artifacts, default_folder, fetch_jars

    fetched = fetch_jars(Artifacts.DELTA, folder or default_folder(os.environ), os.environ)
    paths = ",".join(str(jar.absolute()) for jar in fetched)
    click.echo(json.dumps({"spark.jars": paths}) if as_json else f"spark.jars={paths}")


def _print_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from stagepost.pipeline.tables.reader import csv_cell

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(csv_cell(value) if isinstance(value, str) else _shown(value) for value in row)


def _aligned(names: Sequence[str], rows: Iterator[list[Any]]) -> Iterator[str]:
    """Yield the lines of a table for people, numbers to the right."""
    first = [row for _, row in zip(range(ROWS_ALIGNED_MAX), rows, strict=False)]
    numbers = [
        all(isinstance(row[place], (int, float)) or row[place] is None for row in first)
        for place in range(len(names))
    ]
    shown = [[_shown(value) for value in row] for row in first]
    widths = [max(map(len, column)) for column in zip(names, *shown, strict=True)]
    yield _line(names, widths, numbers)
    for row in shown:
        yield _line(row, widths, numbers)
    for values in rows:
        yield _line([_shown(value) for value in values], widths, numbers)


def _line(texts: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> str:
    cells = (
        text.rjust(width) if is_number else text.ljust(width)
        for text, width, is_number in zip(texts, widths, numbers, strict=True)
    )
    return "  ".join(cells).rstrip()


def _shown(value: object) -> str:
    """Return a value as people see it; lists are JSON, and what is not there is empty."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, (list, dict, bool)) else str(value)
