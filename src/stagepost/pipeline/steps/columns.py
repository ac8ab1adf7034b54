"""Columns and small tables for the steps: rows of plain Python into Arrow columns in Spark's workers, and small tables made in
the driver to join with.

Small tables are part of the plan itself, so they need no job and no worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema, with small offsets, as Spark declares the batches that it takes."""
    return to_arrow_schema(schema)


def arrays_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    return arrays_of_columns(zip(*rows, strict=True) if rows else [()] * len(schema), schema)


def arrays_of_columns(columns: Iterable[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    return [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]


def batch_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays_of(rows, schema), schema=schema)


def small_table(spark: SparkSession, rows: Sequence[Sequence[Any]], columns: StructType | str) -> DataFrame:
    """Return a small table. `columns` as Spark writes them: name and type, separated by commas."""
    schema = StructType.fromDDL(columns) if isinstance(columns, str) else columns
    arrow = arrow_schema(schema)
    return spark.createDataFrame(pa.Table.from_arrays(arrays_of(rows, arrow), schema=arrow), schema)
