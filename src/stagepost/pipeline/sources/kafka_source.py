"""Topics of a Kafka broker as a source of the pipeline: Spark's own connector, its columns made into those of `schemas.RAW`.

The offsets are in the checkpoint, as with every source; a batch that is taken again reads the same records. Records that the broker
has let go of unread stop the stream (`failOnDataLoss`): tables with a hole in them must not look whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagepost.errors import ConfigError
from stagepost.topics.kafka.access import KafkaAccess
from stagepost.topics.kafka.jars import Artifacts, found_jars
from stagepost.topics.names import KNOWN, STATUSES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "kafka"
TOPICS = (STATUSES,)
"""Unless others are named."""


class KafkaRecords(NamedTuple):
    """A `RecordSource`. A topic with a name that is none of ours holds statuses."""

    access: KafkaAccess
    topics: tuple[str, ...] = TOPICS

    def stream(self, spark: SparkSession, rows_max: int) -> DataFrame:
        options = {**self.options(), "maxOffsetsPerTrigger": str(rows_max)}
        try:
            return raw_records(spark.readStream.format(FORMAT).options(**options).load())
        except Exception as error:
            if "Failed to find" in str(error) or "DATA_SOURCE_NOT_FOUND" in str(error):
                raise ConfigError(
                    "this Spark was started without its Kafka connector",
                    advice="give it the jars of `stagepost kafka jars`; on a cluster: --conf spark.jars=…",
                ) from error
            raise

    def batch(self, spark: SparkSession) -> DataFrame:
        """All that is there now."""
        return raw_records(spark.read.format(FORMAT).options(**self.options()).load())

    def options(self) -> dict[str, str]:
        return {
            **self.access.spark_options(),
            "subscribe": ",".join(self.topics),
            "startingOffsets": "earliest",
            "failOnDataLoss": "true",
            "includeHeaders": "true",
        }


def connector_settings(folder: Path) -> dict[str, str]:
    """Of a session that can read from Kafka; `ConfigError` in one sentence if the jars are not there."""
    return {"spark.jars": ",".join(str(jar.absolute()) for jar in found_jars(Artifacts.SPARK, folder))}


def raw_records(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    from stagepost.pipeline.schemas import RAW

    arrived = F.unix_millis("timestamp").alias("arrived_ms")
    # A broker's topic may have any name; the steps know what a record is by ours.
    topic = F.when(F.col("topic").isin(*KNOWN), F.col("topic")).otherwise(F.lit(STATUSES)).alias("topic")
    columns = frame.select(topic, "partition", "offset", arrived, "key", "value", "headers")
    return columns.mapInArrow(_as_raw, RAW)


def _as_raw(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """By the same function as a topic's own records, in Spark's workers."""
    from stagepost.pipeline.schemas import RAW
    from stagepost.pipeline.sources.topic_ranges import Range
    from stagepost.pipeline.sources.topic_records import records_of
    from stagepost.pipeline.steps.columns import arrow_schema, batch_of

    schema = arrow_schema(RAW)
    for batch in batches:
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        found: list[Any] = []
        for (topic, partition), group in groupby(rows, key=lambda row: row[:2]):
            found += records_of(Range(topic, partition, 0, 0), map(_read, group))
        yield batch_of(found, schema)


def _read(row: tuple[Any, ...]) -> Any:
    from stagepost.topics.batch import NO_HEADERS, Read

    _, _, offset, arrived_ms, key, value, headers = row
    texts = (
        {one["key"]: (one["value"] or b"").decode("utf-8", "replace") for one in headers}
        if headers
        else NO_HEADERS
    )
    return Read(offset, key, value, texts, arrived_ms)
