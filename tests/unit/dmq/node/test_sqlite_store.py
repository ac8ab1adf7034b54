"""The store on disk: durable, alone with its file, suspicious of what it reads, and usable again after any error."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from stagepost.dmq.mempool import Mempool, MempoolEntry
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.message_store import StoredPool, StoredState
from stagepost.dmq.node.stored_messages import SqliteStore
from stagepost.dmq.outcome import Accepted, Rejected
from stagepost.dmq.validation import MessageValidator, rules_for
from stagepost.errors import ConfigError, ErrorCode, StorageError
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.signatures.verifier import InlineVerifier
from stagepost.ground.storage.layout import StoreRefused
from stagepost.ground.storage.sqlite_file import beside
from tests.worlds.dmq.pool_signers import NOW, KnownPools, Signer
from tests.worlds.ground.damaged_files import change_row, cut, damaged, files_in, flip, run_alone
from tests.worlds.ground.failing_disk import Disk, errors
from tests.worlds.ground.strategies import a_signed_legacy_message


def an_entry(index: int, pool: int = 0) -> MempoolEntry:
    return MempoolEntry(index, Signer(pool, issue_number=3).sign(index), NOW * 1_000 + index, "local")


ENTRIES = tuple(an_entry(index, index % 3) for index in range(1, 31))


def filled(
    path: Path, entries: Iterable[MempoolEntry] = ENTRIES, forgotten: Sequence[MempoolEntry] = ()
) -> None:
    async def main() -> None:
        store = SqliteStore(path)
        store.load()
        await store.put(tuple(entries))
        if forgotten:
            store.forget(forgotten, NOW + 50)
        await store.close()

    asyncio.run(main())


def loaded(path: Path) -> StoredState:
    async def main() -> StoredState:
        store = SqliteStore(path)
        state = store.load()
        await store.close()
        return state

    return asyncio.run(main())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "messages.sqlite"


def test_a_new_store_is_empty_and_undamaged(path: Path) -> None:
    assert loaded(path) == StoredState()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_put_is_there_in_order_of_arrival(path: Path) -> None:
    legacy = MempoolEntry(31, a_signed_legacy_message(), NOW * 1_000 + 99, "ünï 192.0.2.1:3141")
    filled(path, [*ENTRIES, legacy])

    assert loaded(path) == StoredState((*ENTRIES, legacy), (), NOW * 1_000 + 99, 31)


def test_what_is_forgotten_leaves_its_pool_and_the_time(path: Path) -> None:
    filled(path, forgotten=ENTRIES[:4])

    state = loaded(path)

    assert state.messages == ENTRIES[4:]
    assert {pool.pool_id: pool for pool in state.pools} == {
        Signer(number).pool_id: StoredPool(Signer(number).pool_id, 3, NOW * 1_000 + last)
        for number, last in ((0, 3), (1, 4), (2, 2))
    }
    assert state.highest_ms == (NOW + 50) * 1_000
    assert state.damage == ()


def test_the_largest_numbers_fit(path: Path) -> None:
    signer = Signer(issue_number=2**64 - 1)
    entry = MempoolEntry(2**40, signer.sign(1), 2**50, "local")
    filled(path, [entry], [entry])

    assert loaded(path).pools == (StoredPool(signer.pool_id, 2**64 - 1, (NOW + 50) * 1_000),)


def test_many_puts_at_once_share_transactions(path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(path)
        await asyncio.gather(*(store.put([entry]) for entry in ENTRIES))
        assert store.counters.jobs == 30
        assert store.counters.groups < 30
        assert store.fault is None
        await store.close()

    asyncio.run(main())
    assert loaded(path).messages == ENTRIES


def test_who_stops_waiting_does_not_harm_the_writing(path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(path)
        impatient = asyncio.create_task(store.put(ENTRIES[:5]))
        await asyncio.sleep(0)
        impatient.cancel()
        await store.put(ENTRIES[5:])
        await store.close()
        with pytest.raises(StorageError, match="closed"):
            await store.put(ENTRIES[:1])
        await store.close()

    asyncio.run(main())
    assert loaded(path).messages == ENTRIES


def test_a_second_owner_is_refused_by_name(path: Path) -> None:
    first = SqliteStore(path)
    with pytest.raises(StorageError, match=str(os.getpid())) as refused:
        SqliteStore(path)
    assert refused.value.code is ErrorCode.STORAGE_UNAVAILABLE
    asyncio.run(first.close())

    assert loaded(path) == StoredState()


def test_a_folder_that_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        SqliteStore(tmp_path / "missing" / "messages.sqlite")


# D3: damage


def check_after_damage(path: Path, before: StoredState) -> bool:
    """What is read is right, and what is not there any more was reported; False if the file was refused untouched."""
    files = files_in(path.parent)
    try:
        state = loaded(path)
    except StoreRefused:
        assert files_in(path.parent) == files
        return False
    assert set(state.messages) <= set(before.messages)
    assert set(state.pools) <= set(before.pools)
    if (state.messages, state.pools) != (before.messages, before.pools) or (
        state.highest_ms < before.highest_ms
    ):
        assert state.damage, "something is gone, and nobody said so"
    # Everything was put in order: the next start finds nothing new, and the store can be written.
    again = loaded(path)
    assert (again.messages, again.pools, again.damage) == (state.messages, state.pools, ())
    filled(path, [an_entry(99)])
    return True


def damaged_copies(tmp_path: Path, change: Callable[[bytearray, int], None], places: Iterable[int]) -> int:
    """Check a copy for each place; return how many of them were opened."""
    opened = 0
    original = tmp_path / "original.sqlite"
    filled(original, ENTRIES[:12], ENTRIES[:4])
    content = original.read_bytes()
    before = loaded(original)
    for number, copy in enumerate(damaged(content, change, places)):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "messages.sqlite").write_bytes(copy)
        opened += check_after_damage(folder / "messages.sqlite", before)
        shutil.rmtree(folder)
    return opened


def test_a_flipped_byte_is_noticed_in_the_first_kilobyte_everywhere(tmp_path: Path) -> None:
    """The header and the schema, where a flipped byte can mean anything, and mostly means an unknown layout."""
    assert damaged_copies(tmp_path, flip, [18, 19, *range(0, 1_200, 15)]) > 20


def test_a_flipped_byte_is_noticed_in_samples_of_the_whole_file(tmp_path: Path, run_seed: int) -> None:
    chance = random.Random(run_seed)
    assert damaged_copies(tmp_path, flip, [chance.randrange(1 << 30) for _ in range(60)]) > 20


def test_a_file_that_was_cut_is_noticed(tmp_path: Path, run_seed: int) -> None:
    chance = random.Random(run_seed)
    edges = [0, 1, 99, 100, 511, 512, 4_095, 4_096, 4_097, 8_192]
    damaged_copies(tmp_path, cut, edges + [chance.randrange(1 << 30) for _ in range(10)])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE messages SET raw = zeroblob(700) WHERE place = 7",
        "UPDATE messages SET received_ms = received_ms + 1 WHERE place = 7",
        "UPDATE messages SET source = 'elsewhere' WHERE place = 7",
        "UPDATE messages SET layout = 4 WHERE place = 7",
        "UPDATE messages SET layout = 'five' WHERE place = 7",
        "UPDATE messages SET checksum = x'00' WHERE place = 7",
        "UPDATE messages SET place = 70 WHERE place = 7",
    ],
)
def test_a_bad_row_is_moved_aside_and_reported(path: Path, statement: str) -> None:
    filled(path)
    change_row(path, statement)

    state = loaded(path)

    assert state.messages == ENTRIES[:6] + ENTRIES[7:]
    assert len(state.damage) == 1
    assert "a row of messages was set aside" in state.damage[0]
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT origin FROM set_aside").fetchall() == [("messages",)]
    connection.close()
    assert loaded(path).damage == ()


def test_a_bad_row_of_a_pool_is_moved_aside_and_reported(path: Path) -> None:
    filled(path, forgotten=ENTRIES[:4])
    pool_id = Signer(1).pool_id
    change_row(path, "UPDATE pools SET issue_number = x'0000000000000001' WHERE pool_id = ?", pool_id)

    state = loaded(path)

    assert {pool.pool_id for pool in state.pools} == {Signer(0).pool_id, Signer(2).pool_id}
    assert "a row of pools was set aside" in state.damage[0]
    assert loaded(path).damage == ()


def test_rows_that_vanished_are_reported(path: Path) -> None:
    filled(path, forgotten=ENTRIES[:4])
    change_row(path, "DELETE FROM messages WHERE place IN (8, 9)")
    change_row(path, "DELETE FROM pools WHERE pool_id = ?", Signer(1).pool_id)
    change_row(path, "DELETE FROM facts WHERE name = 'highest_ms'")

    state = loaded(path)

    assert len(state.messages) == 24
    assert sorted(line.split(":")[0] for line in state.damage) == [
        "rows of messages are missing",
        "rows of pools are missing",
        "the note of highest_ms is missing",
    ]
    assert loaded(path).damage == ()


def test_a_message_that_is_stored_twice_is_loaded_once(path: Path) -> None:
    twice = MempoolEntry(31, ENTRIES[0].message, NOW * 1_000, "local")
    filled(path, [*ENTRIES, twice])

    state = loaded(path)

    assert state.messages == ENTRIES
    assert "stored twice" in state.damage[0]
    assert loaded(path).damage == ()


def test_an_unreadable_file_is_kept_under_another_name_and_its_rows_are_copied(path: Path) -> None:
    filled(path, [an_entry(index) for index in range(1, 200)], [an_entry(1)])
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4_096 * 4_096
    content[middle : middle + 64] = b"\xff" * 64
    path.write_bytes(content)

    state = loaded(path)

    assert 150 < len(state.messages) < 198
    assert all(entry == an_entry(entry.index) for entry in state.messages)
    assert state.pools == (StoredPool(Signer().pool_id, 3, NOW * 1_000 + 1),)
    assert state.highest_ms == (NOW + 50) * 1_000
    assert "is kept as messages.sqlite.damaged-1" in state.damage[0]
    assert beside(path, ".damaged-1").read_bytes() == content
    assert loaded(path).messages == state.messages


def test_an_interrupted_creation_is_done_again(path: Path) -> None:
    beside(path, ".new").write_bytes(b"half")

    assert loaded(path) == StoredState()


def crashed(path: Path) -> tuple[bytes, bytes]:
    """A file and its log as they lie on disk while the node runs: six transactions, all in the log."""

    async def main() -> tuple[bytes, bytes]:
        store = SqliteStore(path)
        for start in range(0, 30, 5):
            await store.put(ENTRIES[start : start + 5])
        content = path.read_bytes(), beside(path, "-wal").read_bytes()
        await store.close()
        return content

    return asyncio.run(main())


def test_a_log_that_is_whole_is_taken_over_and_gives_no_alarm(tmp_path: Path) -> None:
    content, log = crashed(tmp_path / "original.sqlite")
    path = tmp_path / "messages.sqlite"
    path.write_bytes(content)
    beside(path, "-wal").write_bytes(log)

    state = loaded(path)

    assert (state.messages, state.damage) == (ENTRIES, ())


def test_damage_inside_the_log_is_noticed(tmp_path: Path, run_seed: int) -> None:
    """SQLite alone would drop what follows and say nothing. Only the last transaction may look unfinished."""
    chance = random.Random(run_seed)
    content, log = crashed(tmp_path / "original.sqlite")
    places = [0, 8, 16, 24, 31, 32, 40, 50, 56, *(chance.randrange(len(log)) for _ in range(40))]
    for number, place in enumerate(places):
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(content)
        flipped = bytearray(log)
        flipped[place] ^= 0x10
        beside(path, "-wal").write_bytes(flipped)

        state = loaded(path)

        assert state.messages == ENTRIES[: len(state.messages)]
        if len(state.messages) < 25:
            assert "may be missing" in state.damage[0]
            assert beside(path, ".damaged-1-wal").read_bytes() == flipped


def test_a_log_that_was_cut_leaves_whole_transactions(tmp_path: Path) -> None:
    content, log = crashed(tmp_path / "original.sqlite")
    for number, length in enumerate((0, 20, 32, 33, len(log) // 2, len(log) - 1)):
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(content)
        beside(path, "-wal").write_bytes(log[:length])

        state = loaded(path)

        assert len(state.messages) % 5 == 0
        assert state.messages == ENTRIES[: len(state.messages)]


# D4: failing disks


@pytest.mark.parametrize(
    ("error", "fails_after_effect"),
    list(zip(errors(), [False, True, False], strict=True)),
    ids=["full", "fsync", "io"],
)
def test_a_failure_at_every_call_refuses_loses_nothing_and_heals(
    tmp_path: Path, error: Exception, fails_after_effect: bool
) -> None:
    """The whole way: intake, store, reopened file. The Nth call fails, for every N that a short life has; then also the
    Mth call after it, for every M that the reopening has."""

    accepted: list[MempoolEntry] = []

    async def life(path: Path, disk: Disk) -> None:
        store = SqliteStore(path, connect=disk.connect)
        mempool, validator = Mempool(), MessageValidator(rules_for(42), KnownPools())
        intake = Intake(validator, mempool, store, LoopClock(NOW), verifier=InlineVerifier())
        intake.on_accepted.append(accepted.append)
        disk.calls, disk.fails_at, disk.fails_again_after = 0, at or None, again
        for tag in range(1, 6):
            message = Signer(tag).sign(tag)
            remembered = validator.pools_remembered.export(0, 0)
            while isinstance(outcome := await intake.submit(message, "local"), Rejected):
                refused.append(outcome)
                assert outcome.code is ErrorCode.STORAGE_UNAVAILABLE
                assert outcome.is_transient
                assert store.fault is not None
                assert validator.pools_remembered.export(0, 0) == remembered
                # Each failure of the disk refuses once; the next attempt heals by itself.
                assert len(refused) <= disk.failures
            assert isinstance(outcome, Accepted)
            assert store.fault is None
            if tag == 3:
                store.forget(accepted[:1], NOW)
        await store.close()

    lives, at = 0, -1
    again: int | None = None
    while True:
        folder = tmp_path / f"{lives}"
        folder.mkdir()
        accepted.clear()
        refused: list[Rejected] = []
        at += again is None
        disk = Disk()
        disk.error, disk.fails_after_effect = error, fails_after_effect
        asyncio.run(life(folder / "messages.sqlite", disk))
        state = loaded(folder / "messages.sqlite")
        assert len(accepted) == 5
        assert (state.messages, state.damage) == (tuple(accepted[1:]), ())
        lives += 1
        if at and not disk.failures:
            break
        # A store that is full of rows, and a store that has been told to forget one.
        if at in (2, 4) and disk.failures == (1 if again is None else 2):
            again = 1 if again is None else again + 1
        else:
            again = None
    assert at > 5
    assert lives > 30


@pytest.mark.parametrize("error", errors(), ids=["full", "fsync", "io"])
def test_a_failure_at_every_call_of_opening_refuses_and_the_next_start_finds_everything(
    tmp_path: Path, error: Exception
) -> None:
    for entries in ((), ENTRIES):
        refused = True
        at = 0
        while refused:
            at += 1
            folder = tmp_path / f"{len(entries)}-{at}"
            folder.mkdir()
            path = folder / "messages.sqlite"
            if entries:
                filled(path, entries)
            disk = Disk()
            disk.fails_at, disk.error = at, error
            try:
                asyncio.run(SqliteStore(path, connect=disk.connect).close())
                refused = False
            except StorageError:
                assert (loaded(path).messages, loaded(path).damage) == (entries, ())
        assert at > 5


def test_a_disk_that_goes_on_failing_refuses_every_time_and_does_not_end_the_writer(path: Path) -> None:
    async def main() -> None:
        disk = Disk()
        store = SqliteStore(path, connect=disk.connect)
        await store.put(ENTRIES[:1])
        real = disk.call

        def broken(act: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
            raise sqlite3.OperationalError("disk I/O error")

        disk.call = broken  # type: ignore[method-assign]
        for _ in range(3):
            with pytest.raises(StorageError):
                await store.put(ENTRIES[1:2])
        store.forget(ENTRIES[:1], NOW + 1)
        assert store.counters.failures >= 3
        disk.call = real  # type: ignore[method-assign]
        await store.put(ENTRIES[1:3])
        await store.close()

    asyncio.run(main())
    state = loaded(path)
    assert state.messages == ENTRIES[1:3]
    assert state.pools == (StoredPool(Signer(1).pool_id, 3, NOW * 1_000 + 1),)


def test_a_real_limit_on_the_size_of_files_is_survived(path: Path) -> None:
    """The system itself cuts a write short. In a process of its own, since the limit cannot be taken back for all."""
    script = f"""
