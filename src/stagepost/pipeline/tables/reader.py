"""The tables without Spark: DuckDB over the files of the versions that the manifest names, so all of them are of one moment.
For the CLI, dashboards and notebooks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.dictionary import BY_NAME
from stagepost.pipeline.tables.damage import damage, damage_named
from stagepost.pipeline.tables.delta import DAY, held_files, open_table
from stagepost.pipeline.tables.manifest import MESSAGES, RECORDS, require_manifest
from stagepost.pipeline.tables.store import TableStore

if TYPE_CHECKING:
    import duckdb

CHECKED = ("messages", "receipts", "quarantine", "proofs")
REPORTS = tuple(name for name in BY_NAME if name not in (*CHECKED, RECORDS))
"""Evaluated by the last run that evaluated everything, day by day: their rows are of one day each, which they name last."""

BY_EPOCH = ("mithril_beacons", "mithril_pools")
"""Reports by epoch, which lasts several days: a changed day makes all rows of its epochs anew."""

TABLES = (*CHECKED, *REPORTS)
_READ = (*TABLES, RECORDS)
STANDARD_OUTPUT = "-"
APOSTROPHE = "'"
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Characters, one each: a spreadsheet takes a cell that begins with one of them for a formula. Some drop blanks of the
second kind first, and read the wide forms of the first kind as the plain ones."""
FORMATS = {".parquet": "FORMAT parquet", ".csv": "FORMAT csv, HEADER", ".jsonl": "FORMAT json"}

_OF_LIFE = ("verdict_alive", "verdict_over", "first_seen_ms", "days", "ends", "open_since_ms")
"""Columns of `messages` by which it can be shown for another moment."""
_AT_MOMENT = "CASE WHEN first_seen_ms < {over_before_ms} THEN verdict_over ELSE verdict_alive END AS verdict"


class Reader:
    """State of a tables folder at one version. `sql` takes any query over the tables by their names.

    `as_of_ms` shows `messages` as of another moment than the last run's; the other tables stay as they were evaluated.
    """

    def __init__(self, where: TableStore | Path, *, as_of_ms: int | None = None) -> None:
        import duckdb

        self.store = where if isinstance(where, TableStore) else TableStore.at(where)
        self.manifest = require_manifest(self.store)
        self.connection: duckdb.DuckDBPyConnection = duckdb.connect(":memory:")
        self._datasets: dict[str, Any] = {}
        self.connection.execute("SET TimeZone = 'UTC'")
        try:
            with damage_named(self.store, self.manifest.versions, _READ):
                self._show(as_of_ms)
        except BaseException:
            self.close()
            raise

    def _show(self, as_of_ms: int | None) -> None:
        """Make a view of every table that there is."""
        manifest = self.manifest
        if manifest.total.rows or manifest.total.other_rows:
            self._view(RECORDS, f"SELECT * EXCLUDE ({DAY}) FROM ({self._rows(RECORDS)})")
            for name in ("quarantine", "proofs"):
                self._view(name, f"SELECT * EXCLUDE ({DAY}) FROM ({self._rows(name)})")
            if not manifest.waiting:
                self._view("receipts", f"SELECT * EXCLUDE ({DAY}) FROM ({self._rows('receipts')})")
        if manifest.reports is not None:
            self._view(MESSAGES, self._messages(as_of_ms))
            for name in REPORTS if manifest.reports.are_all_made else ():
                # A report that is newer than the tables has no version yet; the next run makes it.
                if name in manifest.versions:
                    self._view(name, self._rows(name))

    def _rows(self, name: str) -> str:
        """Return a query for a whole table, with `day`; its files are those of the version in the manifest."""
        version = self.manifest.versions.get(name)
        table = None if version is None else open_table(self.store, name, version)
        if table is None:
            raise StorageError(
                f"there is no table {name} in {self.store.address}", advice="make the tables anew"
            )
        files = [one.path for one in held_files(table)]
        if self.store.is_local and files:
            from stagepost.pipeline.tables.look_up import files_query

            return files_query(self.connection, self.store, name, files)
        # Without files the columns are those of the table; on object storage the package reads.
        stored = f"stored_{name}"
        self._datasets[stored] = table.to_pyarrow_dataset()
        self.connection.register(stored, self._datasets[stored])
        return f"SELECT * FROM {stored}"

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return another connection to the same tables, for another thread or for a while."""
        cursor = self.connection.cursor()
        for name, found in self._datasets.items():
            cursor.register(name, found)
        return cursor

    def _messages(self, as_of_ms: int | None) -> str:
        assert self.manifest.reports is not None
        shown = f"* EXCLUDE ({', '.join((*_OF_LIFE, DAY))})"
        if as_of_ms is not None:
            over_before_ms = as_of_ms - self.manifest.reports.message_timeout_ms
            shown += f" REPLACE ({_AT_MOMENT.format(over_before_ms=over_before_ms)})"
        return f"SELECT {shown} FROM ({self._rows(MESSAGES)})"

    def _view(self, name: str, query: str) -> None:
        self.connection.execute(f"CREATE VIEW {name} AS {query}")

    def sql(self, query: str) -> list[dict[str, Any]]:
        with damage_named(self.store, self.manifest.versions, _READ):
            found = self.connection.execute(query)
            names = [column[0] for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def damage(self, text: str) -> StorageError | None:
        """Return the damaged file that made a query fail with `text`; None if all files are whole."""
        return damage(self.store, self.manifest.versions, _READ, text)

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
        query = f"SELECT * FROM {name} ORDER BY {order}"
        return self.copy(self.connection, name, query, (), out.suffix, str(out))

    def copy(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: str,
        query: str,
        parameters: Sequence[Any],
        suffix: str,
        out: str,
    ) -> int:
        """Do what `copy_rows` does by this reader's connection, or by a cursor of it; name the file that is damaged."""
        try:
            return copy_rows(connection, table, query, parameters, suffix, out)
        except StorageError as error:
            raise self.damage(error.text) or error from error

    def close(self) -> None:
        self.connection.close()


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
