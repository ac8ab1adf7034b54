"""Writers that keep what the disk refuses: in order, whole, and answered only when the disk has it."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rigs.memory_topic import MemoryTopic
from stagepost.errors import StorageError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.topics.topic import DamagedLog, Place, Record, RetryingWriter
from tests.worlds.topics.topic_disks import FailingFiles
from tests.worlds.topics.topic_records import NAME, a_record, a_topic, all_records, as_read

RETRY_S = 0.01
FOR_EVER = 1_000_000
APPENDS = 12
WITHIN_S = 60.0


class Answers:
    """Appends of two records each, and what the writer answered, in the order of the answers."""

    def __init__(self, writer: RetryingWriter) -> None:
        self.records: list[Record] = []
        self.outcomes: list[tuple[int, list[Place] | StorageError]] = []
        self._writer = writer
        self._lock = threading.Lock()

    def append(self) -> None:
        """May be called in any thread."""
        with self._lock:
            number = len(self.records)
            records = [a_record(number, value=bytes(200)), a_record(number + 1)]
            self.records += records
            self._writer.append_soon(records, lambda outcome: self.outcomes.append((number, outcome)))

    @property
    def numbers(self) -> list[int]:
        assert not any(isinstance(outcome, StorageError) for _, outcome in self.outcomes)
        return [number for number, _ in self.outcomes]


def is_well(writer: RetryingWriter) -> bool:
    return writer.fault is None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(RETRY_S)


@pytest.mark.parametrize("is_short", [False, True], ids=["nothing is written", "half is written"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("first_call", range(1, 9))
def test_a_log_goes_on_in_order_when_the_disk_does_and_nothing_torn_is_left_between(
    tmp_path: Path, first_call: int, error: int, is_short: bool
) -> None:
    async def main() -> None:
        def failed(error: StorageError) -> None:
            errors.append(error)
            answers.append()  # behind those that are to be tried again

        files, errors = FailingFiles(), list[StorageError]()
        topic = a_topic(tmp_path)
        # Segments are small: some appends begin a new one on the bad disk.
        writer = topic.writer(files=files, segment_bytes=700, retry_s=RETRY_S, on_error=failed)
        answers = Answers(writer)
        answers.append()
        await until(lambda: answers.numbers == [0])
        files.is_short = is_short
        files.fail(first_call, error, failures=FOR_EVER)
        while is_well(writer):
            answers.append()
            await asyncio.sleep(RETRY_S)
        answered = len(answers.numbers)
        for _ in range(APPENDS):
            answers.append()
        calls = files.calls
        await until(lambda: files.calls > calls + 3)
        assert len(answers.numbers) == answered
        with suppress(DamagedLog):  # half of a mark is refused, until a disk that is well takes a whole one
            assert all_records(topic.reader()) == as_read(answers.records[: 2 * answered])
        assert len(errors) == 1
        files.heal()
        await until(lambda: len(answers.outcomes) == len(answers.records) // 2)
        assert answers.numbers == list(range(0, len(answers.records), 2))
        assert is_well(writer)
        await writer.close()
        assert all_records(topic.reader()) == as_read(answers.records)
        again = topic.writer()
        assert again.repairs == []
        await again.close()

    asyncio.run(main())


def test_a_writer_that_closes_on_a_bad_disk_refuses_all_that_waits_and_leaves_no_hole(tmp_path: Path) -> None:
    async def main() -> None:
        files = FailingFiles()
        topic = a_topic(tmp_path)
        writer = topic.writer(files=files, retry_s=FOR_EVER)
        answers = Answers(writer)
        files.fail(1, errno.ENOSPC, failures=FOR_EVER)
        answers.append()
        await until(lambda: not is_well(writer))
        for _ in range(APPENDS):
            answers.append()
        await writer.close()
        assert len(answers.outcomes) == APPENDS + 1
        assert all(isinstance(outcome, StorageError) for _, outcome in answers.outcomes)
        assert all_records(topic.reader()) == []

    asyncio.run(main())


def test_the_twin_in_memory_keeps_the_same_rules() -> None:
    async def main() -> None:
        topic = MemoryTopic(NAME, waiting_bytes_max=1)
        writer = topic.writer(lambda: 0, retry_s=1.0)
        answers = Answers(writer)
        topic.is_full = True
        for _ in range(APPENDS):
            answers.append()
            await asyncio.sleep(0.5)
        assert answers.outcomes == []
        assert not is_well(writer)
        topic.is_full = False
        await asyncio.sleep(1.0)
        assert answers.numbers == list(range(0, 2 * APPENDS, 2))
        assert is_well(writer)
        topic.is_full = True
        answers.append()
        await asyncio.sleep(1.0)
        await writer.close()
        assert isinstance(answers.outcomes[-1][1], StorageError)
        assert len(all_records(topic.reader())) == 2 * APPENDS

    run_in_virtual_time(main())
