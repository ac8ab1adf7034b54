"""Topics on disk, filled from the lines of a dump."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from stagepost.bus.dump import dump_lines
from stagepost.bus.file_topic import create_topic
from stagepost.bus.topic import Record
from stagepost.pipeline.topics import STATUSES


def a_topic(data: Path, lines: list[bytes], partitions: int = 2) -> Path:
    """What a topic can hold of a dump; its own dump is written beside it."""
    data.mkdir(mode=0o700)
    topic = create_topic(data, STATUSES, partitions)
    records = []
    for line in lines:
        try:
            given = json.loads(line)
            key, value = given["key"].encode(), given["value"].encode("utf-8", "surrogatepass")
        except (ValueError, TypeError, AttributeError, KeyError):
            continue
        if len(value) <= 65_536:
            records.append(Record(key, value, given.get("headers", {}), given.get("timestamp_ms")))

    async def append() -> None:
        writer = topic.writer()
        await writer.append(records)
        await writer.close()

    asyncio.run(append())
    reader = topic.reader()
    path = data / "dump.jsonl"
    path.write_bytes(b"".join(b"".join(dump_lines(STATUSES, reader, one)) for one in range(partitions)))
    return path
