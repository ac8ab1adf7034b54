"""Both faces of a writer: callbacks and tasks, shared syncs, and what may wait for the disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from stagepost.errors import ErrorCode, StorageError
from stagepost.topics.topic import Place, Record
from tests.worlds.topics.topic_disks import QuickFiles
from tests.worlds.topics.topic_records import a_record, a_topic, a_writer, all_records, append_now


def test_callbacks_come_in_order_with_the_offsets(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic)
    heard: list[list[Place] | StorageError] = []

    for number in range(200):
        writer.append_soon([a_record(number, key=b"k")], heard.append)
    writer.close_now()

    assert heard == [[Place(0, number)] for number in range(200)]
    assert writer.counters[0].records == 200
    with pytest.raises(StorageError, match="is closed"):
        append_now(writer, [a_record()])


def test_many_tasks_share_their_syncs(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic)

    async def append_all() -> list[list[Place]]:
        tasks = (writer.append([a_record(number)]) for number in range(2_000))
        found = await asyncio.gather(*tasks)
        await writer.close()
        return found

    places = asyncio.run(append_all())

    assert sorted(place for (place,) in places) == [Place(0, number) for number in range(2_000)]
    assert writer.counters[0].groups < 1_000
    for (place,), read in zip(sorted(places), all_records(topic.reader()), strict=True):
        assert read.value == b"value-%d" % places.index([place])


def test_a_callback_that_fails_harms_nobody_else(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    told: list[StorageError] = []
    writer = a_writer(topic, on_error=told.append)
    heard: list[list[Place] | StorageError] = []

    def fail(outcome: list[Place] | StorageError) -> None:
        raise KeyError("planted")

    writer.append_soon([a_record(0)], fail)
    writer.append_soon([a_record(1)], heard.append)
    writer.close_now()

    assert heard == [[Place(0, 1)]]
    assert ["planted" in error.text for error in told] == [True]


def test_a_call_that_is_given_up_harms_nobody(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic)

    async def give_up() -> None:
        task = asyncio.create_task(writer.append([a_record(0)]))
        await asyncio.sleep(0)
        task.cancel()
        assert await writer.append([a_record(1)]) == [Place(0, 1)]
        await writer.close()

    asyncio.run(give_up())

    assert len(all_records(topic.reader())) == 2


def test_what_waits_for_the_disk_is_bounded(tmp_path: Path) -> None:
    class Slow(QuickFiles):
        def __init__(self) -> None:
            self.gate = threading.Event()
            self.is_busy = threading.Event()

        def sync(self, file: int) -> None:
            if threading.current_thread() is not threading.main_thread():
                self.is_busy.set()
                self.gate.wait()

    files = Slow()
    topic = a_topic(tmp_path)
    one = 1_000 + 128 + len("k")
    writer = a_writer(topic, files=files, waiting_bytes_max=3 * one)
    record = Record(b"k", bytes(1_000))
    heard: list[list[Place] | StorageError] = []
    writer.append_soon([record], heard.append)
    files.is_busy.wait()
    for _ in range(4):
        writer.append_soon([record], heard.append)
    files.gate.set()
    writer.close_now()

    (refused,) = (one for one in heard if isinstance(one, StorageError))
    assert refused.code is ErrorCode.QUEUE_FULL
    assert refused.limit == 3 * one
    assert heard[0] is refused, "it is refused at once"
    assert len(all_records(topic.reader())) == 4
    assert writer.counters[0].refused == 1
