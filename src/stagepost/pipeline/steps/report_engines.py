"""Engines of reports: the same queries by DuckDB in the driver, and by the workers of a cluster for many rows.

A query is of the SQL that both have; where only Spark has a function, DuckDB gets a macro of its name. Starting a dozen jobs of
Spark takes seconds, however few rows there are; and on one machine DuckDB needs a part of the processor time. What does not
fit into its share of memory it puts aside on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from stagepost.pipeline.schemas import STORED, with_day
from stagepost.pipeline.steps.columns import arrays_of, arrow_schema, small_table
from stagepost.pipeline.tables.delta import DAY, DataFile
from stagepost.pipeline.tables.look_up import ROWS_PER_FETCH, files_query, queries
from stagepost.pipeline.tables.tables import DayWriter, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Function that turns the rows of a query into rows of a table, with `day`, in plain Python."""

MEMORY_MAX = "2GB"
"""Bytes that the queries in the driver may use before they put rows aside on the disk."""

_MACROS = {
    "size(list)": "len(list)",
    "sha2(text, bits)": "sha256(text)",
    "string(bytes)": "decode(bytes)",
    "array_join(list, between)": "array_to_string(list, between)",
    "get_json_object(text, path)": "json_extract_string(text, path)",
    "explode(list)": "unnest(list)",
}


class Engine(Protocol):
    """Names of shown rows and views are those in the queries that follow."""

    def small(self, name: str, rows: Sequence[Sequence[Any]], columns: str) -> None:
        """Show rows that are here, with columns as Spark writes them."""
        ...

    def show(
        self,
        name: str,
        table: str,
        paths: Sequence[str],
        names: Sequence[str] | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        """Show the rows of files of a table, with `day` as text, under other `names` of columns if given. `is_kept`: several
        queries read them.
        """
        ...

    def view(self, name: str, query: str) -> None: ...

    def keep(self, name: str, query: str) -> None:
        """Work a query out now, for several others."""
        ...

    def write(self, name: str, query: str, step: Step | None = None) -> list[DataFile]:
        """Write the result of a query, whose columns are those of the table in their order, and `day`; or that of `step`."""
        ...

    def distinct(self, table: str, paths: Sequence[str], expression: str) -> list[Any]:
        """Return the different values of an expression over files of a table."""
        ...


class _Reports:
    def __init__(self, spark: SparkSession, tables: Tables, rows: int) -> None:
        self._spark, self._tables, self._rows = spark, tables, rows
        self._stack = ExitStack()

    def __enter__(self) -> Any:
        self._connection = self._stack.enter_context(queries(self._tables.store, {}))
        spill = self._stack.enter_context(TemporaryDirectory(prefix="stagepost-reports-"))
        self._connection.execute(f"SET temp_directory = '{spill}'")
        self._connection.execute(f"SET memory_limit = '{MEMORY_MAX}'")
        self._connection.execute("SET preserve_insertion_order = false")
        for macro, meaning in _MACROS.items():
            self._connection.execute(f"CREATE MACRO {macro} AS {meaning}")
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.close()

    def distinct(self, table: str, paths: Sequence[str], expression: str) -> list[Any]:
        if not paths:
            return []
        files = files_query(self._connection, self._tables.store, table, paths)
        found = self._connection.execute(f"SELECT DISTINCT {expression} FROM ({files})").fetchall()
        return [one for (one,) in found]


class DuckReports(_Reports):
    """An `Engine` in the driver."""

    def small(self, name: str, rows: Sequence[Sequence[Any]], columns: str) -> None:
        schema = arrow_schema(StructType.fromDDL(columns))
        self._connection.register(name, pa.Table.from_arrays(arrays_of(rows, schema), schema=schema))

    def show(
        self,
        name: str,
        table: str,
        paths: Sequence[str],
        names: Sequence[str] | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        schema = with_day(STORED[table])
        if not paths:
            empty = arrow_schema(schema).empty_table()
            self._connection.register(name, empty if names is None else empty.rename_columns(list(names)))
            return
        files = files_query(self._connection, self._tables.store, table, paths)
        stored = ", ".join(
            f"CAST({DAY} AS VARCHAR) AS {DAY}" if one == DAY else f'"{one}"' for one in schema.fieldNames()
        )
        listed = "" if names is None else f"({', '.join(names)})"
        rows = f"SELECT * FROM (SELECT {stored} FROM ({files})) AS t{listed}"
        (self.keep if is_kept else self.view)(name, rows)

    def view(self, name: str, query: str) -> None:
        self._connection.execute(f"CREATE VIEW {name} AS {query}")

    def keep(self, name: str, query: str) -> None:
        self._connection.execute(f"CREATE TABLE {name} AS {query}")

    def write(self, name: str, query: str, step: Step | None = None) -> list[DataFile]:
        writer = DayWriter(self._tables.store, name, self._tables.mark)
        found = self._connection.sql(query).to_arrow_reader(ROWS_PER_FETCH)
        names = with_day(STORED[name]).fieldNames()
        for rows in found if step is None else step(found):
            if len(rows):
                writer.take(pa.Table.from_batches([rows]).rename_columns(names))
        return writer.close()


class SparkReports(_Reports):
    """An `Engine` of Spark's workers."""

    def __enter__(self) -> Any:
        self._shown: list[str] = []
        self._kept: list[DataFrame] = []
        return super().__enter__()

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        for frame in reversed(self._kept):
            frame.unpersist()
        for name in self._shown:
            self._spark.catalog.dropTempView(name)

    def _show(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._shown.append(name)

    def _keep(self, name: str, frame: DataFrame) -> None:
        self._kept.append(frame.cache())
        self._tables.ran(lambda: frame.write.format("noop").mode("overwrite").save())
        self._show(name, frame)

    def small(self, name: str, rows: Sequence[Sequence[Any]], columns: str) -> None:
        self._show(name, small_table(self._spark, rows, columns).hint("broadcast"))

    def show(
        self,
        name: str,
        table: str,
        paths: Sequence[str],
        names: Sequence[str] | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        frame = self._tables.read_files(self._spark, table, paths)
        (self._keep if is_kept else self._show)(name, frame if names is None else frame.toDF(*names))

    def view(self, name: str, query: str) -> None:
        self._show(name, self._spark.sql(query))

    def keep(self, name: str, query: str) -> None:
        self._keep(name, self._spark.sql(query))

    def write(self, name: str, query: str, step: Step | None = None) -> list[DataFile]:
        schema = with_day(STORED[name])
        frame = self._spark.sql(query)
        found = frame.toDF(*schema.fieldNames()) if step is None else frame.mapInArrow(step, schema)
        return self._tables.write(found, name, self._rows)
