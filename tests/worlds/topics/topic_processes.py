"""A writer of a topic in a process of its own, for tests that kill it: it reports each record as soon as it is acknowledged."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from random import Random

from rigs.line_reports import open_report
from stagepost.errors import StorageError
from stagepost.ground.files.small_files import Files, write_all
from stagepost.topics.log import file_topic
from stagepost.topics.log.block import Row
from stagepost.topics.log.end_mark import write_mark
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.log.partition_log import PartitionLog
from stagepost.topics.topic import Place, Record
from tests.worlds.topics.topic_disks import QuickFiles

NAME = "stagepost.remp.statuses"
PARTITIONS = 2
LANES = 8
RECORDS_MAX = 40
VALUE_BYTES_MAX = 3_000
SEGMENT_BYTES = 200_000
DEFECTS = ("none", "answers before it writes", "marks before it writes", "never syncs")
"""The last one shows only when the power is cut."""


class MarksFirst(PartitionLog):
    """Planted defect: readers are shown what is yet to be written."""

    def _append(self, rows: Sequence[Row], now_ms: int) -> int:
        assert self._mark_file is not None
        content = sum(row.content_bytes for row in rows)
        early = self.mark._replace(
            end_offset=self.mark.end_offset + len(rows), position=self.mark.position + content
        )
        write_all(self._files, self._mark_file, write_mark(early), 0)
        return super()._append(rows, now_ms)


def value_of(name: str, chance: Random) -> bytes:
    """Says which record it is, and by a digest that it is whole."""
    filling = chance.randbytes(chance.randrange(VALUE_BYTES_MAX)).hex()[:VALUE_BYTES_MAX]
    return f"{name} {sha256((name + filling).encode()).hexdigest()} {filling}".encode()


def name_in(value: bytes | None) -> str:
    """The name of a record; `AssertionError` if it is not whole."""
    assert value is not None
    name, digest, filling = value.decode().split(" ")
    assert sha256((name + filling).encode()).hexdigest() == digest, f"record {name} is torn"
    return name


async def write(data: Path, told: Path, life: int, defect: str) -> None:
    """Appends on several lanes until it is killed, or has no disk any more; tells what was acknowledged, in a file."""
    report = open_report(told)
    if defect == "marks before it writes":
        setattr(file_topic, "PartitionLog", MarksFirst)  # noqa: B010  # the name is the topic's own import
    files = QuickFiles() if defect == "never syncs" else Files()
    writer = create_topic(data, NAME, PARTITIONS).writer(segment_bytes=SEGMENT_BYTES, files=files)
    print("ready", flush=True)

    def tell(names: Sequence[str], places: Sequence[Place]) -> None:
        lines = [
            f"{name} {place.partition} {place.offset}\n" for name, place in zip(names, places, strict=True)
        ]
        os.write(report, "".join(lines).encode())

    async def lane(number: int) -> None:
        chance = Random(life * LANES + number)
        at = 0
        while True:
            names = [f"{life}-{number}-{at + one}" for one in range(chance.randrange(1, RECORDS_MAX))]
            at += len(names)
            records = [Record(name.encode(), value_of(name, chance)) for name in names]
            if defect == "answers before it writes":
                tell(names, [Place(-1, -1)] * len(names))
            try:
                places = await writer.append(records)
            except StorageError:
                continue
            if defect != "answers before it writes":
                tell(names, places)

    await asyncio.gather(*(lane(number) for number in range(LANES)))


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
