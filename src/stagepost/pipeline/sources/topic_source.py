"""`format("stagepost")`: topics as a Spark source, by batch and by stream.

A single one of these options says where topics are read:

    path       a data folder of this machine, also while its node writes it
    address    HOST:PORT or socket of a node that serves its topics; with `token`, or STAGEPOST_TOKEN, if it needs one
    socket     the local socket of any CIP-0137 node, with `network_magic` and, if need be, `profile`; its messages are kept
               in the folder `retained`, and read from there

`topic` names the topics, with commas (those of the pipeline if it is not given); `maxRows` is the greatest
number of records of one batch of a stream. Nothing is open between two calls: every task opens the log for itself,
and the log gives the same records for the same offsets every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
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
from stagepost.ground.identifiers import INT64_MAX
from stagepost.pipeline.schemas import RAW, arrow_schema, batch_of
from stagepost.pipeline.sources.checkpoint_fit import (
    FINISHED,
    LOG_VERSION,
    PLANNED,
    Marked,
    last_number,
    read_offsets,
    write_checkpoint,
)
from stagepost.pipeline.sources.dumps import Record, session_hint, whole
from stagepost.pipeline.sources.topic_marks import offsets_of, require_same_topics, with_marks
from stagepost.pipeline.sources.topic_places import TopicPlace, place_of, topics_of
from stagepost.pipeline.sources.topic_ranges import Offsets, Range, at_most, tasks
from stagepost.topics.batch import Read
from stagepost.topics.topic import KNOWN

FORMAT = "stagepost"
ROWS_MAX = 200_000


class TopicSource(DataSource):  # type: ignore[misc]  # Spark comes without types where it is not installed
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return RAW

    def reader(self, schema: StructType) -> TopicReader:
        return TopicReader(place_of(self.options), topics_of(self.options))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # Spark's name
        return TopicStreamReader(place_of(self.options), topics_of(self.options), _rows_max(self.options))


class TopicReader(DataSourceReader):  # type: ignore[misc]  # Spark comes without types where it is not installed
    """All records that are there when the plan is made."""

    def __init__(self, place: TopicPlace, topics: tuple[str, ...] | None) -> None:
        self._place, self._topics = place, topics

    def partitions(self) -> Sequence[InputPartition]:
        self._place.catch_up()
        start, end = self._place.bounds()
        missing = [name for name in self._topics or () if name not in end]
        if missing:
            raise ConfigError(
                f"there is no topic {missing[0]} there",
                advice=f"topics there: {', '.join(sorted(end)) or 'none'}",
            )
        return [
            InputPartition(one) for one in tasks(_chosen(start, self._topics), _chosen(end, self._topics))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._place, Range(*partition.value))


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # Spark comes without types where it is not installed
    """A topic that is not there yet is followed when it has begun."""

    def __init__(self, place: TopicPlace, topics: tuple[str, ...] | None, rows_max: int) -> None:
        self._place = place
        self._topics = topics
        self._rows_max = rows_max
        self._bound: Offsets | None = None

    def initialOffset(self) -> Offsets:
        return _chosen(self._place.bounds()[0], self._topics)

    def prepareForTriggerAvailableNow(self) -> None:
        self._place.catch_up()
        self._bound = self._newest()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_max)

    def latestOffset(self, start: Marked, limit: ReadLimit) -> Marked:
        if isinstance(limit, ReadAllAvailable):
            return self.latest(start, None)
        return self.latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows_max)

    def latest(self, start: Marked, rows_max: int | None) -> Marked:
        """Return the end of the batch after `start`, which has at most `rows_max` records."""
        if self._bound is None:
            self._place.keep_up()
        end = self._bound if self._bound is not None else self._newest()
        before = offsets_of(start)
        if end == before:
            return start
        # Before a batch is planned: offsets of another topic must not get into the checkpoint.
        require_same_topics(self._place, start, self._topics)
        if rows_max is not None:
            end = at_most(before, end, rows_max)
        return with_marks(self._place, start, end)

    def partitions(self, start: Marked, end: Marked) -> Sequence[InputPartition]:
        # A batch that was planned before a restart comes here without being asked for anew.
        require_same_topics(self._place, end, self._topics)
        return [InputPartition(one) for one in tasks(offsets_of(start), offsets_of(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._place, Range(*partition.value))

    def commit(self, end: Marked) -> None:
        """Do nothing: the log deletes its records by its own retention."""

    def _newest(self) -> Offsets:
        return _chosen(self._place.bounds()[1], self._topics)


def batches(checkpoint: Path, reader: TopicStreamReader, rows_max: int) -> Iterator[tuple[int, list[Range]]]:
    """Yield the batches of all records that `reader` finds now, with their numbers, after the one that was planned and not
    finished. The checkpoint is kept as Spark keeps it; a batch is finished when the next one is asked for.
    """
    number, finished = last_number(checkpoint / "offsets"), last_number(checkpoint / "commits")
    reader.prepareForTriggerAvailableNow()
    start: Marked = {topic: dict(one.items()) for topic, one in reader.initialOffset().items()}
    if finished >= 0:
        start = read_offsets(checkpoint / "offsets" / str(finished))
    while True:
        if number > finished:
            end = read_offsets(checkpoint / "offsets" / str(number))
        elif (end := reader.latest(start, rows_max)) == start:
            return
        else:
            number += 1
            planned = f"{LOG_VERSION}\n{PLANNED}\n{msgspec.json.encode(end).decode()}"
            write_checkpoint(checkpoint, "offsets", number, planned)
        yield number, [Range(*one.value) for one in reader.partitions(start, end)]
        write_checkpoint(checkpoint, "commits", number, FINISHED)
        start, finished = end, number


def register(spark: SparkSession) -> None:
    spark.dataSource.register(TopicSource)


def _chosen(offsets: Offsets, topics: Iterable[str] | None) -> Offsets:
    names = set(KNOWN if topics is None else topics)
    return {name: partitions for name, partitions in offsets.items() if name in names}


def _rows_max(options: Mapping[str, str]) -> int:
    text = options.get("maxrows", str(ROWS_MAX))
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"maxRows is {text!r}", advice="give a number of records from 1 on")
    return int(text)


def range_records(place: TopicPlace, wanted: Range) -> Iterator[Record]:
    """Yield the records of a range, always the same for the same range; `OffsetGone` if retention removed them."""
    return (record for reads in place.reads(wanted) for record in records_of(wanted, reads))


def read_range(place: TopicPlace, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the same as rows, in batches."""
    schema = arrow_schema(RAW)
    for reads in place.reads(wanted):
        yield batch_of(list(records_of(wanted, reads)), schema)


def records_of(wanted: Range, reads: Iterable[Read]) -> Iterator[Record]:
    for read in reads:
        headers = read.headers
        yield Record(
            wanted.topic,
            wanted.partition,
            read.offset,
            _arrived(read),
            _key_text(read.key),
            read.value,
            False,
            session_hint(headers.get("session")),
            headers.get("delivery_id") or None,
            headers.get("dmq_id") or None,
            headers.get("from") or None,
        )


def _arrived(read: Read) -> int | None:
    said = read.headers.get("received_ms", "")
    if said.isascii() and said.isdigit() and len(said) <= len(str(INT64_MAX)):
        return whole(int(said), INT64_MAX)
    return whole(read.timestamp_ms, INT64_MAX)


def _key_text(key: bytes | None) -> str | None:
    """Return the key as text: ids are hexadecimal text, also those that are kept as raw bytes."""
    if key is None:
        return None
    try:
        text = key.decode("utf-8")
    except UnicodeDecodeError:
        return key.hex()
    return text if text.isprintable() else key.hex()
