"""`stagepost pipeline`: signed receipts into tables, and answers out of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.pipeline import (
    before_spark,
    is_range_asked,
    source_from,
    survey_range,
    with_source,
)
from stagepost.cli.pipeline.counts import print_counts
from stagepost.cli.pipeline.submit import pack, submit
from stagepost.cli.pipeline.watch import watched
from stagepost.ground.files.durations import parse_duration

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
tables_option = click.option(
    "--tables", "folder", required=True, type=click.Path(path_type=Path), help="Folder of the tables."
)
master_option = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Where Spark runs: embedded, or a cluster's address.",
)
sets_option = click.option(
    "--validator-sets",
    "sets_path",
    required=True,
    type=click.Path(path_type=Path),
    help="Who may sign receipts.",
)
as_of_option = click.option(
    "--as-of",
    "as_of_ms",
    type=click.IntRange(min=0),
    metavar="MS",
    help="Evaluate for this moment, in Unix ms.",
)
timeout_option = click.option(
    "--message-timeout",
    "timeout_ms",
    type=click.IntRange(min=0),
    metavar="MS",
    help="How long a message lives; default: as the sets file says.",
)


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer releases
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group()
def pipeline() -> None:
    """Verified tables from topics and dumps, made by Spark and read without it.

    \b
    Example:
      stagepost pipeline backfill --input dump.jsonl --validator-sets sets.json --out tables
      stagepost pipeline export messages --tables tables --out messages.csv
    """


@pipeline.command()
@click.option(
    "--input", "inputs", multiple=True, type=click.Path(path_type=Path), help="A dump; may be repeated."
)
@with_source
@click.option("--partition", type=click.IntRange(min=0), help="Of a topic: this one alone.")
@click.option("--from", "first", metavar="OFFSET|TIME", help="Of a topic: from this record, or moment, on.")
@click.option("--to", "last", metavar="OFFSET|TIME", help="Of a topic: up to, not including, this one.")
@sets_option
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the tables.")
@as_of_option
@timeout_option
@master_option
@json_option
@click.pass_context
def backfill(
    context: click.Context,
    /,
    inputs: Sequence[Path],
    partition: int | None,
    first: str | None,
    last: str | None,
    sets_path: Path,
    out: Path,
    as_of_ms: int | None,
    timeout_ms: int | None,
    master: str,
    as_json: bool,
    **where: Any,
) -> None:
    """Take dumps, or a range of topics, into the tables and evaluate them all. What is in already changes nothing.

    \b
    Example:
      stagepost pipeline backfill --input dump.jsonl --validator-sets sets.json --out tables
      stagepost pipeline backfill --data stagepost-data --topic stagepost.remp.statuses --from 2026-01-31T12:00:00Z \\
        --validator-sets sets.json --out tables
    """
    from stagepost.pipeline.sources.dumps import survey
    from stagepost.pipeline.spark import refuse_missing_packages, start_session
    from stagepost.pipeline.tables.own_files import require_own_folder

    is_range = is_range_asked(context, inputs, where, (partition, first, last))
    refuse_missing_packages()
    require_own_folder(out)
    sets_file = _read_sets(sets_path)
    if is_range:
        topics, surveyed = survey_range(where, partition, first, last)
        _say(f"{surveyed.rows} records in {len(surveyed.ranges)} ranges")
    else:
        dumps = [survey(path) for path in inputs]
    _say("starting Spark (about 10 s) …")
    spark = start_session("stagepost backfill", master=master, is_short=True)
    from stagepost.pipeline.driver import Evaluation
    from stagepost.pipeline.jobs import backfill as run_backfill
    from stagepost.pipeline.jobs import backfill_range

    evaluation = Evaluation(as_of_ms, timeout_ms)
    if is_range:
        manifest = backfill_range(spark, topics, surveyed, sets_file, out, evaluation)
    else:
        manifest = run_backfill(spark, dumps, sets_file, out, evaluation)
    print_counts(manifest, out, as_json=as_json)


@pipeline.command()
@with_source
@sets_option
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the tables.")
@click.option("--once", is_flag=True, help="Take what is there now, then end.")
@click.option(
    "--every",
    "every_s",
    type=Duration(),
    default="250ms",
    show_default=True,
    help="How often news are looked for; a batch that takes longer is followed at once.",
)
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    help="Records in one batch at most.",
)
@timeout_option
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve /metrics, /healthz and /readyz at 127.0.0.1 while it runs; 0 takes a free port.",
)
@master_option
@json_option
def run(
    sets_path: Path,
    out: Path,
    once: bool,
    every_s: float,
    max_rows: int,
    timeout_ms: int | None,
    metrics_port: int | None,
    master: str,
    as_json: bool,
    **where: Any,
) -> None:
    """Follow topics into the tables, until it is stopped; each record counts exactly once.

    \b
    Example:
      stagepost pipeline run --once --data stagepost-data --validator-sets sets.json --out tables
      stagepost pipeline run --address 127.0.0.1:4200 --validator-sets sets.json --out tables --metrics-port 9101
      stagepost pipeline run --kafka 127.0.0.1:9092 --validator-sets sets.json --out tables
    """
    from stagepost.pipeline.spark import refuse_missing_packages, start_session
    from stagepost.pipeline.tables.own_files import require_own_folder

    source = source_from(where)
    refuse_missing_packages()
    require_own_folder(out)
    _read_sets(sets_path)
    from stagepost.pipeline.stream import StreamOptions

    options = StreamOptions(None, sets_path, out, once, every_s, max_rows, timeout_ms, source)
    settings = before_spark(source, where, sets_path, out)
    with watched(out, metrics_port, _say) as at_point:
        _say("starting Spark (about 10 s) …")
        spark = start_session("stagepost run", master=master, settings=settings, is_short=True)
        from stagepost.pipeline.stream import follow

        manifest = follow(spark, options, say=_say, at_point=at_point)
    print_counts(manifest, out, as_json=as_json)


@pipeline.command()
@tables_option
@click.option(
    "--keep", "keep_s", type=Duration(), help="Forget messages of which nothing was heard for so long."
)
@master_option
@json_option
def compact(folder: Path, keep_s: float | None, master: str, as_json: bool) -> None:
    """Fold all batches into one, and forget old messages if asked to.

    \b
    Example:
      stagepost pipeline compact --tables tables --keep 30d
    """
    from stagepost.pipeline.spark import start_session
    from stagepost.pipeline.tables.manifest import read_manifest
    from stagepost.pipeline.tables.own_files import require_own_folder

    require_own_folder(folder)
    if read_manifest(folder) is None:
        raise _no_tables(folder)
    _say("starting Spark (about 10 s) …")
    spark = start_session("stagepost compact", master=master, is_short=True)
    from stagepost.pipeline.jobs import compact as run_compact

    keep_ms = None if keep_s is None else int(keep_s * 1_000)
    manifest, removed = run_compact(spark, folder, keep_ms=keep_ms)
    _say(f"{removed} records forgotten")
    print_counts(manifest, folder, as_json=as_json)


@pipeline.command()
@tables_option
@json_option
@click.pass_context
def check(context: click.Context, folder: Path, as_json: bool) -> None:
    """Work everything out again from the records, without Spark, and compare with the tables. Exit 1 if they differ.

    \b
    Example:
      stagepost pipeline check --tables tables
    """
    from stagepost.pipeline.spark import refuse_missing_packages
    from stagepost.pipeline.tables.manifest import kept_sets, read_manifest
    from stagepost.pipeline.tables.recomputation import DIFFERENCES_SHOWN_MAX, check_tables
    from stagepost.remp.validator_sets import parse_validator_sets

    refuse_missing_packages(("duckdb",))
    manifest = read_manifest(folder)
    if manifest is None:
        raise _no_tables(folder)
    found = check_tables(folder, parse_validator_sets(kept_sets(folder, manifest), "the kept validator sets"))
    for difference in found.differences[:DIFFERENCES_SHOWN_MAX]:
        if as_json:
            click.echo(json.dumps(difference._asdict(), default=str))
        else:
            text = f"{difference.subject} {difference.column}: the table has {difference.in_table}, "
            click.echo(text + f"recomputed {difference.recomputed}")
    summary = {"records": found.rows, "messages": found.messages, "differences": len(found.differences)}
    words = f"{found.rows} records, {found.messages} messages, {len(found.differences)} differences"
    click.echo(json.dumps(summary) if as_json else words)
    if found.differences:
        context.exit(NOT_THAT_OUTCOME)


@pipeline.command()
@click.argument("table")
@tables_option
@click.option("--out", required=True, type=click.Path(path_type=Path), help="FILE.parquet, .csv or .jsonl")
@json_option
def export(table: str, folder: Path, out: Path, as_json: bool) -> None:
    """Write one table as one file, without Spark, as of the last run.

    \b
    Example:
      stagepost pipeline export messages --tables tables --out messages.csv
    """
    from stagepost.pipeline.spark import refuse_missing_packages
    from stagepost.pipeline.tables.reader import Reader

    refuse_missing_packages(("duckdb",))
    reader = Reader(folder)
    try:
        rows = reader.export(table, out)
    finally:
        reader.close()
    click.echo(
        json.dumps({"table": table, "rows": rows, "file": str(out)}) if as_json else f"{table}: {rows} rows"
    )


@pipeline.command()
@tables_option
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The page: one HTML file.")
def report(folder: Path, out: Path) -> None:
    """Write one page with the verdicts, delays, validators and alerts of the tables, complete in itself.

    \b
    Example:
      stagepost pipeline report --tables tables --out report.html
    """
    from stagepost.pipeline.spark import refuse_missing_packages
    from stagepost.pipeline.tables.page import write_page

    refuse_missing_packages(("duckdb",))
    write_page(folder, out)
    click.echo(str(out))


pipeline.add_command(pack)
pipeline.add_command(submit)


def _read_sets(path: Path) -> bytes:
    """The content of a file that is in order; `ConfigFaults` otherwise."""
    from stagepost.remp.validator_sets import ValidatorSets

    ValidatorSets.load(path)
    return path.read_bytes()


def _no_tables(folder: Path) -> Exception:
    from stagepost.errors import StorageError

    return StorageError(
        f"there are no tables in {folder}", advice="make them with `stagepost pipeline backfill`"
    )


def _say(text: str) -> None:
    """Progress is for people who watch."""
    if sys.stderr.isatty():
        click.echo(text, err=True)
