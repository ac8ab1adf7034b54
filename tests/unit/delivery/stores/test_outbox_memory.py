"""The outbox without a disk must lose and keep exactly what a real one would, in simulated time."""

from __future__ import annotations

import asyncio

import pytest

from stagepost.delivery.stores.outbox import OutboxTotals
from stagepost.delivery.stores.outbox_stores import MemoryOutbox, MemoryOutboxDisk
from stagepost.errors import ErrorCode, StagepostError, StorageError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.storage.group_writer import RETRY_S, SOON_S, SYNC_EVERY_S
from tests.worlds.delivery.outbox_records import a_dead, a_record, sent


def sequences(store: MemoryOutbox) -> list[int]:
    return [record.sequence for record in store.load().records]


def test_an_insert_takes_as_long_as_the_disk_and_those_who_wait_share_the_next_sync() -> None:
    async def main() -> None:
        disk = MemoryOutboxDisk(sync_s=lambda: 0.7)
        store = MemoryOutbox(disk)
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(store.insert(a_record(1)))
        await asyncio.sleep(0.1)
        await asyncio.gather(*(store.insert(a_record(number)) for number in range(2, 50)))
        assert first.done()
        assert loop.time() == pytest.approx(1.4)
        assert disk.syncs == 2

    run_in_virtual_time(main())


def test_a_power_cut_loses_what_was_not_synced_and_nothing_else() -> None:
    async def main() -> None:
        disk = MemoryOutboxDisk(sync_s=lambda: 1.0)
        store = MemoryOutbox(disk)
        await store.insert(a_record(1))
        store.mark(sent(1))
        late = asyncio.create_task(store.insert(a_record(2), [a_dead(a_record(1))]))
        await asyncio.sleep(0.5)

        disk.crash()

        with pytest.raises(StorageError, match="crash"):
            await late
        again = MemoryOutbox(disk)
        assert sequences(again) == [1]
        assert again.nonce_prefix == store.nonce_prefix
        with pytest.raises(StorageError):
            await store.insert(a_record(3))

    run_in_virtual_time(main())


def test_the_end_of_the_process_alone_keeps_what_the_system_was_given() -> None:
    async def main() -> None:
        for fsync in ("interval", "off"):
            disk = MemoryOutboxDisk()
            store = MemoryOutbox(disk, fsync=fsync)
            await store.insert(a_record(1))
            disk.kill()
            assert sequences(MemoryOutbox(disk)) == [1]

    run_in_virtual_time(main())


def test_what_a_power_cut_may_take_depends_on_the_mode() -> None:
    """Commit: nothing that returned. Interval: at most the last second. Off: everything."""

    async def main() -> None:
        left = {}
        for fsync in ("commit", "interval", "off"):
            disk = MemoryOutboxDisk()
            store = MemoryOutbox(disk, fsync=fsync)
            for number in range(1, 41):
                await asyncio.sleep(0.1)
                await store.insert(a_record(number))
            disk.crash()
            left[fsync] = len(sequences(MemoryOutbox(disk)))
        assert left["commit"] == 40
        assert 40 - 10 <= left["interval"] < 40
        assert left["off"] == 0

    run_in_virtual_time(main())
    assert SYNC_EVERY_S < 1.0


def test_marks_are_written_soon_without_anybody_waiting() -> None:
    async def main() -> None:
        disk = MemoryOutboxDisk(sync_s=lambda: 0.01)
        store = MemoryOutbox(disk)
        await asyncio.gather(store.insert(a_record(1)), store.insert(a_record(2)))
        for number in (1, 2):
            store.mark(sent(number))
        assert len(disk.synced["records"]) == 2
        await asyncio.sleep(SOON_S + 0.02)
        assert disk.synced["records"] == {}
        assert disk.syncs == 2

    run_in_virtual_time(main())


def test_an_unsafe_outbox_loses_what_it_accepted() -> None:
    """The control: a checker that does not notice this one checks nothing."""

    async def main() -> None:
        disk = MemoryOutboxDisk()
        await MemoryOutbox(disk, is_safe=False).insert(a_record(1))
        disk.crash()
        assert sequences(MemoryOutbox(disk)) == []

    run_in_virtual_time(main())


