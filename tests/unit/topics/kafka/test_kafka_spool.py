"""The spool between topics in memory: in order and complete, whatever the far side refuses and whenever we end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from rigs.memory_topic import MemoryFaults, MemoryTopic, MemoryTopicWriter
from stagepost.errors import StorageError
from stagepost.topics.batch import Read
from stagepost.topics.kafka.spool import GROUP, KafkaSpool, digest_of
from stagepost.topics.topic import Record

WITHIN_S = 60.0
POLL_S = 0.001


class FarTopic:
    """A far side in memory. `is_away`: nobody answers there."""

    def __init__(self, faults: MemoryFaults | None = None) -> None:
        self.topic = MemoryTopic("far", faults=faults or MemoryFaults())
        self.is_away = False

    def __call__(self) -> FarTopic:
        if self.is_away:
            raise StorageError("nobody answers")
        return self

    def writer(self) -> MemoryTopicWriter:
        return self.topic.writer(lambda: 0)

    def present(self, candidates: list[Read]) -> Counter[bytes]:
        wanted = {digest_of(one) for one in candidates}
        return Counter(digest for digest in map(digest_of, reads(self.topic)) if digest in wanted)


def reads(topic: MemoryTopic) -> list[Read]:
    return [one for batch in topic.reader().batches(0, 0) for one in batch]


def values(topic: MemoryTopic) -> list[bytes | None]:
    return [one.value for one in reads(topic)]


async def fill(local: MemoryTopic, numbers: range) -> None:
    writer = local.writer(lambda: 0)
    for number in numbers:
        await writer.append([Record(b"key", b"%d" % number, {"n": "x"}, number)])
    await writer.close()


async def carried(local: MemoryTopic, far: FarTopic, until: Callable[[KafkaSpool], bool]) -> KafkaSpool:
    """One life of a spool."""
    spool = KafkaSpool(local.reader(), local.positions(GROUP), far, poll_s=POLL_S)
    spool.start()
    async with asyncio.timeout(WITHIN_S):
        while not until(spool):
            await asyncio.sleep(POLL_S)
    await spool.close()
    return spool


def is_drained(spool: KafkaSpool) -> bool:
    return spool.waiting == 0


def test_everything_arrives_in_order_with_headers_and_times() -> None:
    async def scene() -> None:
        local, far = MemoryTopic("local"), FarTopic()
        await fill(local, range(100))

        spool = await carried(local, far, is_drained)

        assert [one[1:] for one in reads(far.topic)] == [one[1:] for one in reads(local)]
        assert (spool.counters.published, spool.counters.faults) == (100, 0)

    asyncio.run(scene())


def test_what_the_far_side_refuses_is_sent_again_and_nothing_comes_twice(run_seed: int) -> None:
    async def scene() -> None:
        local, far = MemoryTopic("local"), FarTopic(MemoryFaults(run_seed, failure_rate=0.5))
        await fill(local, range(8))

        spool = await carried(local, far, is_drained)

        # A batch that fails may leave later ones there already: then they are not sent again, and only those come late.
        assert sorted(values(far.topic)) == sorted(values(local)), run_seed  # type: ignore[type-var]
        assert spool.counters.published + spool.counters.found_there >= 8

    asyncio.run(scene())


def test_while_nobody_answers_records_wait_and_are_counted() -> None:
    async def scene() -> None:
        local, far = MemoryTopic("local"), FarTopic()
        far.is_away = True
        await fill(local, range(5))

        first = await carried(local, far, lambda spool: spool.counters.faults > 0)
        assert (first.waiting, first.last_fault) == (5, "nobody answers")
        await fill(local, range(5, 9))
        far.is_away = False
        await carried(local, far, is_drained)

        assert values(far.topic) == [b"%d" % number for number in range(9)]

    asyncio.run(scene())


def test_what_was_sent_and_not_noted_down_is_found_at_the_far_side_and_not_sent_again() -> None:
    async def scene() -> None:
        local, far = MemoryTopic("local"), FarTopic()
        await fill(local, range(20))
        await carried(local, far, is_drained)
        await local.positions(GROUP).commit({0: 12})  # as if the process had ended before the last notes
        await fill(local, range(20, 25))

        spool = await carried(local, far, is_drained)

        assert values(far.topic) == [b"%d" % number for number in range(25)]
        assert (spool.counters.found_there, spool.counters.published) == (8, 5)

    asyncio.run(scene())


def test_equal_records_are_told_apart_by_their_number() -> None:
    async def scene() -> None:
        local, far = MemoryTopic("local"), FarTopic()
        same = Record(b"key", b"same", {}, 7)
        writer = local.writer(lambda: 0)
        await writer.append([same])
        await carried(local, far, is_drained)
        await writer.append([same, same])
        await local.positions(GROUP).commit({0: 0})

        await carried(local, far, is_drained)

        assert values(far.topic) == [b"same"] * 3

    asyncio.run(scene())
