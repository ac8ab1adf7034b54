"""A writer of a topic of receipts in a process of its own that ends itself, without any farewell, within an append.

    python -m tests.worlds.pipeline.pipeline_writer_process DATA GIVEN TOLD POINT TIMES

appends the lines of a dump from the first on that no writer before it has told of, tells of each when it is acknowledged, and
is killed when it passes POINT for the TIMES-th time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import NamedTuple

from rigs.line_reports import open_report
from stagepost.ground.files.small_files import Files
from stagepost.topics.log.file_topic import open_topic
from stagepost.topics.topic import STATUSES
from tests.worlds.pipeline.pipeline_topics import records_of

POINTS = ("within a block", "before sync", "after sync", "after mark")
"""Of one append, in their order. Only the last leaves more to be read than was there before."""

NEVER = "never"
RECORDS_MAX = 12
"""Of one append."""

ROOT = Path(__file__).parents[3]


class KillingFiles(Files):
    """Counts passages from when it is armed on, so that opening and repairing come to their end."""

    def __init__(self, point: str, times: int) -> None:
        self._point = point
        self._left = times
        self.is_armed = False

    def _is_due(self, point: str) -> bool:
        self._left -= self.is_armed and point == self._point
        return not self._left

    def _pass(self, point: str) -> None:
        if self._is_due(point):
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, file: int, content: bytes | memoryview, position: int) -> int:
        is_block = position > 0  # the mark is written over itself
        if is_block and self._is_due("within a block"):
            super().write(file, content[: len(content) // 2], position)
            os.kill(os.getpid(), signal.SIGKILL)
        written = super().write(file, content, position)
        if not is_block:
            self._pass("after mark")
        return written

    def sync(self, file: int) -> None:
        self._pass("before sync")
        super().sync(file)
        self._pass("after sync")


class Told(NamedTuple):
    """Of one line that was acknowledged: its number, and where the topic has it."""

    number: int
    partition: int
    offset: int


def read_told(path: Path) -> list[Told]:
    # Whole lines only: the last one may be cut off by the kill.
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [Told(*map(int, line.split())) for line in lines]


async def write(data: Path, given: Path, told: Path, files: KillingFiles) -> None:
    records = records_of(given.read_bytes().splitlines())
    at = len(read_told(told))
    chance = Random(at)
    report = open_report(told)
    writer = open_topic(data, STATUSES).writer(files=files)
    files.is_armed = True
    while at < len(records):
        some = records[at : at + chance.randrange(1, RECORDS_MAX + 1)]
        places = await writer.append(some)
        lines = [f"{at + count} {place.partition} {place.offset}\n" for count, place in enumerate(places)]
        os.write(report, "".join(lines).encode())
        at += len(some)
    files.is_armed = False
    await writer.close()


def run_writer(
    data: Path, given: Path, told: Path, point: str, times: int
) -> subprocess.CompletedProcess[str]:
    """In a process of its own; the caller looks at how it ended."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    places = [str(data), str(given), str(told)]
    command = [
        sys.executable,
        "-m",
        "tests.worlds.pipeline.pipeline_writer_process",
        *places,
        point,
        str(times),
    ]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    _data, _given, _told = map(Path, sys.argv[1:4])
    asyncio.run(write(_data, _given, _told, KillingFiles(sys.argv[4], int(sys.argv[5]))))
