"""`stagepost pipeline`: signed receipts into tables, and answers out of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.pipeline import (
    TablesAddress,
    before_spark,
    is_range_asked,
    keep_ms_from,
    source_from,
    survey_range,
    with_source,
)
from stagepost.cli.options.shared import RenamedOption, json_option, path_option
from stagepost.cli.pipeline.progress import PipelineProgress, print_counts, watched
from stagepost.cli.pipeline.sql import catalog, jars, show, sql
from stagepost.cli.pipeline.submit import pack, submit
from stagepost.ground.files.durations import parse_duration

if TYPE_CHECKING:
    from stagepost.pipeline.tables.store import TableStore

tables_option = click.option(
    "--tables", "folder", required=True, type=TablesAddress(), help="Folder or address of the tables."
)
master_option = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Spark master: local[*] runs Spark in this process, spark://HOST:PORT on a cluster.",
)
sets_option = path_option(
    "--validator-sets",
    "sets_path",
    help="Validator-sets file, or a data folder with its sessions: the keys that may sign receipts. [DATA]",
)
genesis_option = path_option(
    "--genesis",
    "genesis_path",
    help="Genesis or network file, by which proofs are checked.  [default: that of --data or of the tables, if any]",
)
written_option = click.option(
    "--tables",
    "--out",
    "out",
    cls=RenamedOption,
    type=TablesAddress(),
    help="Folder or address of the tables to write. [DATA/tables]",
)


def _found_in(data: Path | None, out: TableStore | None, sets_path: Path | None) -> tuple[TableStore, Path]:
    """Return the tables and the sets file that were given, else those of the data folder."""
    from stagepost.pipeline.tables.store import TableStore
    from stagepost.web.access.settings import TABLES_FOLDER

    if data is not None:
        return out or TableStore.at(data / TABLES_FOLDER), sets_path or data
    if out is None or sets_path is None:
        name = "--tables" if out is None else "--validator-sets"
        raise click.UsageError(f"Missing option '{name}': only a folder given with --data has its own.")
    return out, sets_path


as_of_option = click.option(
    "--as-of",
    "as_of_ms",
    type=click.IntRange(min=0),
    metavar="MS",
    help="Time of the verdicts, in Unix milliseconds.",
)
timeout_option = click.option(
    "--message-timeout",
    "timeout_ms",
    type=click.IntRange(min=0),
    metavar="MS",
    help="Time after which a message that is not final expires.  [default: from the sets file]",
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
    """Make verified tables from topics and dumps with Spark, and read them without Spark.

    \b
    Example:
      stagepost pipeline backfill --input dump.jsonl --validator-sets sets.json --tables tables
      stagepost pipeline export messages --tables tables --out messages.csv
    """


@pipeline.command()
@path_option("--input", "inputs", multiple=True, help="Dump to read; may be repeated.")
@with_source
@click.option("--partition", type=click.IntRange(min=0), help="Read this partition of the topics only.")
@click.option(
    "--from", "first", metavar="OFFSET|TIME", help="First offset to read, or the time of the first record."
)
@click.option("--to", "last", metavar="OFFSET|TIME", help="Offset or time to stop before.")
@sets_option
@genesis_option
@written_option
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
    sets_path: Path | None,
    genesis_path: Path | None,
    out: TableStore | None,
    as_of_ms: int | None,
    timeout_ms: int | None,
    master: str,
    as_json: bool,
    **where: Any,
) -> None:
    """Read dumps, or a range of topics, into the tables. Records that the tables hold already change nothing.

    \b
    Example:
      stagepost pipeline backfill --input dump.jsonl --validator-sets sets.json --tables tables
      stagepost pipeline backfill --data stagepost-data --topic stagepost.remp.statuses --from 2026-01-31T12:00:00Z \\
        --validator-sets sets.json --tables tables
    """
    from stagepost.pipeline.sources.dumps import survey
    from stagepost.pipeline.spark import refuse_missing_packages, start_session
    from stagepost.pipeline.tables.own_files import require_own_place

    progress = PipelineProgress()
    out, sets_path = _found_in(where["data"], out, sets_path)
    is_range = is_range_asked(context, inputs, where, (partition, first, last))
    refuse_missing_packages()
    require_own_place(out)
    sets_file, genesis = _read_sets(sets_path), _read_genesis(genesis_path, where["data"])
    if is_range:
        topics, surveyed = survey_range(where, partition, first, last)
        progress.say(f"{surveyed.rows} records in {len(surveyed.ranges)} ranges")
    else:
        dumps = [survey(path) for path in inputs]
    progress.say("starting Spark (about 10 s) …")
    spark = start_session("stagepost backfill", master=master, is_short=True)
    from stagepost.pipeline.driver import Evaluation
    from stagepost.pipeline.jobs import backfill as run_backfill
    from stagepost.pipeline.jobs import backfill_range

    evaluation = Evaluation(as_of_ms, timeout_ms)
    if is_range:
        manifest = backfill_range(
            spark, topics, surveyed, sets_file, out, evaluation, genesis=genesis, at_point=progress.at_point
        )
    else:
        manifest = run_backfill(
            spark, dumps, sets_file, out, evaluation, genesis=genesis, at_point=progress.at_point
        )
    print_counts(manifest, out, as_json=as_json)


@pipeline.command()
@with_source
@sets_option
@genesis_option
@written_option
@click.option("--once", is_flag=True, help="Read the records that are there now, then end.")
@click.option(
    "--every",
    "every_s",
    type=Duration(),
    default="250ms",
    show_default=True,
    help="Time between the beginnings of two batches; after a longer batch the next begins at once.",
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
    "--keep",
    "keep_s",
    type=Duration(),
    metavar="30d",
    help="Drop days that are older.  [default: pipeline.keep of the settings, else every day is kept]",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Port of /metrics, /healthz and /readyz on 127.0.0.1; 0 takes a free port.",
)
@master_option
@json_option
def run(
    sets_path: Path | None,
    genesis_path: Path | None,
    out: TableStore | None,
    once: bool,
    every_s: float,
    max_rows: int,
    timeout_ms: int | None,
    keep_s: float | None,
    metrics_port: int | None,
    master: str,
    as_json: bool,
    **where: Any,
) -> None:
    """Follow topics into the tables until the command is stopped; each record counts exactly once.

    \b
    Example:
      stagepost pipeline run --once --data stagepost-data
      stagepost pipeline run --address 127.0.0.1:4200 --validator-sets sets.json --tables tables --metrics-port 9101
      stagepost pipeline run --kafka 127.0.0.1:9092 --validator-sets sets.json --tables tables
    """
    from stagepost.pipeline.spark import refuse_missing_packages, start_session
    from stagepost.pipeline.tables.own_files import require_own_place

    out, sets_path = _found_in(where["data"], out, sets_path)
    source = source_from(where)
    refuse_missing_packages()
    require_own_place(out)
    _read_sets(sets_path)
    find_genesis = partial(_read_genesis, genesis_path, where["data"])
    find_genesis()  # a wrong file is refused now
    from stagepost.pipeline.stream import StreamOptions

    keep_ms = keep_ms_from(keep_s, where["kafka_config"])
    options = StreamOptions(
        None, sets_path, out, once, every_s, max_rows, timeout_ms, source, keep_ms, find_genesis
    )
    settings = before_spark(source, where, sets_path, out)
    progress = PipelineProgress()

    def told(point: str) -> None:
        at_point(point)
        if once:
            progress.at_point(point)

    with watched(out, metrics_port, progress.say) as at_point:
        progress.say("starting Spark (about 10 s) …")
        spark = start_session("stagepost run", master=master, settings=settings, is_short=True)
        from stagepost.pipeline.stream import follow

        manifest = follow(spark, options, say=progress.say, at_point=told)
    print_counts(manifest, out, as_json=as_json)


@pipeline.command()
@tables_option
@click.option("--keep", "keep_s", type=Duration(), help="Drop the days that are older than this.")
@master_option
@json_option
def compact(folder: TableStore, keep_s: float | None, master: str, as_json: bool) -> None:
    """Compact the files of every day, and drop old days if asked to.

    \b
    Example:
      stagepost pipeline compact --tables tables --keep 30d
    """
    from stagepost.ground.files.audit import record_action, user_name
    from stagepost.pipeline.spark import start_session
    from stagepost.pipeline.tables.manifest import require_manifest
    from stagepost.pipeline.tables.own_files import require_own_place

    require_own_place(folder)
    require_manifest(folder)
    if folder.is_local:  # object storage appends to no file; its own log of accesses says who it was
        what = "pipeline compact" if keep_s is None else f"pipeline compact --keep {keep_s:.0f}s"
        record_action(folder.folder, what, through="cli", who=user_name())
    progress = PipelineProgress()
    progress.say("starting Spark (about 10 s) …")
    spark = start_session("stagepost compact", master=master, is_short=True)
    from stagepost.pipeline.jobs import compact as run_compact

    keep_ms = None if keep_s is None else int(keep_s * 1_000)
    manifest, removed = run_compact(spark, folder, keep_ms=keep_ms)
    progress.say(f"{removed} records forgotten")
    print_counts(manifest, folder, as_json=as_json)


@pipeline.command(name="import")
@click.option(
    "--from",
    "source",
    required=True,
    type=TablesAddress(),
    help="Tables of a former release, or tables to derive again.",
)
@click.option("--out", required=True, type=TablesAddress(), help="Folder or address of the new tables.")
@master_option
@json_option
def import_(source: TableStore, out: TableStore, master: str, as_json: bool) -> None:
    """Derive new tables from the records of other tables, which are only read: of a former release, or damaged ones.

    A stream goes on from the new tables where it ended in the others.

    \b
    Example:
      stagepost pipeline import --from tables --out tables-2
    """
    from stagepost.pipeline.spark import refuse_missing_packages, start_session
    from stagepost.pipeline.tables.former import import_source
    from stagepost.pipeline.tables.own_files import require_own_place

    refuse_missing_packages()
    if out.address == source.address or out.address.startswith(f"{source.address}/"):
        raise click.UsageError("--out lies in the tables of --from: choose another folder or address")
    require_own_place(out)
    found = import_source(source)
    progress = PipelineProgress()
    progress.say("starting Spark (about 10 s) …")
    spark = start_session("stagepost import", master=master, is_short=True)
    from stagepost.pipeline.jobs import import_tables

    print_counts(import_tables(spark, found, out, say=progress.say), out, as_json=as_json)


@pipeline.command()
@tables_option
@json_option
@click.pass_context
def check(context: click.Context, folder: TableStore, as_json: bool) -> None:
    """Compute the tables again from the records, without Spark, and compare. Exit code 1 if they differ.

    \b
    Example:
      stagepost pipeline check --tables tables
    """
    from stagepost.pipeline.spark import refuse_missing_packages
    from stagepost.pipeline.tables.manifest import kept_sets, require_manifest
    from stagepost.pipeline.tables.recomputation import DIFFERENCES_SHOWN_MAX, check_tables
    from stagepost.remp.validator_sets import parse_validator_sets

    refuse_missing_packages(("duckdb",))
    sets_file = kept_sets(folder, require_manifest(folder))
    found = check_tables(folder, parse_validator_sets(sets_file, "the kept validator sets"))
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
@path_option("--out", required=True, help="File to write; its ending is .parquet, .csv or .jsonl.")
@json_option
def export(table: str, folder: TableStore, out: Path, as_json: bool) -> None:
    """Write one table to one file, without Spark, as of the last run.

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
@path_option("--out", required=True, help="HTML file to write.")
def report(folder: TableStore, out: Path) -> None:
    """Write one HTML page, without other files, with the verdicts, delays, validators and alerts of the tables.

    \b
    Example:
      stagepost pipeline report --tables tables --out report.html
    """
    from stagepost.pipeline.spark import refuse_missing_packages
    from stagepost.pipeline.tables.page import write_page

    refuse_missing_packages(("duckdb",))
    write_page(folder, out)
    click.echo(str(out))


pipeline.add_command(catalog)
pipeline.add_command(jars)
pipeline.add_command(pack)
pipeline.add_command(show)
pipeline.add_command(sql)
pipeline.add_command(submit)


def _read_sets(path: Path) -> bytes:
    """The content of sets that are in order; `ConfigFaults` otherwise."""
    from stagepost.pipeline.sources.sets_source import SetsSource
    from stagepost.remp.validator_sets import parse_validator_sets

    content = SetsSource(path).content()
    parse_validator_sets(content, str(path))
    return content


def _read_genesis(path: Path | None, data: Path | None) -> bytes | None:
    """Return the genesis in the file, or in the data folder; None where there is none."""
    from stagepost.trace.kept_proofs import GENESIS_FILE, load_genesis

    if path is None:
        path = None if data is None else data / GENESIS_FILE
        if path is None or not path.exists():
            return None
    return load_genesis(path).encode()
