"""What an inbox promises, in memory and on disk alike: one claim for each id, the last verdict, and a bound."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.delivery.stores.inbox import CAPACITY, InboxRecord, InboxState, InboxStore
from stagepost.delivery.stores.inbox_stores import (
    InboxRows,
    MemoryInbox,
    MemoryInboxDisk,
    SqliteInbox,
    claim_within,
)
from stagepost.errors import StagepostError, StorageError
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from tests.worlds.delivery.outbox_records import CREATED_MS, an_id, seen

Open: TypeAlias = Callable[..., InboxRows]


@pytest.fixture(params=["memory", "disk"])
def open_inbox(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    disk = MemoryInboxDisk()

    def opened(**options: Any) -> InboxRows:
        if request.param == "memory":
            return MemoryInbox(disk, **options)
        return SqliteInbox(tmp_path / "inbox", **options)

    return opened


async def records(open_inbox: Open, inbox: InboxRows) -> dict[bytes, InboxRecord]:
    """After a restart in good order."""
    await inbox.close()
    again = open_inbox()
    content = again.load()
    await again.close()
    assert content.damage == ()
    return {record.delivery_id: record for record in content.records}


def test_a_verdict_is_there_after_a_restart(open_inbox: Open) -> None:
    async def main() -> None:
        inbox: InboxStore = open_inbox()
        assert inbox.load().records == ()
        refused = InboxRecord(an_id(2), InboxState.REFUSED, CREATED_MS + 5, verdict=4)
        await asyncio.gather(inbox.put(seen(1)), inbox.put(refused))
        inbox.mark(seen(3, InboxState.PROCESSING))
        await inbox.flush()
        await inbox.close()
        again = open_inbox()
        assert {record.delivery_id: record for record in again.load().records} == {
            an_id(1): seen(1),
            an_id(2): refused,
            an_id(3): seen(3, InboxState.PROCESSING),
        }
        await again.close()

    asyncio.run(main())


def test_a_claim_is_given_once_however_many_ask_at_once_and_in_whatever_form(open_inbox: Open) -> None:
    async def main() -> None:
        inbox = open_inbox()
        answers = await asyncio.gather(*(inbox.claim(an_id(1)) for _ in range(20)))
        assert answers == [True] + [False] * 19
        assert not await inbox.claim(an_id(1).hex())
        assert await inbox.claim(an_id(2).hex())
        await inbox.close()
        again = open_inbox()
        assert not await again.claim(an_id(1))
        assert not await again.claim(an_id(2))
        assert await again.claim(an_id(3))
        await again.close()

    asyncio.run(main())


def test_a_verdict_does_not_undo_a_claim_and_a_claim_does_not_undo_a_verdict(open_inbox: Open) -> None:
    async def main() -> None:
        inbox = open_inbox()
        assert await inbox.claim(an_id(1), CREATED_MS + 10)
        await inbox.put(seen(1, InboxState.DONE, CREATED_MS + 5))
        await inbox.put(InboxRecord(an_id(2), InboxState.REFUSED, CREATED_MS + 50, verdict=3))
        assert await inbox.claim(an_id(2), CREATED_MS)
        assert not await inbox.claim(an_id(1))
        assert await records(open_inbox, inbox) == {
            an_id(1): InboxRecord(an_id(1), InboxState.DONE, CREATED_MS + 10, is_claimed=True),
            an_id(2): InboxRecord(an_id(2), InboxState.REFUSED, CREATED_MS + 50, 3, is_claimed=True),
        }

    asyncio.run(main())


def test_a_claim_can_be_given_back_by_who_knows_that_nothing_happened(open_inbox: Open) -> None:
    async def main() -> None:
        inbox = open_inbox()
        assert await inbox.claim(an_id(1))
        await inbox.release(an_id(1).hex())
        await inbox.release(an_id(9))
        assert await inbox.claim(an_id(1))
        assert not await inbox.claim(an_id(1))
        await inbox.close()

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [b"", b"short", bytes(33), "ab", "zz" * 32, an_id(1).hex() + "00"])
def test_an_id_of_another_shape_is_refused(wrong: bytes | str) -> None:
    inbox = MemoryInbox()
    with pytest.raises(StagepostError, match="a delivery id has 32 bytes, or twice as many hexadecimal"):
        asyncio.run(inbox.claim(wrong))


def test_what_need_not_be_kept_any_longer_goes(open_inbox: Open) -> None:
    async def main() -> None:
        inbox = open_inbox()
        for number in range(5):
            await inbox.put(seen(number, keep_until_ms=CREATED_MS + number))
        await inbox.put(seen(0, keep_until_ms=CREATED_MS + 90))
        await inbox.put(seen(4, keep_until_ms=CREATED_MS))
        inbox.expire(CREATED_MS + 2)
        assert set(await records(open_inbox, inbox)) == {an_id(0), an_id(2), an_id(3), an_id(4)}
        assert inbox.overflowed == 0

    asyncio.run(main())


def test_above_the_capacity_the_record_that_would_be_dropped_soonest_goes_first(open_inbox: Open) -> None:
    async def main() -> None:
        inbox = open_inbox(capacity=3)
        for number, keep in ((1, 50), (2, 10), (3, 40)):
            await inbox.put(seen(number, keep_until_ms=keep))
        assert inbox.overflowed == 0
        await inbox.put(seen(4, keep_until_ms=30))
        assert inbox.overflowed == 1
        await inbox.put(seen(4, keep_until_ms=60))
        await inbox.put(seen(5, keep_until_ms=70))
        assert inbox.overflowed == 2
        assert set(await records(open_inbox, inbox)) == {an_id(1), an_id(4), an_id(5)}

    asyncio.run(main())
    assert CAPACITY == 100_000


def test_a_record_that_would_go_at_once_does(open_inbox: Open) -> None:
    async def main() -> None:
        inbox = open_inbox(capacity=1)
        await inbox.put(seen(1, keep_until_ms=50))
        await inbox.put(seen(2, keep_until_ms=10))
        assert inbox.overflowed == 1
        assert set(await records(open_inbox, inbox)) == {an_id(1)}

    asyncio.run(main())


def test_a_claim_of_which_nothing_else_is_known_is_kept_for_an_hour() -> None:
    async def main() -> None:
        disk = MemoryInboxDisk()
        inbox = MemoryInbox(disk, clock=LoopClock(1_000.0))
        await inbox.claim(an_id(1))
        await inbox.close()
        (record,) = MemoryInbox(disk).load().records
        assert record == InboxRecord(
            an_id(1), InboxState.PROCESSING, (1_000 + 3_600) * 1_000, is_claimed=True
        )

    run_in_virtual_time(main())


def test_a_crash_takes_only_claims_that_were_never_answered() -> None:
    async def main() -> None:
        disk = MemoryInboxDisk(sync_s=lambda: 1.0)
        inbox = MemoryInbox(disk)
        assert await inbox.claim(an_id(1))
        late = asyncio.create_task(inbox.claim(an_id(2)))
        await asyncio.sleep(0.5)
        disk.crash()
        with pytest.raises(StorageError):
            await late
        again = MemoryInbox(disk)
        assert not await again.claim(an_id(1))
        assert await again.claim(an_id(2))

    run_in_virtual_time(main())


def test_an_unsafe_inbox_gives_a_claim_twice() -> None:
    """The control: a claim that is not durable is none."""

    async def main() -> None:
        disk = MemoryInboxDisk()
        assert await MemoryInbox(disk, is_safe=False).claim(an_id(1))
        disk.crash()
        assert await MemoryInbox(disk).claim(an_id(1))

    run_in_virtual_time(main())


def test_a_failed_claim_is_nobodys() -> None:
    async def main() -> None:
        disk = MemoryInboxDisk()
        inbox = MemoryInbox(disk, capacity=2)
        await inbox.put(seen(1, keep_until_ms=1))
        await inbox.put(seen(2, keep_until_ms=2))
        disk.fail_next()
        answers = await asyncio.gather(
            *(inbox.claim(an_id(3), 9) for _ in range(2)), inbox.put(seen(1, keep_until_ms=7)), return_exceptions=True
        )  # fmt: skip
        assert all(isinstance(answer, StorageError) for answer in answers)
        assert inbox.overflowed == 0
        assert await inbox.claim(an_id(3), 9)
        assert inbox.overflowed == 1
        await inbox.close()
        assert {record.delivery_id for record in MemoryInbox(disk).load().records} == {an_id(2), an_id(3)}

    run_in_virtual_time(main())


def test_without_any_disk_an_inbox_claims_at_once() -> None:
    async def main() -> None:
        inbox = MemoryInbox(capacity=1)
        assert await inbox.claim(an_id(1), 5)
        assert not await inbox.claim(an_id(1), 5)
        inbox.mark(seen(2, keep_until_ms=9))
        assert inbox.overflowed == 1
        assert [record.delivery_id for record in inbox.load().records] == [an_id(2)]
        await inbox.close()

    run_in_virtual_time(main())


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "claim", "expire", "fail", "restart"]), st.integers(0, 6), st.integers(0, 30)),
    max_size=60,
)  # fmt: skip


@given(STEPS)
def test_after_any_steps_exactly_the_records_are_left_that_would_be_dropped_last(
    steps: list[tuple[str, int, int]],
) -> None:
    capacity = 4

    async def main() -> None:
        disk = MemoryInboxDisk()
        inbox = MemoryInbox(disk, capacity=capacity)
        model: dict[bytes, int] = {}
        for step, number, keep in steps:
            if step == "restart":
                await inbox.close()
                inbox = MemoryInbox(disk, capacity=capacity)
            elif step == "expire":
                inbox.expire(keep)
                await inbox.flush()
                model = {key: value for key, value in model.items() if value >= keep}
            elif step == "fail":
                disk.fail_next()
                with pytest.raises(StorageError):
                    await inbox.put(seen(number + 100, keep_until_ms=keep))
                await inbox.flush()
            else:
                if step == "put":
                    await inbox.put(seen(number, keep_until_ms=keep))
                elif not await inbox.claim(an_id(number), keep):
                    continue  # a claim that is refused changes nothing
                model[an_id(number)] = max(keep, model.get(an_id(number), 0))
                if len(model) > capacity:
                    del model[min(model, key=lambda key: (model[key], key))]
            found = {record.delivery_id: record.keep_until_ms for record in inbox.load().records}
            assert found.keys() == model.keys()
        await inbox.close()

    run_in_virtual_time(main())


# A claim inside the caller's own transaction


@pytest.fixture
def own(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "own.sqlite")
    connection.execute("CREATE TABLE effects (id BLOB)")
    yield connection
    connection.close()


def test_a_claim_within_a_transaction_comes_and_goes_with_it(own: sqlite3.Connection) -> None:
    with own:
        assert claim_within(own, an_id(1))
        own.execute("INSERT INTO effects VALUES (?)", (an_id(1),))
    assert claim_within(own, an_id(2).hex())
    own.execute("INSERT INTO effects VALUES (?)", (an_id(2),))
    own.rollback()
    with own:
        assert not claim_within(own, an_id(1).hex())
        assert claim_within(own, an_id(2))
    assert own.execute("SELECT count(*) FROM effects").fetchone() == (1,)
