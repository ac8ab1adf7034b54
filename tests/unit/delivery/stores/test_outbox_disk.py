"""The outbox on disk: durable, alone with its folder, suspicious of what it reads, and usable again after any error."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from stagepost.delivery.errors import ErrConfig, ErrQueueCorrupt, ErrQueueLocked
from stagepost.delivery.stores.outbox import DeadLetter, Finished, OutboxContent, OutboxTotals
from stagepost.delivery.stores.outbox_stores import OUTBOX_FILE, SqliteOutbox
from stagepost.errors import ConfigError, ErrorCode, StagepostError, StorageError
from stagepost.ground.storage.layout import StoreRefused
from stagepost.ground.storage.sqlite_file import beside
from tests.worlds.delivery.outbox_records import a_dead, a_record, acked, filled, loaded, sent
from tests.worlds.ground.damaged_files import change_row, cut, damaged, files_in, flip, run_alone
from tests.worlds.ground.failing_disk import Disk, errors

RECORDS = tuple(a_record(number, key=bytes([number]) * 32) for number in range(1, 31))
MARKS: tuple[Finished | DeadLetter, ...] = (sent(1), acked(2), *(a_dead(record) for record in RECORDS[2:6]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def test_the_files_are_for_this_user_alone(folder: Path) -> None:
    filled(folder, RECORDS)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / OUTBOX_FILE).stat().st_mode & 0o777 == 0o600
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match=r"outbox folder .* has mode 0777"):
        SqliteOutbox(folder)


def test_many_inserts_at_once_share_transactions(folder: Path) -> None:
    async def main() -> None:
        disk = Disk()
        store = SqliteOutbox(folder, connect=disk.connect)
        disk.statements.clear()
        await asyncio.gather(*map(store.insert, RECORDS))
        assert len(disk.commits()) == 1
        await store.close()

    asyncio.run(main())
    assert loaded(folder).records == RECORDS


def test_a_second_owner_is_refused_and_told_who_has_the_folder(folder: Path) -> None:
    first = SqliteOutbox(folder)
    with pytest.raises(ErrQueueLocked, match=f"in use by process {os.getpid()}$") as refused:
        SqliteOutbox(folder)
    assert refused.value.code is ErrorCode.STORAGE_UNAVAILABLE
    asyncio.run(first.close())
    assert loaded(folder).damage == ()


def test_a_mode_that_does_not_exist_is_named(folder: Path) -> None:
    with pytest.raises(ErrConfig, match="commit, interval, off, not 'sometimes'"):
        SqliteOutbox(folder, fsync="sometimes")
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="outbox folder"):
        SqliteOutbox(tmp_path / "file")


# Which commits wait for the disk


def test_in_commit_mode_every_commit_waits_for_the_disk_before_the_insert_returns(folder: Path) -> None:
    async def main() -> None:
        disk = Disk()
        store = SqliteOutbox(folder, connect=disk.connect)
        for number in range(5):
            before = len(disk.commits())
            await store.insert(RECORDS[number])
            assert len(disk.commits()) == before + 1
            store.mark(sent(RECORDS[number].sequence))
        assert set(disk.commits()) == {"FULL"}
        await store.close()

    asyncio.run(main())


def test_without_syncs_an_insert_returns_after_the_write_and_only_the_end_waits(folder: Path) -> None:
    async def main() -> None:
        disk = Disk()
        store = SqliteOutbox(folder, fsync="off", connect=disk.connect)
        opening = len(disk.commits())
        for record in RECORDS[:5]:
            await store.insert(record)
        assert disk.commits()[opening:] == ["NORMAL"] * 5
        await store.close()
        assert disk.commits()[opening + 5 :] == ["FULL"]

    asyncio.run(main())


def test_in_interval_mode_a_sync_follows_within_a_second_by_itself(folder: Path) -> None:
    async def main() -> None:
        disk = Disk()
        synced = asyncio.Event()
        loop = asyncio.get_running_loop()
        call = disk.call

        def watched(act: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
            done = call(act)
            if len(disk.commits()) > opening and disk.commits()[-1] == "FULL":
                loop.call_soon_threadsafe(synced.set)
            return done

        store = SqliteOutbox(folder, fsync="interval", connect=disk.connect)
        opening = len(disk.commits())
        disk.call = watched  # type: ignore[method-assign]
        await store.insert(RECORDS[0])
        assert not synced.is_set()
        # Real time, as far as a thread and a real disk need it.
        await asyncio.wait_for(synced.wait(), 30)
        await store.close()

    asyncio.run(main())


# Damage


def check_after_damage(folder: Path, before: OutboxContent) -> bool:
    """What is read is right, and what is gone was reported and counted; False if the file was refused untouched."""
    files = files_in(folder)
    try:
        content = loaded(folder)
    except StoreRefused:
        assert files_in(folder) == files
        return False
    assert set(content.records) <= set(before.records)
    assert set(content.dead_letters) <= set(before.dead_letters)
    assert set(content.done_keys) <= set(before.done_keys)
    assert content.totals.live == len(content.records), "the totals do not balance"
    assert content.next_counter >= before.next_counter or content.damage
    # A head that is lost takes the totals with it; rows that are lost must count as failed.
    if (content.records, content.dead_letters, content.done_keys, content.totals) != (
        before.records,
        before.dead_letters,
        before.done_keys,
        before.totals,
    ):
        assert content.damage, "something is gone, and nobody said so"
    again = loaded(folder)
    assert (again.records, again.totals, again.damage) == (content.records, content.totals, ())
    filled(folder, [a_record(again.next_counter)])
    return True


def damaged_copies(tmp_path: Path, change: Callable[[bytearray, int], None], places: Iterable[int]) -> int:
    """Check a copy for each place; return how many of them were opened."""
    opened = 0
    original = tmp_path / "original"
    filled(original, RECORDS[:12], MARKS)
    content = (original / OUTBOX_FILE).read_bytes()
    before = loaded(original)
    for number, copy in enumerate(damaged(content, change, places)):
        folder = tmp_path / f"{number}"
        folder.mkdir(mode=0o700)
        (folder / OUTBOX_FILE).write_bytes(copy)
        opened += check_after_damage(folder, before)
        shutil.rmtree(folder)
    return opened


def test_a_flipped_bit_is_noticed_in_the_header_and_the_description_of_the_tables(tmp_path: Path) -> None:
    assert damaged_copies(tmp_path, flip, [18, 19, *range(0, 1_200, 31)]) > 10


def test_a_flipped_bit_is_noticed_in_samples_of_the_whole_file(tmp_path: Path, run_seed: int) -> None:
    chance = random.Random(run_seed)
    assert damaged_copies(tmp_path, flip, [chance.randrange(1 << 30) for _ in range(40)]) > 10


def test_a_file_that_was_cut_is_noticed(tmp_path: Path, run_seed: int) -> None:
    chance = random.Random(run_seed)
    edges = [0, 1, 99, 100, 512, 4_095, 4_096, 4_097, 8_192]
    damaged_copies(tmp_path, cut, edges + [chance.randrange(1 << 30) for _ in range(5)])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET content = zeroblob(70) WHERE key = 17",
        "UPDATE records SET content = 'text' WHERE key = 17",
        "UPDATE records SET checksum = x'00' WHERE key = 17",
        "UPDATE records SET key = 70 WHERE key = 17",
        "UPDATE records SET (content, checksum) = (SELECT content, checksum FROM records WHERE key = 18) WHERE key = 17",
    ],
)  # fmt: skip
def test_a_bad_row_is_moved_aside_reported_and_counted_and_the_others_are_there(
    folder: Path, statement: str
) -> None:
    filled(folder, RECORDS, MARKS)
    change_row(folder / OUTBOX_FILE, statement)

    async def main() -> tuple[OutboxContent, list[StagepostError]]:
        told: list[StagepostError] = []
        store = SqliteOutbox(folder)
        store.on_storage_error = told.append
        content = store.load()
        await store.close()
        return content, told

    content, told = asyncio.run(main())

    assert content.records == (*RECORDS[6:16], *RECORDS[17:])
    assert content.totals.failed == {"ErrQueueEvicted": 4, "ErrQueueCorrupt": 1}
    assert [type(error) for error in told] == [ErrQueueCorrupt, ErrQueueCorrupt]
    assert "a row of records was set aside" in told[0].text
    assert told[1].text == "1 messages are lost, and count as failed with ErrQueueCorrupt"
    connection = sqlite3.connect(folder / OUTBOX_FILE)
    assert connection.execute("SELECT origin FROM set_aside").fetchall() == [("records",)]
    connection.close()
    assert loaded(folder).damage == ()


def test_rows_that_vanished_are_reported_and_counted(folder: Path) -> None:
    filled(folder, RECORDS, MARKS)
    change_row(folder / OUTBOX_FILE, "DELETE FROM records WHERE key IN (8, 9)")
    change_row(folder / OUTBOX_FILE, "DELETE FROM done_keys WHERE key = ?", b"\3" * 32)

    content = loaded(folder)

    assert content.totals.failed["ErrQueueCorrupt"] == 2
    assert [line.split(":")[0] for line in content.damage] == [
        "rows of records are missing",
        "rows of done_keys are missing",
        "2 messages are lost, and count as failed with ErrQueueCorrupt",
    ]
    assert loaded(folder).damage == ()


@pytest.mark.parametrize(
    "statement", ["UPDATE head SET content = zeroblob(9)", "UPDATE head SET key = 'outbux'", "UPDATE head SET key = 7"]
)  # fmt: skip
def test_a_lost_head_gives_a_new_prefix_and_new_totals(folder: Path, statement: str) -> None:
    """A counter that may be too low must not meet the old prefix again."""
    filled(folder, RECORDS, MARKS)
    prefix = opened_prefix(folder)
    change_row(folder / OUTBOX_FILE, statement)

    content = loaded(folder)

    assert content.records == RECORDS[6:]
    assert content.totals == OutboxTotals(24)
    assert content.next_counter == 31
    assert "the totals are lost" in content.damage[-1]
    assert loaded(folder).damage == ()
    assert opened_prefix(folder) != prefix


def opened_prefix(folder: Path) -> bytes:
    store = SqliteOutbox(folder)
    asyncio.run(store.close())
    return store.nonce_prefix


def test_an_unreadable_file_is_kept_under_another_name_and_its_rows_are_copied(folder: Path) -> None:
    filled(folder, [a_record(number, payload=bytes(600)) for number in range(1, 200)])
    path = folder / OUTBOX_FILE
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4_096 * 4_096
    content[middle : middle + 64] = b"\xff" * 64
    path.write_bytes(content)

    found = loaded(folder)

    assert 150 < len(found.records) < 199
    assert all(record == a_record(record.sequence, payload=bytes(600)) for record in found.records)
    assert "is kept as outbox.sqlite.damaged-1" in found.damage[0]
    assert found.totals == OutboxTotals(199, failed={"ErrQueueCorrupt": 199 - len(found.records)})
    assert beside(path, ".damaged-1").read_bytes() == content
    assert loaded(folder).records == found.records


def crashed(folder: Path) -> tuple[bytes, bytes]:
    """A file and its log as they lie on disk while the publisher runs: six transactions, all in the log."""

    async def main() -> tuple[bytes, bytes]:
        store = SqliteOutbox(folder)
        for start in range(0, 30, 5):
            await asyncio.gather(*map(store.insert, RECORDS[start : start + 5]))
        content = (folder / OUTBOX_FILE).read_bytes(), (folder / f"{OUTBOX_FILE}-wal").read_bytes()
        await store.close()
        return content

    return asyncio.run(main())


def left_behind(folder: Path, content: bytes, log: bytes) -> Path:
    folder.mkdir(mode=0o700)
    (folder / OUTBOX_FILE).write_bytes(content)
    (folder / f"{OUTBOX_FILE}-wal").write_bytes(log)
    return folder


def test_a_torn_tail_is_cut_off_and_leaves_whole_transactions_that_balance(tmp_path: Path) -> None:
    content, log = crashed(tmp_path / "original")
    lengths = (0, 20, 32, 33, len(log) // 2, len(log) - 5_000, len(log) - 1, len(log))
    counts = []
    for number, length in enumerate(lengths):
        found = loaded(left_behind(tmp_path / f"{number}", content, log[:length]))

        assert len(found.records) % 5 == 0
        assert found.records == RECORDS[: len(found.records)]
        assert found.totals == OutboxTotals(len(found.records))
        counts.append(len(found.records))
        if length >= len(log) - 5_000:
            assert found.damage == ()
    assert (counts[0], counts[-2], counts[-1]) == (0, 25, 30)


def test_damage_inside_the_log_is_noticed(tmp_path: Path, run_seed: int) -> None:
    """SQLite alone would drop what follows and say nothing. Only the last transaction may look unfinished."""
    chance = random.Random(run_seed)
    content, log = crashed(tmp_path / "original")
    places = [0, 16, 24, 32, 40, 56, *(chance.randrange(len(log)) for _ in range(20))]
    for number, place in enumerate(places):
        flipped = bytearray(log)
        flipped[place] ^= 0x10
        found = loaded(left_behind(tmp_path / f"{number}", content, bytes(flipped)))

        assert found.records == RECORDS[: len(found.records)]
        if len(found.records) < 25:
            assert "may be missing" in found.damage[0]


# Failing disks


@pytest.mark.parametrize(
    ("error", "fails_after_effect"),
    list(zip(errors(), [False, True, False], strict=True)),
    ids=["full", "fsync", "io"],
)
def test_a_failure_at_every_call_refuses_loses_nothing_and_heals(
    tmp_path: Path, error: Exception, fails_after_effect: bool
) -> None:
    """The Nth call fails, for every N that a short life has; with fsync, after the write has gone through."""

    async def life(folder: Path, disk: Disk) -> tuple[list[int], list[int], int]:
        store = SqliteOutbox(folder, connect=disk.connect)
        store.on_storage_error = told.append
        disk.calls, disk.fails_at = 0, at or None
        kept: list[int] = []
        buried: list[int] = []
        for number in range(1, 9):
            victims = [a_dead(a_record(kept[0]))] if number % 3 == 0 else []
            try:
                await store.insert(a_record(number), victims)
            except StorageError:
                continue
            kept.append(number)
            if victims:
                buried.append(kept.pop(0))
            if number % 4 == 0:
                store.mark(sent(kept.pop(0)))
        await store.close()
        return kept, buried, disk.calls

    at = calls = 0
    while at <= calls:
        told: list[StagepostError] = []
        disk = Disk()
        disk.error, disk.fails_after_effect = error, fails_after_effect
        kept, buried, calls_had = asyncio.run(life(tmp_path / f"{at}", disk))
        calls = calls or calls_had
        content = loaded(tmp_path / f"{at}")
        assert [record.sequence for record in content.records] == kept
        assert [dead.record.sequence for dead in content.dead_letters] == buried
        assert content.totals.live == len(kept)
        assert content.totals.failed == {"ErrQueueEvicted": len(buried)}
        assert content.damage == ()
        at += 1
    assert at > 8, "each insert is a call, and there were eight"


@pytest.mark.parametrize("error", errors(), ids=["full", "fsync", "io"])
def test_a_failure_at_every_call_of_opening_refuses_and_the_next_start_finds_everything(
    tmp_path: Path, error: Exception
) -> None:
    for records in ((), RECORDS):
        refused = True
        at = 0
        while refused:
            at += 1
            folder = tmp_path / f"{len(records)}-{at}"
            if records:
                filled(folder, records)
            disk = Disk()
            disk.fails_at, disk.error = at, error
            try:
                asyncio.run(SqliteOutbox(folder, connect=disk.connect).close())
                refused = disk.fails_at is None
            except StorageError:
                content = loaded(folder)
                assert (content.records, content.damage) == (records, ())
        assert at > 5


def test_a_file_that_is_destroyed_under_a_failing_disk_is_written_again_from_memory(folder: Path) -> None:
    async def main() -> None:
        disk = Disk()
        store = SqliteOutbox(folder, connect=disk.connect)
        await asyncio.gather(*map(store.insert, RECORDS[:20]))
        disk.fails_at = disk.calls + 1
        with pytest.raises(StorageError):
            await store.insert(RECORDS[20])
        (folder / OUTBOX_FILE).write_bytes(b"\xff" * 5_000)
        beside(folder / OUTBOX_FILE, "-wal").unlink(missing_ok=True)
        await store.insert(RECORDS[21])
        await store.close()

    asyncio.run(main())
    content = loaded(folder)
    assert content.records == (*RECORDS[:20], RECORDS[21])
    assert (content.totals, content.damage) == (OutboxTotals(21), ())


def test_a_file_that_another_release_alters_under_a_failing_disk_is_refused_and_stays(folder: Path) -> None:
    async def main() -> None:
        disk = Disk()
        store = SqliteOutbox(folder, connect=disk.connect)
        await asyncio.gather(*map(store.insert, RECORDS[:20]))
        disk.fails_at = disk.calls + 1
        with pytest.raises(StorageError):
            await store.insert(RECORDS[20])
        change_row(folder / OUTBOX_FILE, "ALTER TABLE records ADD COLUMN later TEXT")
        altered = files_in(folder)
        with pytest.raises(StorageError, match="table records has the unknown column later"):
            await store.insert(RECORDS[21])
        assert files_in(folder) == altered
        change_row(folder / OUTBOX_FILE, "ALTER TABLE records DROP COLUMN later")
        await store.insert(RECORDS[22])
        await store.close()

    asyncio.run(main())
    content = loaded(folder)
    assert (content.records, content.damage) == ((*RECORDS[:20], RECORDS[22]), ())


def test_a_file_that_could_not_be_made_anew_is_made_by_the_next_attempt(folder: Path) -> None:
    async def main() -> None:
        disk = Disk()
        store = SqliteOutbox(folder, connect=disk.connect)
        await asyncio.gather(*map(store.insert, RECORDS[:20]))
        disk.fails_at = disk.calls + 1
        with pytest.raises(StorageError):
            await store.insert(RECORDS[20])
        (folder / OUTBOX_FILE).unlink()
        beside(folder / OUTBOX_FILE, "-wal").unlink(missing_ok=True)
        full, *_ = errors()
        disk.error, disk.fails_at = full, disk.calls + 2
        with pytest.raises(StorageError, match="full"):
            await store.insert(RECORDS[21])
        assert not (folder / OUTBOX_FILE).exists()
        await store.insert(RECORDS[22])
        await store.close()

    asyncio.run(main())
    content = loaded(folder)
    assert content.records == (*RECORDS[:20], RECORDS[22])
    assert content.damage == ()


def test_a_disk_that_goes_on_failing_refuses_every_time_and_serves_again_afterwards(folder: Path) -> None:
    async def main() -> None:
        disk = Disk()
        store = SqliteOutbox(folder, connect=disk.connect)
        await store.insert(RECORDS[0])
        real = disk.call

        def broken(act: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
            raise sqlite3.OperationalError("disk I/O error")

        disk.call = broken  # type: ignore[method-assign]
        for record in RECORDS[1:4]:
            with pytest.raises(StorageError, match="cannot be written"):
                await store.insert(record)
        store.mark(sent(1))
        disk.call = real  # type: ignore[method-assign]
        await store.insert(RECORDS[5])
        await store.close()

    asyncio.run(main())
    content = loaded(folder)
    assert content.records == (RECORDS[5],)
    assert content.totals == OutboxTotals(2, sent_final=1)


def test_a_real_limit_on_the_size_of_files_is_survived(folder: Path) -> None:
    """The system itself cuts a write short. In a process of its own, since the limit cannot be taken back for all."""
    script = f"""
import asyncio, resource
from pathlib import Path
from stagepost.errors import StorageError
from stagepost.delivery.stores.outbox_stores import SqliteOutbox
from tests.worlds.delivery.outbox_records import a_record

async def main():
    store = SqliteOutbox(Path({str(folder)!r}))
    await store.insert(a_record(1))
    kept, refused = [1], 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (90_000, hard))
    for number in range(2, 300):
        try:
            await store.insert(a_record(number, payload=bytes(700)))
            kept.append(number)
        except StorageError:
            refused += 1
            if refused == 3:
                break
    assert refused == 3, refused
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.insert(a_record(500))
    await store.close()
    print([*kept, 500])

asyncio.run(main())
"""
    kept = [int(text) for text in run_alone(script).strip("[]\n").split(",")]

    content = loaded(folder)

    assert len(kept) > 3
    assert [record.sequence for record in content.records] == kept
    assert (content.totals, content.damage) == (OutboxTotals(len(kept)), ())
