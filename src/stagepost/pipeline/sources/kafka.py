"""Topics of a Kafka broker as a source of the pipeline: Spark's own connector, its columns made into those of
`schemas.RAW`.

The offsets are in the checkpoint, as with every source; a batch that is taken again reads the same records.
Records that the broker has deleted unread stop the stream (`failOnDataLoss`): tables with a hole in them must
not look whole. Offsets of a local topic and of a broker's look the same in a checkpoint and mean different
records, so a note beside the tables names the source that they follow. The checks of note and broker need no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.small_files import replace_file
from stagepost.pipeline.sources.checkpoint_fit import STREAM, parsed_offsets, read_offsets
from stagepost.pipeline.sources.topic_marks import offsets_of
from stagepost.pipeline.tables.manifest import COMMITS, read_manifest
from stagepost.pipeline.tables.own_files import CHECKPOINT_FOLDER, KAFKA_NOTE_FILE
from stagepost.pipeline.tables.store import TableStore
from stagepost.topics.kafka.access import KafkaAccess
from stagepost.topics.kafka.admin import BrokerDesk
from stagepost.topics.kafka.jars import Artifacts, found_jars
from stagepost.topics.topic import KNOWN, STATUSES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


ANOTHER_FOLDER = "choose another --out, or go on with the source that these tables were made from"

Offsets = Mapping[str, Mapping[str, int]]


def require_broker(access: KafkaAccess, topics: Sequence[str], out: TableStore) -> None:
    """Check before Spark starts that the broker answers, has the topics, and still holds the records that the
    checkpoint asks for next.
    """
    desk = BrokerDesk(access)
    known = desk.partitions()
    for name in topics:
        if name not in known:
            raise ConfigError(
                f"the Kafka broker at {access.bootstrap} shows no topic {name}",
                advice=f"see --topic; topics there: {', '.join(sorted(known)) or 'none that this user may read'}",
                found=name,
            )
    offsets = next_offsets(out)
    _require_note(out, {"cluster": desk.cluster_id(), "topics": sorted(topics)}, is_begun=offsets is not None)
    for name, partitions in (offsets or {}).items():
        _require_kept(desk, name, known[name], partitions)


def refuse_kafka_checkpoint(out: TableStore) -> None:
    """Refuse tables that follow a broker, for a stream from any other source."""
    if read_note(out) is not None and next_offsets(out) is not None:
        raise ConfigError(
            f"the tables in {out} follow topics of a Kafka broker, and another source was given",
            advice=ANOTHER_FOLDER,
        )


def next_offsets(out: TableStore) -> Offsets | None:
    """Return the offsets at which the stream goes on, by topic and partition; None if it has not finished a
    batch. On object storage there is no checkpoint, and the last commit says it.
    """
    if not out.is_local:
        manifest = read_manifest(out)
        text = "" if manifest is None else manifest.offsets.get(STREAM, "")
        return offsets_of(parsed_offsets(text, out.of(COMMITS))) if text else None
    commits = out.folder / CHECKPOINT_FOLDER / "commits"
    numbers = [int(path.name) for path in commits.glob("*") if path.name.isdigit()]
    if not numbers:
        return None
    return offsets_of(read_offsets(out.folder / CHECKPOINT_FOLDER / "offsets" / str(max(numbers))))


def _require_note(out: TableStore, facts: Mapping[str, object], *, is_begun: bool) -> None:
    known = read_note(out)
    if is_begun and known != facts:
        follow = "another source" if known is None else f"topics {', '.join(known.get('topics', []))}"
        where = "" if known is None else f" of Kafka cluster {known.get('cluster')}"
        raise ConfigError(
            f"the checkpoint in {out} belongs to {follow}{where}, not to "
            f"{', '.join(map(str, facts['topics']))} of cluster {facts['cluster']}",  # type: ignore[call-overload]
            advice=ANOTHER_FOLDER,
        )
    if known != facts:
        write_note(out, facts)


def write_note(out: TableStore, facts: Mapping[str, object]) -> None:
    content = json.dumps(facts).encode() + b"\n"
    try:
        if out.is_local:
            out.folder.mkdir(parents=True, exist_ok=True)
            replace_file(out.folder / KAFKA_NOTE_FILE, content, 0o600)
        else:
            out.put(CHECKPOINT_FOLDER, KAFKA_NOTE_FILE, content)
    except OSError as error:
        raise StorageError(
            f"{KAFKA_NOTE_FILE} cannot be written into {out}: {error.strerror or error}", advice="see --out"
        ) from error


def read_note(out: TableStore) -> dict[str, Any] | None:
    """Return the broker and topics that tables follow; None where no note says so."""
    try:
        if out.is_local:
            content = (out.folder / KAFKA_NOTE_FILE).read_bytes()
        else:
            with out.file_system(CHECKPOINT_FOLDER).open_input_file(KAFKA_NOTE_FILE) as file:
                content = bytes(file.read())
        found = json.loads(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(
            f"{KAFKA_NOTE_FILE} in {out} cannot be read: {error}", advice=ANOTHER_FOLDER
        ) from error
    return found if isinstance(found, dict) else {}


def _require_kept(desk: BrokerDesk, name: str, count: int, wanted: Mapping[str, int]) -> None:
    bounds = desk.bounds(name, count)
    for partition, offset in wanted.items():
        oldest, newest = bounds.get(int(partition), (0, 0))
        if offset < oldest:
            raise ConfigError(
                f"the stream goes on at offset {offset} of partition {partition} of {name}, "
                f"and the broker has kept {oldest} and what follows",
                advice="records are lost to these tables: make new ones with another --out, and keep more",
                offset=offset,
            )
        if offset > newest:
            raise ConfigError(
                f"the stream goes on at offset {offset} of partition {partition} of {name}, which ends at {newest}",
                advice="the topic was begun anew: make new tables with another --out",
                offset=offset,
            )


FORMAT = "kafka"
TOPICS = (STATUSES,)
"""Topics that are read unless others are named."""


class KafkaRecords(NamedTuple):
    """A `RecordSource`. A topic whose name is not one of ours holds statuses."""

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
        """Return all records that are there now."""
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
    """Return the settings of a session that can read from Kafka; `ConfigError` in one sentence if the jars
    are not there.
    """
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
    """Convert rows in Spark's workers, by the same function as a topic's own records."""
    from stagepost.pipeline.schemas import RAW, arrow_schema, batch_of
    from stagepost.pipeline.sources.topic_ranges import Range
    from stagepost.pipeline.sources.topic_source import records_of

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
