"""Engines of queries: the same SQL by DuckDB in the driver, and by the workers of a cluster for many rows.

A query is of the SQL that both have; where only Spark has a function, DuckDB gets a macro of its name. Starting a dozen jobs of
Spark takes seconds, however few rows there are; and on one machine DuckDB needs a part of the processor time. What does not
fit into its share of memory it puts aside on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from stagepost.pipeline.schemas import STORED, arrays_of, arrow_schema, small_table, with_day
from stagepost.pipeline.spark import is_embedded
from stagepost.pipeline.tables.delta import DAY, DataFile
from stagepost.pipeline.tables.look_up import ROWS_PER_FETCH, files_query, queries
from stagepost.pipeline.tables.tables import ROWS_HERE_MAX, DayWriter, Tables, stored_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Function that turns the rows of a query into rows of a table, with `day`, in plain Python."""

MEMORY_MAX = "2GB"
"""Bytes that the queries in the driver may use before they put rows aside on the disk."""

RECEIPTS_AT_ONCE = 2_000_000
"""Receipts, about and at most, of the messages that DuckDB evaluates at a time: lists of hashes stay in memory."""

RECEIPTS_PER_PART = 500_000
"""Receipts, about, that one core of a cluster evaluates at a time, however many there are."""

_ID_VALUES = 1 << 16
_MACROS = {
    "size(list)": "len(list)",
    "sha2(text, bits)": "sha256(text)",
    "string(bytes)": "decode(bytes)",
    "array_join(list, between)": "array_to_string(list, between)",
    "explode(list)": "unnest(list)",
    "try_element_at(list, place)": "list_extract(list, place)",
    "sequence(first, last)": "generate_series(first, last)",
    "array_except(list, others)": "list_filter(list, lambda one: NOT list_contains(others, one))",
}


def percentiles(column: str, *shares: float) -> str:
    """Return the SQL of percentiles among the values themselves; none is interpolated between two of them."""
    return ", ".join(
        f"CAST(percentile_disc({share}) WITHIN GROUP (ORDER BY {column}) AS BIGINT)" for share in shares
    )


def engine_for(spark: SparkSession, tables: Tables, rows: int) -> Engine:
    """Return the engine for about so many rows."""
    is_here = rows <= ROWS_HERE_MAX or is_embedded(spark.sparkContext.master)
    return (DuckEngine if is_here else SparkEngine)(spark, tables, rows)


class _Engine:
    def __init__(self, spark: SparkSession, tables: Tables, rows: int) -> None:
        self._spark, self._tables, self._rows = spark, tables, rows
        self._stack = ExitStack()

    def __enter__(self) -> Any:
        self._connection = self._stack.enter_context(queries(self._tables.store, {}))
        spill = self._stack.enter_context(TemporaryDirectory(prefix="stagepost-queries-"))
        self._connection.execute(f"SET temp_directory = '{spill}'")
        self._connection.execute(f"SET memory_limit = '{MEMORY_MAX}'")
        self._connection.execute("SET preserve_insertion_order = false")
        for macro, meaning in _MACROS.items():
            self._connection.execute(f"CREATE MACRO {macro} AS {meaning}")
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.close()

    def distinct(self, table: str, paths: Sequence[str], expression: str) -> list[Any]:
        """Return the different values of an expression over files of a table."""
        if not paths:
            return []
        files = files_query(self._connection, self._tables.store, table, paths)
        found = self._connection.execute(f"SELECT DISTINCT {expression} FROM ({files})").fetchall()
        return [one for (one,) in found]


