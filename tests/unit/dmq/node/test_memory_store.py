"""The store without a disk must lose and keep exactly what a real one would."""

from __future__ import annotations

import asyncio

import pytest

from stagepost.dmq.mempool import MempoolEntry
from stagepost.dmq.node.memory_store import MemoryDisk, MemoryStore
from stagepost.dmq.node.message_store import StoredPool, StoredState
from stagepost.errors import ErrorCode, StorageError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from tests.worlds.dmq.pool_signers import NOW, Signer
from tests.worlds.ground.strategies import a_signed_legacy_message


def an_entry(index: int, pool: int = 0) -> MempoolEntry:
    return MempoolEntry(index, Signer(pool, issue_number=3).sign(index), NOW * 1_000 + index, "local")


def test_what_was_put_is_there_for_the_next_owner() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        store = MemoryStore(disk)
        assert store.load() == StoredState()
        legacy = MempoolEntry(3, a_signed_legacy_message(), NOW * 1_000, "192.0.2.1:3141")
        await store.put([an_entry(1), an_entry(2)])
        await store.put([legacy])
        await store.close()

        state = MemoryStore(disk).load()
        assert state.messages == (an_entry(1), an_entry(2), legacy)
        assert (state.index_max, state.highest_ms) == (3, NOW * 1_000 + 2)

    run_in_virtual_time(main())


def test_putting_takes_as_long_as_the_disk_takes() -> None:
    async def main() -> float:
        await MemoryStore(MemoryDisk(sync_s=lambda: 0.7)).put([an_entry(1)])
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == pytest.approx(0.7)


def test_a_crash_loses_what_was_not_synced_and_nothing_else() -> None:
    async def main() -> None:
        disk = MemoryDisk(sync_s=lambda: 1.0)
        store = MemoryStore(disk)
        await store.put([an_entry(1)])
        late = asyncio.create_task(store.put([an_entry(2)]))
        await asyncio.sleep(0.5)
        assert len(disk.unsynced) == 1

        disk.crash()

        with pytest.raises(StorageError, match="crash"):
            await late
        again = MemoryStore(disk)
        assert again.load().messages == (an_entry(1),)
        with pytest.raises(StorageError):
            await store.put([an_entry(3)])
        await again.put([an_entry(2)])

    run_in_virtual_time(main())


def test_an_unsafe_store_loses_what_it_accepted() -> None:
    """The control: a checker that does not notice this one checks nothing."""

    async def main() -> None:
        disk = MemoryDisk()
        await MemoryStore(disk, is_safe=False).put([an_entry(1)])
        disk.crash()
        assert MemoryStore(disk).load().messages == ()

    run_in_virtual_time(main())


def test_failures_come_on_order_and_nothing_of_them_counts() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        store = MemoryStore(disk)
        disk.fail_next(after=1)
        await store.put([an_entry(1)])
        with pytest.raises(StorageError) as failed:
            await store.put([an_entry(2)])
        assert failed.value.code is ErrorCode.STORAGE_UNAVAILABLE
        assert store.fault == "input/output error"
        disk.is_full = True
        with pytest.raises(StorageError, match="no space left"):
            await store.put([an_entry(2)])
        disk.is_full = False
        await store.put([an_entry(2), an_entry(3)])
        assert not store.fault
        await store.close()
        assert [entry.index for entry in MemoryStore(disk).load().messages] == [1, 2, 3]

    run_in_virtual_time(main())


def test_what_is_forgotten_leaves_its_pool_and_the_time_even_if_a_write_fails_between() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        store = MemoryStore(disk)
        await store.put([an_entry(1), an_entry(2)])
        store.forget([an_entry(1)], NOW + 70)
        disk.fail_next()
        with pytest.raises(StorageError):
            await store.put([an_entry(3)])
        store.forget([an_entry(2)], NOW + 90)
        await store.close()

        state = MemoryStore(disk).load()
        assert state.messages == ()
        assert state.pools == (StoredPool(Signer().pool_id, 3, NOW * 1_000 + 2),)
        assert state.highest_ms == (NOW + 90) * 1_000

    run_in_virtual_time(main())


def test_a_disk_has_one_owner() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        store = MemoryStore(disk)
        with pytest.raises(StorageError, match="another process"):
            MemoryStore(disk)
        await store.close()
        await store.close()
        MemoryStore(disk)

    run_in_virtual_time(main())
