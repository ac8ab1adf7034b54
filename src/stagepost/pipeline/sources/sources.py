"""The source of the records of `stagepost pipeline`, as a plain value: made before Spark starts, opened when
it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RecordSource(Protocol):
    """A source of rows with the columns of `schemas.RAW`: our topics, or a broker."""

    def stream(self, spark: SparkSession, rows_max: int) -> DataFrame:
        """Return a stream without an end, with at most `rows_max` records in a batch."""
        ...


class Topics(NamedTuple):
    """Topics by the options of `format("stagepost")`."""

    options: Mapping[str, str]

    def stream(self, spark: SparkSession, rows_max: int) -> DataFrame:
        from stagepost.pipeline.sources.topic_source import FORMAT, register

        register(spark)
        reading = spark.readStream.format(FORMAT).options(**self.options)
        return reading.option("maxRows", str(rows_max)).load()
