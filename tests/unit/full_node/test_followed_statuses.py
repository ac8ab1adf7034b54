"""Statuses of followed messages: a follower misses none and gets none twice, whenever it begins."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stagepost.errors import ErrorCode, StagepostError, StorageError
from stagepost.full_node import followed as followed_statuses
from stagepost.full_node.followed import FollowedStatuses
from stagepost.remp.receipts.status_records import STATUSES_TOPIC, StatusRecord
from stagepost.remp.validator_sets import ValidatorSets

ID = bytes(range(32))


def a_record(number: int, session: str = "") -> StatusRecord:
    headers = {"session": session} if session else {}
    return StatusRecord(b"%d" % number, ID.hex(), STATUSES_TOPIC, number, headers)


class Topic:
    """Records on disk. Reading waits until the test lets it go on."""

    def __init__(self, *written: int) -> None:
        self.written = [a_record(number) for number in written]
        self.may_read = threading.Event()
        self.reads = 0
        self.followed = FollowedStatuses(self.read, lambda: ValidatorSets({}, []))

    def read(self, message_id: bytes) -> list[StatusRecord]:
        self.reads += 1
        assert self.may_read.wait(10)
        return list(self.written)


def numbers(records: list[StatusRecord]) -> list[int]:
    return [int(record.value or b"") for record in records]


def test_what_is_on_disk_comes_meanwhile_and_is_yet_to_come_is_told_in_order_each_once() -> None:
    async def main() -> None:
        topic = Topic(1, 2)
        following = topic.followed.following(ID)
        entering = asyncio.create_task(following.__aenter__())
        await asyncio.sleep(0)
        for number in (3, 4):  # it may be read as well, or not
            topic.followed.heard(a_record(number))
        topic.written.append(a_record(3))
        topic.may_read.set()
        followed = await entering
        topic.followed.heard(a_record(5))
        topic.followed.heard(a_record(5))
        topic.followed.heard(a_record(5, session="ab" * 32))
        assert numbers(followed.records) == [1, 2, 3, 4, 5, 5]
        await following.__aexit__(None, None, None)
        assert len(topic.followed) == 0
        topic.followed.heard(a_record(6))
        assert numbers(followed.records) == [1, 2, 3, 4, 5, 5], "nobody follows any more"

    asyncio.run(main())


def test_two_who_follow_one_message_share_one_reading_and_see_the_same() -> None:
    async def main() -> None:
        topic = Topic(1, 2)
        entering = [asyncio.create_task(topic.followed.following(ID).__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in entering)
        topic.may_read.set()
        first, second = await asyncio.gather(*entering)
        assert first is second
        assert (numbers(first.records), topic.reads) == ([1, 2], 1)

    asyncio.run(main())


def test_one_who_gives_up_while_the_topic_is_read_leaves_nothing_behind() -> None:
    async def main() -> None:
        topic = Topic(1)
        entering = asyncio.create_task(topic.followed.following(ID).__aenter__())
        await asyncio.sleep(0)
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        assert len(topic.followed) == 0
        topic.may_read.set()

    asyncio.run(main())


def test_a_topic_that_cannot_be_read_is_an_error_of_this_following_alone() -> None:
    async def main() -> None:
        faults = [StorageError("the disk is gone")]

        def read(message_id: bytes) -> list[StatusRecord]:
            if faults:
                raise faults.pop()
            return [a_record(1)]

        statuses = FollowedStatuses(read, lambda: ValidatorSets({}, []))
        with pytest.raises(StorageError, match="the disk is gone"):
            async with statuses.following(ID):
                pass
        async with statuses.following(ID) as followed:
            assert numbers(followed.records) == [1]

    asyncio.run(main())


def test_so_many_messages_are_followed_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_statuses, "FOLLOWED_MAX", 1)

    async def main() -> None:
        topic = Topic(1)
        topic.may_read.set()
        async with topic.followed.following(ID), topic.followed.following(ID):
            with pytest.raises(StagepostError) as caught:
                async with topic.followed.following(bytes(32)):
                    pass
            assert caught.value.code is ErrorCode.QUEUE_FULL
        async with topic.followed.following(bytes(32)):
            assert len(topic.followed) == 1

    asyncio.run(main())


def test_so_many_statuses_of_a_message_are_told_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_statuses, "STATUSES_MAX", 3)

    async def main() -> None:
        topic = Topic(1, 2)
        topic.may_read.set()
        async with topic.followed.following(ID) as followed:
            for number in (3, 4):
                topic.followed.heard(a_record(number))
            assert numbers(followed.records) == [1, 2, 3]

    asyncio.run(main())


def test_waiting_ends_with_news_or_with_the_time() -> None:
    async def main() -> None:
        topic = Topic(1)
        topic.may_read.set()
        async with topic.followed.following(ID) as followed:
            await followed.more_than(0, 60)  # there is more already
            await followed.more_than(1, 0.01)
            assert numbers(followed.records) == [1]
            waiting = asyncio.create_task(followed.more_than(1, 60))
            await asyncio.sleep(0)
            topic.followed.heard(a_record(2))
            await waiting

    asyncio.run(main())
