"""The inbox on disk: one owner, group commit, damage that is noticed, and no claim given twice by a failing disk."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from stagepost.delivery.errors import ErrQueueCorrupt, ErrQueueLocked
from stagepost.delivery.stores.inbox import InboxContent
from stagepost.delivery.stores.inbox_stores import INBOX_FILE, SqliteInbox
from stagepost.errors import StagepostError, StorageError
from tests.worlds.delivery.outbox_records import an_id, seen
from tests.worlds.ground.failing_disk import Disk, errors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "inbox"


def loaded(folder: Path) -> InboxContent:
    async def main() -> InboxContent:
        inbox = SqliteInbox(folder)
        content = inbox.load()
        await inbox.close()
        return content

    return asyncio.run(main())


def test_a_second_receiver_is_refused_and_told_who_has_the_folder(folder: Path) -> None:
    first = SqliteInbox(folder)
    with pytest.raises(ErrQueueLocked, match=f"the inbox in .* is in use by process {os.getpid()}$"):
        SqliteInbox(folder)
    asyncio.run(first.close())


def test_claims_and_verdicts_at_once_share_one_transaction_that_waits_for_the_disk(folder: Path) -> None:
    async def main() -> None:
        disk = Disk()
        inbox = SqliteInbox(folder, connect=disk.connect)
        disk.statements.clear()
        await asyncio.gather(
            *(inbox.claim(an_id(number)) for number in range(50)),
            *(inbox.put(seen(number)) for number in range(50, 90)),
        )
        assert len(disk.commits()) == 1
        assert not any("synchronous" in statement for statement in disk.statements), (
            "it was FULL from the start"
        )
        # A claim that is refused changes nothing, and needs no disk.
        assert not await inbox.claim(an_id(1))
        assert len(disk.commits()) == 1
        await inbox.close()

    asyncio.run(main())
    assert len(loaded(folder).records) == 90


def test_a_damaged_record_is_moved_aside_and_reported(folder: Path) -> None:
    async def fill() -> None:
        inbox = SqliteInbox(folder)
        await asyncio.gather(*(inbox.put(seen(number)) for number in range(9)))
        await inbox.close()

    asyncio.run(fill())
    connection = sqlite3.connect(folder / INBOX_FILE)
    connection.execute("UPDATE inbox SET content = zeroblob(12) WHERE key = ?", (an_id(4),))
    connection.commit()
    connection.close()
    told: list[StagepostError] = []

    async def main() -> InboxContent:
        inbox = SqliteInbox(folder)
        inbox.on_storage_error = told.append
        content = inbox.load()
        await inbox.close()
        return content

    assert {record.delivery_id for record in asyncio.run(main()).records} == {
        an_id(number) for number in range(9) if number != 4
    }
    assert [type(error) for error in told] == [ErrQueueCorrupt]
    assert loaded(folder).damage == ()


@pytest.mark.parametrize(
    ("error", "fails_after_effect"),
    list(zip(errors(), [False, True, False], strict=True)),
    ids=["full", "fsync", "io"],
)
def test_a_failure_at_every_call_gives_no_claim_twice_and_none_away(
    tmp_path: Path, error: Exception, fails_after_effect: bool
) -> None:
    async def life(folder: Path, disk: Disk) -> tuple[set[bytes], int]:
        inbox = SqliteInbox(folder, connect=disk.connect)
        disk.calls, disk.fails_at = 0, at or None
        claimed = set()
        for number in range(1, 5):
            try:
                assert await inbox.claim(an_id(number))
                claimed.add(an_id(number))
            except StorageError:
                pass
            await asyncio.gather(inbox.put(seen(number + 50)), return_exceptions=True)
        await inbox.close()
        return claimed, disk.calls

    at = calls = 0
    while at <= calls:
        disk = Disk()
        disk.error, disk.fails_after_effect = error, fails_after_effect
        claimed, calls_had = asyncio.run(life(tmp_path / f"{at}", disk))
        calls = calls or calls_had
        content = loaded(tmp_path / f"{at}")
        assert {record.delivery_id for record in content.records if record.is_claimed} == claimed
        assert content.damage == ()
        at += 1
    assert at > 7
