"""The tables without Spark: DuckDB over the files that the manifest names. For the CLI, dashboards and notebooks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.tables.manifest import LIVES, RECORDS, Manifest, Reports, read_manifest
from stagepost.remp.receipts.status import KINDS
from stagepost.topics.names import STATUSES

if TYPE_CHECKING:
    import duckdb

REPORTS = (
    "validators",
    "stage_latency",
    "rejections",
    "replays",
    "complaints",
    "alerts",
    "dmq_messages",
    "delivery_events",
)
"""Evaluated by the last run. `receipts` and `quarantine` are views on the records, `messages` on the lives of messages."""

TABLES = ("messages", "receipts", "quarantine", *REPORTS)
STANDARD_OUTPUT = "-"
APOSTROPHE = "'"
FORMULA_STARTS = ("=", "+", "-", "@")
"""Characters, one each: a spreadsheet takes a cell that begins with one of them for a formula."""
FORMATS = {".parquet": "FORMAT parquet", ".csv": "FORMAT csv, HEADER", ".jsonl": "FORMAT json"}

# One row for each receipt that counts. A receipt that came under several hints stands with the least of them.
_RECEIPTS = """
    SELECT any_value(message_id) message_id, any_value(kind) kind, any_value(level) "level",
      any_value(status) status, any_value(timestamp_ms) timestamp_ms, any_value(source_id) source_id,
      any_value(role) "role", min(session_hint) session_hint, any_value(error) error, any_value(block_id) block_id,
      any_value(block_seqno) block_seqno, any_value(shard) shard, any_value(wc) wc,
      any_value(mc_block_id) mc_block_id, any_value(mc_block_seqno) mc_block_seqno
    FROM records JOIN kinds USING (kind)
    WHERE topic = '{statuses}' AND reason IS NULL GROUP BY records.message_id, signed_hash
"""
_QUARANTINE = """
    SELECT reason, topic, "partition", "offset", arrived_ms, message_id, value AS raw
    FROM records WHERE reason IS NOT NULL
"""
# Of several evaluations of one message the newest counts. Its verdict is one of two, by the moment that is asked for.
_NEWEST = """
    SELECT * FROM ({lives}) QUALIFY row_number() OVER (PARTITION BY message_id ORDER BY generation DESC) = 1
"""
_MESSAGES = """
    SELECT message_id, CASE WHEN {is_over} THEN verdict_over ELSE verdict_alive END AS verdict,
      * EXCLUDE (message_id, verdict_alive, verdict_over, first_seen_ms, receipts_before, generation)
    FROM ({lives})
