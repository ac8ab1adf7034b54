"""Records and topics for tests of the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from stagepost.topics.batch import Read
from stagepost.topics.log.file_topic import FileTopic, FileTopicWriter, create_topic
from stagepost.topics.topic import Place, Record, TopicReader, TopicWriter
from tests.worlds.topics.topic_disks import QuickFiles

NAME = "stagepost.test"


def a_record(number: int = 0, **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "key": b"key-%d" % (number % 7),
        "value": b"value-%d" % number,
        "headers": {"session": f"{number % 3:02x}"} if number % 2 else {},
        "timestamp_ms": 1_700_000_000_000 + number,
    }
    return Record(**(fields | changes))


def odd_record(chance: Random, number: int) -> Record:
    """Anything that a record may be."""
    return Record(
        chance.choice([None, b"", chance.randbytes(chance.randrange(40)), b"%d" % number]),
        chance.choice([None, b"", chance.randbytes(chance.randrange(300)), b"%d" % number]),
        chance.choice([{}, {"a": "b"}, {"session": "é" * chance.randrange(9), "": ""}]),
        chance.choice([0, number, 2**63 - 1]),
    )


def a_topic(folder: Path, partitions: int = 1, name: str = NAME) -> FileTopic:
    return create_topic(folder, name, partitions)


def a_writer(topic: FileTopic, **options: Any) -> FileTopicWriter:
    return topic.writer(**({"files": QuickFiles()} | options))


def append_now(writer: TopicWriter, records: Sequence[Record]) -> list[Place]:
    return asyncio.run(_append(writer, records))


async def _append(writer: TopicWriter, records: Sequence[Record]) -> list[Place]:
    return await writer.append(records)


def all_records(reader: TopicReader, partition: int = 0, start: int | None = None) -> list[Read]:
    begin = reader.start_offset(partition) if start is None else start
    return [read for batch in reader.batches(partition, begin) for read in batch]


def as_read(records: Iterable[Record], first: int = 0) -> list[Read]:
    """What a reader must get for records with a time of their own."""
    return [
        Read(offset, record.key, record.value, dict(record.headers), record.timestamp_ms or 0)
        for offset, record in enumerate(records, start=first)
    ]