import asyncio, resource, sys
from pathlib import Path
from stagepost.errors import StorageError
from stagepost.dmq.node.stored_messages import SqliteStore
from tests.unit.dmq.node.test_sqlite_store import an_entry

async def main():
    store = SqliteStore(Path({str(path)!r}))
    kept = []
    await store.put([an_entry(1)])
    kept.append(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    refused = 0
    for index in range(2, 120):
        try:
            await store.put([an_entry(index)])
            kept.append(index)
        except StorageError:
            refused += 1
            if refused == 3:
                break
    assert refused == 3, refused
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.put([an_entry(200)])
    kept.append(200)
    await store.close()
    print(kept)

asyncio.run(main())
"""
    kept = [int(text) for text in run_alone(script).strip("[]\n").split(",")]

    state = loaded(path)

    assert [entry.index for entry in state.messages] == kept
    assert state.damage == ()


# The time


def test_a_stored_time_more_than_an_hour_ahead_is_refused(path: Path) -> None:
    filled(path, [an_entry(1)])

    async def start(unix_s: float, *, accept: bool = False) -> None:
        store = SqliteStore(path)
        try:
            intake = Intake(
                MessageValidator(rules_for(42), KnownPools()),
                Mempool(),
                store,
                LoopClock(unix_s),
                verifier=InlineVerifier(),
            )
            intake.restore(accept_stored_time=accept)
        finally:
            await store.close()

    asyncio.run(start(NOW - 3_600.0 + 1))
    with pytest.raises(ConfigError, match=rf"{NOW},.* {NOW - 3_700};"):
        asyncio.run(start(NOW - 3_700.0))
    asyncio.run(start(NOW - 3_700.0, accept=True))
    assert loaded(path).highest_ms // 1_000 == NOW - 3_700
    asyncio.run(start(NOW - 3_700.0))


def test_pool_ids_are_not_mixed_up(path: Path) -> None:
    filled(path, [an_entry(1, pool=4)], [an_entry(1, pool=4)])
    assert [pool.pool_id for pool in loaded(path).pools] == [PoolId(Signer(4).pool_id)]