"""


class Reader:
    """One state of a tables folder. `sql` takes any query over the tables by their names.

    `as_of_ms` shows `messages` as of another moment than the last run's; the other tables stay as they were evaluated.
    """

    def __init__(self, folder: Path, *, as_of_ms: int | None = None) -> None:
        import duckdb

        manifest = read_manifest(folder)
        if manifest is None:
            raise StorageError(
                f"there are no tables in {folder}",
                advice="make them with `stagepost pipeline backfill` or `run`, or see --tables",
            )
        self.manifest: Manifest = manifest
        self.connection: duckdb.DuckDBPyConnection = duckdb.connect(":memory:")
        self.connection.execute("SET TimeZone = 'UTC'")
        rows = ", ".join(f"('{kind.name}', {int(kind.level)}, '{kind.status.value}')" for kind in KINDS)
        self.connection.execute(
            f'CREATE TABLE kinds AS SELECT * FROM (VALUES {rows}) AS t(kind, "level", status)'
        )
        if records := manifest.files(RECORDS):
            self._view("records", _parquet(folder, records))
            self._view("receipts", _RECEIPTS.format(statuses=STATUSES))
            self._view("quarantine", _QUARANTINE)
        reports = manifest.reports
        if reports is not None and (lives := manifest.files(LIVES)):
            self._view("messages", _messages(folder, manifest, lives, reports, as_of_ms))
        for name, files in (reports.files if reports else {}).items():
            if files:
                self._view(name, _parquet(folder, files))

    def _view(self, name: str, query: str) -> None:
        self.connection.execute(f"CREATE VIEW {name} AS {query}")

    def sql(self, query: str) -> list[dict[str, Any]]:
        found = self.connection.execute(query)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def table(self, name: str) -> list[dict[str, Any]]:
        return self.sql(f"SELECT * FROM {self.known(name)}")

    def known(self, name: str) -> str:
        if name not in TABLES:
            raise ConfigError(f"no table is called {name!r}", advice=f"one of: {', '.join(TABLES)}")
        held = {row[0] for row in self.connection.execute("SELECT view_name FROM duckdb_views()").fetchall()}
        if name not in held:
            raise StorageError(
                f"the table {name} has not been made yet", advice="run the pipeline to its end once"
            )
        return name

    def export(self, name: str, out: Path) -> int:
        """Write a table as one file, whose ending is its format. Return the number of rows."""
        if out.suffix not in FORMATS:
            raise ConfigError(
                f"{out} ends in none of {', '.join(FORMATS)}", advice="name another file with --out"
            )
        self.known(name)
        columns = self.connection.execute(f"DESCRIBE {name}").fetchall()
        order = ", ".join(f'"{column[0]}"' for column in columns[:3])
        return copy_rows(
            self.connection, name, f"SELECT * FROM {name} ORDER BY {order}", (), out.suffix, str(out)
        )

    def close(self) -> None:
        self.connection.close()


def _messages(
    folder: Path, manifest: Manifest, lives: list[str], reports: Reports, as_of_ms: int | None
) -> str:
    query = _parquet(folder, lives)
    if sum(bool(batch.files.get(LIVES)) for batch in manifest.batches) > 1:
        query = _NEWEST.format(lives=query)
    moment_ms = reports.as_of_ms if as_of_ms is None else as_of_ms
    # Without a moment life is never over.
    is_over = (
        f"{moment_ms} - first_seen_ms > {reports.message_timeout_ms}" if moment_ms is not None else "false"
    )
    return _MESSAGES.format(is_over=is_over, lives=query)


def _parquet(folder: Path, files: list[str]) -> str:
    names = ", ".join("'" + str((folder / name).absolute()).replace("'", "''") + "'" for name in files)
    return f"SELECT * FROM read_parquet([{names}])"


def copy_rows(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    query: str,
    parameters: Sequence[Any],
    suffix: str,
    out: str,
) -> int:
    """Write the rows of `query`, which has the columns of `table`, in the format of `suffix`. Return their number.

    A file gets its name when it is complete; `-` is the standard output.
    """
    is_file = out != STANDARD_OUTPUT
    target = Path(out).with_name(f".{Path(out).name}.{os.getpid()}.new") if is_file else Path("/dev/stdout")
    try:
        described = connection.execute(f"DESCRIBE {table}").fetchall()
        columns = ", ".join(_file_column(name, kind, suffix) for name, kind, *_ in described)
        copied = connection.execute(
            f"COPY (SELECT {columns} FROM ({query})) TO {quoted(str(target))} ({FORMATS[suffix]})", parameters
        ).fetchone()
        if is_file:
            target.replace(out)
    except Exception as error:
        if is_file:
            target.unlink(missing_ok=True)
        raise StorageError(f"cannot write {out}: {error}", advice="see --out") from error
    return 0 if copied is None else int(copied[0])


def csv_cell(text: str) -> str:
    """Return `text` as a cell that a spreadsheet does not take for a formula: strangers have a say in some texts."""
    return APOSTROPHE + text if text.startswith(FORMULA_STARTS) else text


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _file_column(name: str, kind: str, suffix: str) -> str:
    """Return the SQL of a column. Bytes are hexadecimal outside of Parquet; in CSV, lists are JSON and texts are `csv_cell`s."""
    column = f'"{name}"'
    if suffix == ".parquet":
        return column
    if kind == "BLOB":
        return f"lower(hex({column})) AS {column}"
    if suffix == ".csv" and kind.endswith("[]"):
        return f"to_json({column})::VARCHAR AS {column}"
    if suffix == ".csv" and kind == "VARCHAR":
        starts = ", ".join(map(quoted, FORMULA_STARTS))
        neutral = f"concat({quoted(APOSTROPHE)}, {column})"
        return f"CASE WHEN left({column}, 1) IN ({starts}) THEN {neutral} ELSE {column} END AS {column}"
    return column