def test_a_failed_write_refuses_and_undoes_everything_of_its_insert() -> None:
    async def main() -> None:
        disk = MemoryOutboxDisk()
        store = MemoryOutbox(disk)
        disk.fail_next(after=1)
        await store.insert(a_record(1))
        with pytest.raises(StorageError, match="input/output error") as failed:
            await store.insert(a_record(2), [a_dead(a_record(1))])
        assert failed.value.code is ErrorCode.STORAGE_UNAVAILABLE
        disk.is_full = True
        with pytest.raises(StorageError, match="no space left"):
            await store.insert(a_record(3))
        disk.is_full = False
        await store.insert(a_record(4))
        await store.close()

        content = MemoryOutbox(disk).load()
        assert [record.sequence for record in content.records] == [1, 4]
        assert content.totals == OutboxTotals(2)
        assert content.dead_letters == ()

    run_in_virtual_time(main())


def test_marks_survive_failed_writes_in_their_order_and_somebody_is_told() -> None:
    async def main() -> None:
        told: list[StagepostError] = []
        disk = MemoryOutboxDisk()
        store = MemoryOutbox(disk)
        store.on_storage_error = told.append
        await asyncio.gather(store.insert(a_record(1)), store.insert(a_record(2)))
        disk.fail_next(3)
        store.mark(sent(1))
        with pytest.raises(StorageError):
            await store.flush()
        store.mark(a_dead(a_record(1)))
        store.mark(a_dead(a_record(2)))
        await asyncio.sleep(RETRY_S * 4)
        assert len(told) == 1, "once is enough until something goes well again"
        assert disk.synced["records"] == {}
        await store.close()
        # The first mark counts: message 1 was sent, and cannot die any more.
        content = MemoryOutbox(disk).load()
        assert content.totals == OutboxTotals(2, sent_final=1, failed={"ErrQueueEvicted": 1})

    run_in_virtual_time(main())


def test_a_close_that_cannot_write_reports_it_and_lets_go() -> None:
    async def main() -> None:
        told: list[StagepostError] = []
        disk = MemoryOutboxDisk()
        store = MemoryOutbox(disk)
        store.on_storage_error = told.append
        await store.insert(a_record(1))
        disk.is_full = True
        store.mark(sent(1))
        await store.close()
        assert len(told) == 1
        assert sequences(MemoryOutbox(disk)) == [1]

    run_in_virtual_time(main())


def test_a_disk_that_fails_to_sync_in_the_background_loses_nothing_that_is_still_in_memory() -> None:
    async def main() -> None:
        told: list[StagepostError] = []
        disk = MemoryOutboxDisk()
        store = MemoryOutbox(disk, fsync="interval")
        store.on_storage_error = told.append
        disk.fail_next()
        await store.insert(a_record(1))
        await asyncio.sleep(SYNC_EVERY_S + RETRY_S + 0.1)
        assert len(told) == 1
        disk.crash()
        assert sequences(MemoryOutbox(disk)) == [1]

    run_in_virtual_time(main())


def test_a_disk_has_one_owner() -> None:
    async def main() -> None:
        disk = MemoryOutboxDisk()
        store = MemoryOutbox(disk)
        with pytest.raises(StorageError, match="another process"):
            MemoryOutbox(disk)
        await store.close()
        MemoryOutbox(disk)

    run_in_virtual_time(main())


def test_without_any_disk_everything_happens_at_once() -> None:
    async def main() -> None:
        store = MemoryOutbox(nonce_prefix=b"8 bytes!")
        assert store.nonce_prefix == b"8 bytes!"
        await store.insert(a_record(1))
        store.mark(sent(1))
        await store.insert(a_record(2))
        await store.flush()
        content = store.load()
        assert content.totals == OutboxTotals(2, sent_final=1)
        assert asyncio.get_running_loop().time() == 0
        await store.close()

    run_in_virtual_time(main())
