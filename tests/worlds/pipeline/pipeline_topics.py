"""Topics on disk, filled from the lines of a dump."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from stagepost.topics.dump import dump_lines
from stagepost.topics.log.file_topic import FileTopic, create_topic, open_topic
from stagepost.topics.topic import STATUSES, Record


def records_of(lines: list[bytes]) -> list[Record]:
    """What a topic can hold of a dump."""
    records = []
    for line in lines:
        try:
            given = json.loads(line)
            key, value = given["key"].encode(), given["value"].encode("utf-8", "surrogatepass")
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            continue
        if len(value) <= 65_536:
            records.append(Record(key, value, given.get("headers", {}), given.get("timestamp_ms")))
    return records


def append_all(topic: FileTopic, records: Sequence[Record]) -> None:
    async def append() -> None:
        writer = topic.writer()
        await writer.append(records)
        await writer.close()

    asyncio.run(append())


def lines_held(data: Path) -> list[bytes]:
    """The dump of a topic, partition by partition."""
    reader = open_topic(data, STATUSES).reader()
    parts = range(reader.partitions)
    return [line.rstrip(b"\n") for one in parts for line in dump_lines(STATUSES, reader, one)]


def a_topic(data: Path, lines: list[bytes], partitions: int = 2) -> Path:
    """What a topic can hold of a dump; its own dump is written beside it."""
    data.mkdir(mode=0o700)
    topic = create_topic(data, STATUSES, partitions)
    append_all(topic, records_of(lines))
    reader = topic.reader()
    path = data / "dump.jsonl"
    path.write_bytes(b"".join(b"".join(dump_lines(STATUSES, reader, one)) for one in range(partitions)))
    return path
