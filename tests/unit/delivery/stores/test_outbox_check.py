"""What commands see of an outbox: read beside a running publisher, changed by nobody, and every fault is named."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from stagepost.delivery.status import DeliveryStatus
from stagepost.delivery.stores.outbox import EntryProgress, OutboxTotals
from stagepost.delivery.stores.outbox_stores import OUTBOX_FILE, SqliteOutbox
from stagepost.delivery.stores.reading import check_outbox, read_outbox
from stagepost.errors import StorageError
from stagepost.ground.storage.layout import StoreRefused
from tests.worlds.delivery.outbox_records import CREATED_MS, a_dead, a_record, acked, filled, loaded, sent
from tests.worlds.ground.damaged_files import UNREADABLE, change_row, content_of_folder, made_unreadable

RECORDS = tuple(a_record(number, key=bytes([number]) * 32) for number in range(1, 11))
MARKS = (sent(1), acked(2), a_dead(RECORDS[2]), a_dead(RECORDS[3], "ErrNacked"))
TOTALS = OutboxTotals(10, acked=1, sent_final=1, failed={"ErrQueueEvicted": 1, "ErrNacked": 1})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def test_a_sound_outbox_is_described_in_full(folder: Path) -> None:
    filled(folder, RECORDS, MARKS)

    check = check_outbox(folder)

    assert check.is_sound
    assert (check.totals, check.live, check.imbalance) == (TOTALS, 6, 0)
    assert check.live_by_status == {"Queued": 6}
    assert check.payload_bytes == sum(len(record.payload) for record in RECORDS[4:])
    assert (check.oldest_created_ms, check.newest_created_ms) == (CREATED_MS + 5, CREATED_MS + 10)
    assert (check.dead_letters, check.done_keys, check.damaged_rows) == (2, 4, 0)
    assert check.file_bytes == (folder / OUTBOX_FILE).stat().st_size
    assert check.used_by is None


def test_an_empty_outbox_has_no_ages(folder: Path) -> None:
    filled(folder, [])
    check = check_outbox(folder)
    assert check.is_sound
    assert check.oldest_created_ms is None


def test_everything_can_be_read_while_a_publisher_writes(folder: Path) -> None:
    async def main() -> None:
        store = SqliteOutbox(folder)
        await asyncio.gather(*map(store.insert, RECORDS))
        store.mark(EntryProgress(7, DeliveryStatus.SENT, 3, 99))
        await store.flush()

        check = check_outbox(folder)
        content = read_outbox(folder)

        assert check.is_sound
        assert (check.used_by, check.live, check.attempts_max) == (os.getpid(), 10, 3)
        assert check.live_by_status == {"Queued": 9, "Sent": 1}
        assert [record.attempts for record in content.records] == [0] * 6 + [3] + [0] * 3
        await store.insert(a_record(11))
        assert check_outbox(folder).live == 11
        await store.close()

    asyncio.run(main())
    assert loaded(folder).damage == ()


def test_balance_holds_at_every_moment_that_a_reader_can_see(folder: Path) -> None:
    async def main() -> None:
        store = SqliteOutbox(folder)
        seen = set()

        async def publish(start: int) -> None:
            for number in range(start, start + 60, 1):
                await store.insert(a_record(number))
                store.mark(sent(number) if number % 2 else a_dead(a_record(number)))

        task = asyncio.create_task(publish(1))
        while not task.done():
            check = check_outbox(folder)
            assert check.is_sound, check
            seen.add(check.totals.published)
            await asyncio.sleep(0)
        await task
        await store.close()
        assert len(seen) > 1

    asyncio.run(main())
    assert check_outbox(folder).totals == OutboxTotals(60, 0, 30, {"ErrQueueEvicted": 30})


def test_what_a_killed_publisher_left_is_read_without_being_changed(folder: Path, tmp_path: Path) -> None:
    left = tmp_path / "left"

    async def main() -> None:
        store = SqliteOutbox(folder)
        await asyncio.gather(*map(store.insert, RECORDS))
        shutil.copytree(folder, left)
        await store.close()

    asyncio.run(main())
    (left / f"{OUTBOX_FILE}-shm").unlink()
    before = (left / OUTBOX_FILE).read_bytes(), (left / f"{OUTBOX_FILE}-wal").read_bytes()

    assert check_outbox(left).is_sound
    assert read_outbox(left).records == RECORDS

    assert before == ((left / OUTBOX_FILE).read_bytes(), (left / f"{OUTBOX_FILE}-wal").read_bytes())


def test_a_damaged_row_is_counted_and_left_where_it_is(folder: Path) -> None:
    filled(folder, RECORDS, MARKS)
    change_row(folder / OUTBOX_FILE, "UPDATE records SET content = zeroblob(50) WHERE key = 7")

    for _ in range(2):
        check = check_outbox(folder)
        assert not check.is_sound
        assert (check.damaged_rows, check.live, check.imbalance) == (1, 5, 1)


@pytest.mark.parametrize(
    ("statement", "imbalance"),
    [
        ("DELETE FROM records WHERE key IN (7, 8)", 2),
        ("UPDATE counts SET checksum = x'00' WHERE key = 'records'", 0),
        ("UPDATE head SET checksum = x'00'", None),
        ("DELETE FROM head", None),
    ],
)
def test_what_is_missing_is_said(folder: Path, statement: str, imbalance: int | None) -> None:
    filled(folder, RECORDS, MARKS)
    change_row(folder / OUTBOX_FILE, statement)
    check = check_outbox(folder)
    assert not check.is_sound
    assert check.damage
    assert check.imbalance == imbalance


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DROP TABLE dead_letters", "it lacks the table dead_letters"),
        ("ALTER TABLE records ADD COLUMN later TEXT", "table records has the unknown column later"),
    ],
)
def test_another_layout_is_refused_by_name(folder: Path, statement: str, found: str) -> None:
    filled(folder, RECORDS, MARKS)
    change_row(folder / OUTBOX_FILE, statement)
    with pytest.raises(StoreRefused, match=found):
        check_outbox(folder)


def test_a_planted_message_without_a_count_shows_as_an_imbalance(folder: Path) -> None:
    """Rows and totals that are each whole, but do not belong together: the fault of a writer, not of a disk."""
    filled(folder, RECORDS, MARKS)
    saved = sqlite3.connect(folder / OUTBOX_FILE)
    head = saved.execute("SELECT content, checksum FROM head").fetchone()
    saved.close()
    filled(folder, [a_record(11)])
    connection = sqlite3.connect(folder / OUTBOX_FILE)
    connection.execute("UPDATE head SET content = ?, checksum = ?", head)
    connection.commit()
    connection.close()

    check = check_outbox(folder)

    assert (check.damage, check.imbalance, check.is_sound) == ((), -1, False)


@pytest.mark.parametrize("how", UNREADABLE)
def test_a_file_that_cannot_be_read_is_an_error_and_not_touched(
    folder: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what is in it, so that no number may be given."""
    monkeypatch.setattr("stagepost.ground.storage.table_file.BUSY_S", 0.05)
    filled(folder, RECORDS, MARKS)
    with made_unreadable(folder / OUTBOX_FILE, how):
        before = content_of_folder(folder)
        for read in (check_outbox, read_outbox):
            with pytest.raises(StorageError, match="the outbox in") as raised:
                read(folder)
            assert UNREADABLE[how] in raised.value.text
            assert raised.value.advice
        assert content_of_folder(folder) == before


def test_a_folder_without_an_outbox_is_an_error(tmp_path: Path) -> None:
    for read in (check_outbox, read_outbox):
        with pytest.raises(StorageError, match="there is no outbox in"):
            read(tmp_path)
    assert list(tmp_path.iterdir()) == []
