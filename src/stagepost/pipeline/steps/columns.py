"""Rows of plain Python into Arrow columns, for steps that run in Spark's workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """With small offsets, as Spark declares the batches that it takes."""
    return to_arrow_schema(schema)


def arrays_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    return arrays_of_columns(zip(*rows, strict=True) if rows else [()] * len(schema), schema)


def arrays_of_columns(columns: Iterable[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    return [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]


def batch_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays_of(rows, schema), schema=schema)
