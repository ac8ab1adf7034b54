"""SQL over the Delta tables without Spark: DuckDB on Arrow datasets, which read the files of one version of each table.

The connection has no way out: it opens no files, loads no extensions and writes nothing, whatever the query says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from math import isfinite
from typing import TYPE_CHECKING, Any

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.dictionary import BY_NAME, DAY_ENTRY
from stagepost.pipeline.sources.dumps import is_text
from stagepost.pipeline.tables.damage import damage_named
from stagepost.pipeline.tables.delta import open_table
from stagepost.pipeline.tables.manifest import MESSAGES, read_manifest
from stagepost.pipeline.tables.store import TableStore

if TYPE_CHECKING:
    import duckdb

MEMORY_MAX = "2GB"
"""Bytes that a query may use; one that needs more fails by name."""

ROWS_PER_FETCH = 1_000
STORED = "stored_"
"""Beginning of the name of a table with all its columns, also those that only the pipeline reads."""

MOMENTS = "messages_at"
"""Name of the view of `messages` as of another moment."""

_ALLOWED = frozenset({"SELECT", "EXPLAIN"})
_SETTINGS = (
    "TimeZone = 'UTC'",
    f"memory_limit = '{MEMORY_MAX}'",
    "python_enable_replacements = false",
    "enable_external_access = false",
    "lock_configuration = true",
)


class TableQuery:
    """A query over the tables of one store, all of one moment. `names` are the columns of its result."""

    def __init__(self, store: TableStore, query: str) -> None:
        import duckdb

        self._connection: duckdb.DuckDBPyConnection = duckdb.connect(":memory:")
        self._store, self._versions = store, dict[str, int]()
        try:
            with self._refused():
                statement = _only_statement(self._connection, query)
                self._versions.update(_register(self._connection, store))
                for setting in _SETTINGS:
                    self._connection.execute(f"SET {setting}")
                self._found = self._connection.execute(statement)
        except BaseException:
            self._connection.close()
            raise
        self.names = _told_apart(column[0] for column in self._found.description or ())

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Raise `ConfigError` for a query that is not a valid one, or `StorageError` for the damaged file that stands in its way."""
        import duckdb

        try:
            with damage_named(self._store, self._versions, self._versions):
                yield
        except duckdb.Error as error:
            text = next(
                (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
            )
            tables = ", ".join(self._versions)
            raise ConfigError(
                f"the query is not a valid one for these tables: {text}",
                advice=f"tables: {tables}; docs/tables.md has their columns"
                if tables
                else "see docs/tables.md",
            ) from error

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows, with a bounded number of them in memory at a time; `ConfigError` for one that cannot be computed."""
        with self._refused():
            while several := self._found.fetchmany(ROWS_PER_FETCH):
                yield from several

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> TableQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def as_json_value(value: object) -> object:
    """Return a value of a row as JSON has it: bytes as hexadecimal digits, times as ISO 8601 texts."""
    match value:
        case bytes() | bytearray():
            return value.hex()
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case list() | tuple():
            return [as_json_value(one) for one in value]
        case dict():
            return {str(name): as_json_value(one) for name, one in value.items()}
        case float() if not isfinite(value):
            return str(value)
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)


def _told_apart(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of columns, a later one of the same name with a number, as in `a, a_1`."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1))
        found.append(name if name not in found else next(one for one in numbered if one not in found))
    return tuple(found)


def _only_statement(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    if not is_text(query):
        raise ConfigError("the query is not valid UTF-8", advice="give one SELECT statement")
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise ConfigError(
            f"{len(statements)} statements were given, and not one", advice="give one SELECT statement"
        )
    kind = statements[0].type.name
    if kind not in _ALLOWED:
        raise ConfigError(
            f"the statement is of the kind {kind}: these tables are only read",
            advice="give one SELECT statement",
        )
    return statements[0]


def _register(connection: duckdb.DuckDBPyConnection, store: TableStore) -> dict[str, int]:
    """Show every table of the dictionary that is there, under its name, at the version that belongs to the others. Return these
    versions.
    """
    manifest = read_manifest(store)
    versions = {} if manifest is None else manifest.versions
    found = dict[str, int]()
    for name, entry in BY_NAME.items():
        table = open_table(store, name, versions.get(name))
        if table is not None:
            files = table.to_pyarrow_dataset()
            shown = (one.name for one in (*entry.columns, DAY_ENTRY) if one.name in files.schema.names)
            connection.register(f"{STORED}{name}", files)
            columns = ", ".join(f'"{column}"' for column in shown)
            connection.execute(f"CREATE VIEW {name} AS SELECT {columns} FROM {STORED}{name}")
            found[name] = table.version()
            if name == MESSAGES and manifest is not None and manifest.reports is not None:
                _show_moments(connection, columns, manifest.reports.message_timeout_ms)
    if not found:
        raise StorageError(
            f"there are no tables in {store.address}",
            advice="make them with `stagepost pipeline backfill` or `run`, or see --tables",
        )
    return found


def _show_moments(connection: duckdb.DuckDBPyConnection, columns: str, timeout_ms: int) -> None:
    """Let people ask for `messages_at(as_of_ms)`: the verdicts of another moment, in Unix ms, from the same receipts."""
    verdict = f"CASE WHEN first_seen_ms < as_of_ms - {timeout_ms} THEN verdict_over ELSE verdict_alive END"
    shown = columns.replace('"verdict"', f"{verdict} AS verdict")
    connection.execute(f"CREATE MACRO {MOMENTS}(as_of_ms) AS TABLE SELECT {shown} FROM {STORED}{MESSAGES}")
