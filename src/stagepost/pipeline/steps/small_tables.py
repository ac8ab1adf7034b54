"""Small tables made in the driver, to join with: part of the plan itself, so no job and no worker is needed for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from stagepost.pipeline.steps.columns import arrays_of, arrow_schema


def small_table(spark: SparkSession, rows: Sequence[Sequence[Any]], columns: StructType | str) -> DataFrame:
    """`columns` as Spark writes them: name and type, separated by commas."""
    schema = StructType.fromDDL(columns) if isinstance(columns, str) else columns
    arrow = arrow_schema(schema)
    return spark.createDataFrame(pa.Table.from_arrays(arrays_of(rows, arrow), schema=arrow), schema)
