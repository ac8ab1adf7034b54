"""The tables without Spark: DuckDB over the files that the manifest names. For the CLI, dashboards and notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.manifest import RECORDS, Manifest, read_manifest
from stagepost.remp.status import KINDS

if TYPE_CHECKING:
    import duckdb

STATUSES = "stagepost.remp.statuses"
REPORTS = (
    "messages",
    "validators",
    "stage_latency",
    "rejections",
    "replays",
    "complaints",
    "alerts",
    "dmq_messages",
    "delivery_events",
)
"""Evaluated by the last run; `receipts` and `quarantine` are views on the records."""

TABLES = ("messages", "receipts", "quarantine", *REPORTS[1:])
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


class Reader:
    """One moment of a tables folder. `sql` takes any query over the tables by their names."""

    def __init__(self, folder: Path) -> None:
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
        for name, files in (manifest.reports.files if manifest.reports else {}).items():
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
        """One file, its format by its ending; the number of rows. Lists are JSON in CSV, bytes are hexadecimal there."""
        form = FORMATS.get(out.suffix)
        if form is None:
            raise ConfigError(
                f"{out} ends in none of {', '.join(FORMATS)}", advice="name another file with --out"
            )
        self.known(name)
        columns = self.connection.execute(f"DESCRIBE {name}").fetchall()
        chosen = ", ".join(_column(column[0], column[1], out.suffix) for column in columns)
        temporary = out.with_name(f".{out.name}.new")
        order = ", ".join(f'"{column[0]}"' for column in columns[:3])
        text = str(temporary).replace("'", "''")
        try:
            self.connection.execute(
                f"COPY (SELECT {chosen} FROM {name} ORDER BY {order}) TO '{text}' ({form})"
            )
            temporary.replace(out)
        except Exception as error:
            temporary.unlink(missing_ok=True)
            raise StorageError(f"cannot write {out}: {error}", advice="see --out") from error
        counted = self.connection.execute(f"SELECT count(*) FROM {name}").fetchone()
        return int(counted[0]) if counted else 0

    def close(self) -> None:
        self.connection.close()


def _parquet(folder: Path, files: list[str]) -> str:
    names = ", ".join("'" + str((folder / name).absolute()).replace("'", "''") + "'" for name in files)
    return f"SELECT * FROM read_parquet([{names}])"


def _column(name: str, kind: str, suffix: str) -> str:
    if suffix == ".parquet":
        return f'"{name}"'
    if kind == "BLOB":
        return f'lower(hex("{name}")) AS "{name}"'
    return (
        f'to_json("{name}")::VARCHAR AS "{name}"' if kind.endswith("[]") and suffix == ".csv" else f'"{name}"'
    )
