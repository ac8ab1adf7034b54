"""`format("stagepost")`: the topics of a data folder as a Spark source, by batch and by stream.

Option `path` is the data folder, `maxRows` the most records of one batch of a stream. Nothing is open between two
calls: every task opens the log for itself, and the log gives the same records for the same offsets every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from stagepost.errors import ConfigError
from stagepost.pipeline.schemas import RAW
from stagepost.pipeline.topic_ranges import Offsets, Range, at_most, newest, oldest, tasks
from stagepost.pipeline.topic_records import read_range

FORMAT = "stagepost"
ROWS_MAX = 200_000


class RangePartition(InputPartition):  # type: ignore[misc]  # Spark comes without types where it is not installed
    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)


class TopicSource(DataSource):  # type: ignore[misc]  # Spark comes without types where it is not installed
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return RAW

    def reader(self, schema: StructType) -> TopicReader:
        return TopicReader(_data(self.options))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # Spark's name
        return TopicStreamReader(_data(self.options), int(self.options.get("maxrows", ROWS_MAX)))


class TopicReader(DataSourceReader):  # type: ignore[misc]  # Spark comes without types where it is not installed
    """All that is there when the plan is made."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(one) for one in tasks(oldest(self._data), newest(self._data))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._data, Range(*partition.value))


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # Spark comes without types where it is not installed
    def __init__(self, data: Path, rows_max: int) -> None:
        self._data = data
        self._rows_max = rows_max
        self._bound: Offsets | None = None

    def initialOffset(self) -> Offsets:
        return oldest(self._data)

    def prepareForTriggerAvailableNow(self) -> None:
        self._bound = newest(self._data)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_max)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        end = self._bound if self._bound is not None else newest(self._data)
        if isinstance(limit, ReadAllAvailable):
            return end
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows_max
        return at_most(start, end, rows_max)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return [RangePartition(one) for one in tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._data, Range(*partition.value))

    def commit(self, end: Offsets) -> None:
        """The log keeps its records by its own retention; nothing is to be let go of here."""


def register(spark: SparkSession) -> None:
    spark.dataSource.register(TopicSource)


def _data(options: Mapping[str, str]) -> Path:
    path = options.get("path")
    if not path:
        raise ConfigError(f'format("{FORMAT}") was given no data folder', advice='add .option("path", "...")')
    return Path(path)