class DuckEngine(_Engine):
    """An `Engine` in the driver. Names of shown rows and views are those in the queries that follow."""

    def small(self, name: str, rows: Sequence[Sequence[Any]], columns: str) -> None:
        """Show rows of plain Python, with columns as Spark writes them."""
        schema = arrow_schema(StructType.fromDDL(columns))
        self.rows_here(name, pa.Table.from_arrays(arrays_of(rows, schema), schema=schema))

    def rows_here(self, name: str, rows: pa.Table) -> None:
        """Show rows that are here already."""
        self._connection.register(name, rows)

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
        schema = with_day(STORED[table])
        if not paths:
            empty = arrow_schema(schema).empty_table()
            self.rows_here(name, empty if names is None else empty.rename_columns(list(names)))
            return
        files = files_query(self._connection, self._tables.store, table, paths)
        stored = ", ".join(
            f"CAST({DAY} AS VARCHAR) AS {DAY}" if one == DAY else f'"{one}"' for one in schema.fieldNames()
        )
        listed = "" if names is None else f"({', '.join(names)})"
        rows = f"SELECT * FROM (SELECT {stored} FROM ({files})) AS t{listed}"
        (self.keep if is_kept else self.view)(name, rows)

    def view(self, name: str, query: str) -> None:
        self._connection.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")

    def divided(self, name: str, query: str, receipts: int) -> Iterator[None]:
        """Show the rows of a query under a name, all of a message together: once for each share of the messages, if this engine
        cannot take all of so many receipts at once.
        """
        shares = -(-receipts // RECEIPTS_AT_ONCE) or 1
        # Ids are hashes. Keys of bad records, which may be any text, have no row.
        bounds = [f"{number * _ID_VALUES // shares:04x}" for number in range(shares)]
        for least, end in zip(bounds, [*bounds[1:], None], strict=True):
            above = "" if end is None else f" AND message_id < '{end}'"
            which = f" WHERE message_id >= '{least}'{above}" if shares > 1 else ""
            self.view(name, f"SELECT * FROM ({query}){which}")
            yield

    def rows(self, query: str, schema: StructType) -> pa.Table:
        """Return the result of a query, whose columns are those of the schema in their order."""
        found = self._connection.sql(query).to_arrow_table()
        return found.rename_columns(schema.fieldNames()).cast(arrow_schema(schema))

    def keep(self, name: str, query: str) -> None:
        """Work a query out now, for several others."""
        self._connection.execute(f"CREATE TABLE {name} AS {query}")

    def write(self, name: str, query: str, step: Step | None = None) -> list[DataFile]:
        """Write the result of a query, whose columns are those of the table in their order, and `day`; or that of `step`."""
        writer = DayWriter(self._tables.store, name, self._tables.mark)
        found = self._connection.sql(query).to_arrow_reader(ROWS_PER_FETCH)
        names = with_day(STORED[name]).fieldNames()
        for rows in found if step is None else step(found):
            if len(rows):
                writer.take(pa.Table.from_batches([rows]).rename_columns(names))
        return writer.close()


class SparkEngine(_Engine):
    """An `Engine` of Spark's workers. Views of its own: a batch and the reports may be evaluated at the same time."""

    def __enter__(self) -> Any:
        self._kept: list[DataFrame] = []
        self._spark = self._spark.newSession()
        return super().__enter__()

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        for frame in reversed(self._kept):
            frame.unpersist()

    def small(self, name: str, rows: Sequence[Sequence[Any]], columns: str) -> None:
        small_table(self._spark, rows, columns).hint("broadcast").createOrReplaceTempView(name)

    def rows_here(self, name: str, rows: pa.Table) -> None:
        self._spark.createDataFrame(rows).createOrReplaceTempView(name)

    def show(
        self,
        name: str,
        table: str,
        paths: Sequence[str],
        names: Sequence[str] | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        frame = stored_rows(self._spark, self._tables.store, table, paths)
        found = frame if names is None else frame.toDF(*names)
        if is_kept:
            self._keep(name, found)
        else:
            found.createOrReplaceTempView(name)

    def view(self, name: str, query: str) -> None:
        self._spark.sql(query).createOrReplaceTempView(name)

    def divided(self, name: str, query: str, receipts: int) -> Iterator[None]:
        # Divided by message once: all that follows groups by it, so no row has to move again.
        parts = receipts // RECEIPTS_PER_PART
        given = self._spark.sql(query)
        more = parts > int(self._spark.conf.get("spark.sql.shuffle.partitions") or 1)
        near = given.repartition(parts, "message_id") if more else given.repartition("message_id")
        near.createOrReplaceTempView(name)
        yield

    def rows(self, query: str, schema: StructType) -> pa.Table:
        return self._tables.ran(self._spark.sql(query).toArrow).cast(arrow_schema(schema))

    def keep(self, name: str, query: str) -> None:
        self._keep(name, self._spark.sql(query))

    def _keep(self, name: str, frame: DataFrame) -> None:
        self._kept.append(frame.cache())
        self._tables.ran(lambda: frame.write.format("noop").mode("overwrite").save())
        frame.createOrReplaceTempView(name)

    def write(self, name: str, query: str, step: Step | None = None) -> list[DataFile]:
        schema = with_day(STORED[name])
        frame = self._spark.sql(query)
        found = frame.toDF(*schema.fieldNames()) if step is None else frame.mapInArrow(step, schema)
        return self._tables.write(found, name, self._rows)


Engine: TypeAlias = DuckEngine | SparkEngine
"""Engine of either sort."""
