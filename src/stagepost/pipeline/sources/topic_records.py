"""Records of a topic into rows, as they stand there: plain Python and Arrow, run in Spark's workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from stagepost.pipeline.schemas import RAW
from stagepost.pipeline.sources.dumps import INT64_MAX, Record, session_hint, whole
from stagepost.pipeline.sources.topic_places import TopicPlace
from stagepost.pipeline.sources.topic_ranges import Range
from stagepost.pipeline.steps.columns import arrow_schema, batch_of
from stagepost.topics.batch import Read


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
