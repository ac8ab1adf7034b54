"""What every topic promises, whatever stands behind it: the log on disk and its twin in memory, by the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from rigs.memory_topic import MemoryFaults, MemoryTopic
from stagepost.errors import ConfigError, ErrorCode, StorageError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.topics.batch import Batch
from stagepost.topics.consumer import Consumer
from stagepost.topics.topic import OffsetGone, Place, Record, RecordRefused, Topic, partition_of
from tests.worlds.topics.topic_records import NAME, a_record, a_topic, all_records, as_read, odd_record

Make = Callable[[int], Topic]


@pytest.fixture(params=["file", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "file":
        return lambda partitions: a_topic(tmp_path, partitions)
    return lambda partitions: MemoryTopic(NAME, partitions)


async def take(batches: AsyncIterator[Batch], records: int) -> list[Batch]:
    found: list[Batch] = []
    while sum(map(len, found)) < records:
        found.append(await anext(batches))
    return found


def test_records_are_read_as_they_were_appended(make: Make, run_seed: int) -> None:
    chance = Random(run_seed)
    topic = make(3)

    async def story() -> None:
        writer = topic.writer()
        by_partition: dict[int, list[Record]] = {0: [], 1: [], 2: []}
        for _ in range(10):
            records = [odd_record(chance, number) for number in range(chance.randrange(1, 30))]
            places = await writer.append(records)
            for record, place in zip(records, places, strict=True):
                assert place == Place(place.partition, len(by_partition[place.partition]))
                assert record.key is None or place.partition == partition_of(record.key, 3)
                by_partition[place.partition].append(record)
        await writer.close()
        reader = topic.reader()
        assert reader.partitions == topic.partitions == 3
        for partition, appended in by_partition.items():
            assert all_records(reader, partition) == as_read(appended), f"seed {run_seed}"
            start = chance.randrange(len(appended) - 2)
            part = [read for batch in reader.batches(partition, start, start + 3) for read in batch]
            assert part == as_read(appended)[start : start + 3]
            with pytest.raises(StorageError, match=f"but the log ends at {len(appended)}"):
                list(reader.batches(partition, len(appended) + 1))
            with pytest.raises(StorageError, match=f"offset {len(appended) + 1} of partition {partition}"):
                list(reader.batches(partition, 0, len(appended) + 1))

    asyncio.run(story())


def test_a_bad_record_is_refused_and_nothing_of_the_append_happens(make: Make) -> None:
    topic = make(1)

    async def story() -> None:
        writer = topic.writer()
        with pytest.raises(RecordRefused):
            await writer.append([a_record(), a_record(value=bytes(65_537))])
        assert await writer.append([]) == []
        assert await writer.append([a_record(value=bytes(65_536))]) == [Place(0, 0)]
        await writer.close()

    asyncio.run(story())


def test_there_is_one_writer_at_a_time(make: Make) -> None:
    topic = make(1)

    async def story() -> None:
        writer = topic.writer()
        with pytest.raises(StorageError, match="held by another"):
            topic.writer()
        await writer.close()
        with pytest.raises(StorageError, match="closed"):
            await writer.append([a_record()])
        await topic.writer().close()

    asyncio.run(story())


def test_callbacks_are_called_once_each_in_order(make: Make) -> None:
    topic = make(1)
    heard: list[list[Place] | StorageError] = []

    async def story() -> None:
        writer = topic.writer()
        for number in range(50):
            writer.append_soon([a_record(number)], heard.append)
        await writer.close()

    asyncio.run(story())

    assert heard == [[Place(0, number)] for number in range(50)]


def test_a_consumer_goes_on_where_it_has_committed(make: Make) -> None:
    """What was handled and not committed comes again; what was committed does not, also in another life."""
    topic = make(2)
    records = [a_record(number) for number in range(40)]

    async def story() -> None:
        writer = topic.writer()
        for at in range(0, 20, 5):
            await writer.append(records[at : at + 5])
        positions = topic.positions("readers")
        first = Consumer(topic.reader(), positions)
        async with aclosing(first.batches()) as batches:
            found = await take(batches, 20)
        for batch in found[:3]:
            await first.commit(batch)
        committed = dict(positions.committed)
        positions.close()
        await writer.append(records[20:])

        again = topic.positions("readers")
        assert again.committed == committed
        second = Consumer(topic.reader(), again)
        left = 40 - sum(committed.values())
        async with aclosing(second.batches()) as batches:
            values = [value for batch in await take(batches, left) for value in batch.values]
        assert len(values) == len(set(values)) == left
        assert sum(second.next_offsets.values()) == 40
        again.close()
        await writer.close()

    asyncio.run(story())


def test_a_consumer_waits_for_what_comes(make: Make) -> None:
    topic = make(1)

    async def story() -> None:
        writer = topic.writer()
        await writer.append([a_record(0)])
        positions = topic.positions("late")
        consumer = Consumer(topic.reader(), positions, from_end=True, poll_s=0.001)
        async with aclosing(consumer.batches()) as batches:
            waiting = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            assert not waiting.done()
            await writer.append([a_record(1)])
            assert (await waiting).values == [b"value-1"]
        positions.close()
        await writer.close()

    asyncio.run(story())


# The twin alone


def test_a_simulated_disk_refuses_from_its_seed_and_loses_nothing_acknowledged(run_seed: int) -> None:
    async def story() -> tuple[list[int], list[int]]:
        topic = MemoryTopic(NAME, faults=MemoryFaults(run_seed, failure_rate=0.3, delay_s_max=0.01))
        writer = topic.writer()
        taken: list[int] = []
        refused: list[int] = []
        for number in range(100):
            try:
                await writer.append([a_record(number)])
                taken.append(number)
            except StorageError as error:
                assert error.code is ErrorCode.STORAGE_UNAVAILABLE  # noqa: PT017
                refused.append(number)
        await writer.close()
        assert [read.value for read in all_records(topic.reader())] == [b"value-%d" % one for one in taken]
        return taken, refused

    taken, refused = run_in_virtual_time(story())
    assert taken
    assert refused
    assert run_in_virtual_time(story()) == (taken, refused), "the same seed, the same faults"


def test_a_crash_of_the_twin_answers_whoever_waits_and_keeps_the_rest() -> None:
    async def story() -> None:
        topic = MemoryTopic(NAME, faults=MemoryFaults(delay_s_max=1.0))
        writer = topic.writer()
        await writer.append([a_record(0)])
        waiting = asyncio.ensure_future(writer.append([a_record(1)]))
        await asyncio.sleep(0)
        topic.crash()
        with pytest.raises(StorageError, match="is gone"):
            await waiting
        writer = topic.writer()
        assert await writer.append([a_record(2)]) == [Place(0, 1)]
        await writer.close()
        assert all_records(topic.reader()) == as_read([a_record(0), a_record(2)])

    run_in_virtual_time(story())


def test_the_twin_has_a_full_disk_and_a_full_queue() -> None:
    async def story() -> None:
        topic = MemoryTopic(NAME, bytes_max=10_000, waiting_bytes_max=1_000)
        writer = topic.writer()
        await writer.append([a_record(value=bytes(5_000))])
        with pytest.raises(StorageError, match="no space left on device"):
            await writer.append([a_record(value=bytes(5_000))])
        topic.forget_before(0, 1)
        heard: list[list[Place] | StorageError] = []
        for _ in range(4):
            writer.append_soon([a_record(value=bytes(400))], heard.append)
        assert [one.code for one in heard if isinstance(one, StorageError)] == [ErrorCode.QUEUE_FULL] * 2
        await writer.close()

    run_in_virtual_time(story())


def test_a_consumer_that_comes_too_late_is_told_or_skips_and_counts() -> None:
    async def story() -> None:
        topic = MemoryTopic(NAME)
        writer = topic.writer()
        for number in range(5):
            await writer.append([a_record(number)])
        positions = topic.positions("slow")
        told, skipping = (Consumer(topic.reader(), positions, skip_gone=skip) for skip in (False, True))
        topic.forget_before(0, 3)
        with pytest.raises(OffsetGone, match="offset 0 of partition 0"):
            await anext(told.batches())
        assert (await take(skipping.batches(), 1))[0].values == [b"value-3"]
        assert skipping.skipped == 3
        await writer.close()

    run_in_virtual_time(story())


def test_names_of_twins_have_the_same_rules() -> None:
    with pytest.raises(ConfigError):
        MemoryTopic("a/b")
    with pytest.raises(ConfigError):
        MemoryTopic("a", 65)
    with pytest.raises(ConfigError):
        MemoryTopic("a").positions("../b")
