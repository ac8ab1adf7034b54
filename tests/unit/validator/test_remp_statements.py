"""What a validator has said is on disk before it is spoken, in order, and is found by the next life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.storage.group_writer import RETRY_S
from stagepost.remp.queue.message_cache import LET_GO_CATCHAINS
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import Accepted, Duplicate, Ignored, MessageStatus, New, Timeout
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from stagepost.validator import session_store
from stagepost.validator.receipts import ROW_RECEIPTS_MAX, Statements
from stagepost.validator.session_store import BodyRow, MemorySessionStore, SessionsDisk

SEED = bytes([1]) * 32
ONE, OTHER = ExternalMessageId(bytes([1]) * 32), ExternalMessageId(bytes([2]) * 32)
BLOCK = BlockId(seqno=7)


def receipts(message_id: ExternalMessageId, *statuses: MessageStatus) -> list[Receipt]:
    return [Receipt(message_id, one, 1_000 + number, b"").sign(SEED) for number, one in enumerate(statuses)]


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_in_virtual_time(main())


def test_every_receipt_is_written_before_it_is_sent() -> None:
    async def main() -> None:
        disk = SessionsDisk(lambda: 0.01)
        statements = Statements(MemorySessionStore(disk), lambda: 3)
        spoken: list[str] = []
        first = receipts(ONE, New())
        statements.say({ONE: first}, lambda: spoken.append("in the queue"))
        assert spoken == []
        seen = receipts(ONE, Duplicate(BLOCK))
        statements.say({ONE: seen}, lambda: spoken.append("in a candidate"))
        back = receipts(ONE, Ignored(Level.SHARDCHAIN, BLOCK), New())
        statements.say({ONE: back}, lambda: spoken.append("back"))
        statements.say({OTHER: receipts(OTHER, New())}, lambda: spoken.append("another"))
        assert spoken == []
        await asyncio.sleep(1.0)
        assert spoken == ["in the queue", "in a candidate", "back", "another"]
        disk.crash()
        found = Statements(MemorySessionStore(disk), lambda: 3)
        assert found.earlier[ONE] == (*first, *seen, *back), "all that may not have been heard"
        assert found.lanes[ONE] == found.earlier[ONE], "and full nodes that come later hear it, too"

    in_virtual_time(main)


def test_what_is_repeated_waits_for_what_is_being_written() -> None:
    async def main() -> None:
        statements = Statements(MemorySessionStore(SessionsDisk(lambda: 0.01)), lambda: 3)
        spoken: list[str] = []
        statements.say({ONE: receipts(ONE, Duplicate(BLOCK))}, lambda: spoken.append("in a candidate"))
        statements.say({}, lambda: spoken.append("to a further one"), is_repeated=True)
        assert spoken == []
        await asyncio.sleep(1.0)
        assert spoken == ["in a candidate", "to a further one"]

    in_virtual_time(main)


def test_nothing_is_spoken_that_a_crash_makes_forgotten() -> None:
    async def main() -> None:
        disk = SessionsDisk(lambda: 0.01)
        statements = Statements(MemorySessionStore(disk), lambda: 3)
        spoken: list[str] = []
        statements.say({ONE: receipts(ONE, Duplicate(BLOCK))}, lambda: spoken.append("in a candidate"))
        await asyncio.sleep(0.001)
        statements.stop()
        disk.crash()
        await asyncio.sleep(1.0)
        assert spoken == []
        assert Statements(MemorySessionStore(disk), lambda: 3).earlier == {}

    in_virtual_time(main)


def test_a_disk_that_fails_delays_what_is_said_and_keeps_its_order() -> None:
    async def main() -> None:
        disk = SessionsDisk(lambda: 0.01)
        disk.fail_next(1)
        store = MemorySessionStore(disk)
        statements = Statements(store, lambda: 3)
        spoken: list[int] = []
        for number in range(3):
            said: dict[bytes, list[Receipt]] = {ONE: receipts(ONE, Duplicate(BlockId(seqno=number + 1)))}
            statements.say(said, partial(spoken.append, number))
            await asyncio.sleep(0.001)  # the first is being written alone
        await asyncio.sleep(0.01)
        assert (spoken, store.writes_failed) == ([], 1)
        await asyncio.sleep(RETRY_S)
        assert spoken == [0, 1, 2]
        disk.crash()
        found = Statements(MemorySessionStore(disk), lambda: 3).earlier[ONE]
        assert [one.status for one in found] == [Duplicate(BlockId(seqno=number + 1)) for number in range(3)]

    in_virtual_time(main)


@pytest.mark.parametrize("fails", [0, 1])
def test_no_receipt_leaves_before_the_body_of_its_message_is_on_disk(fails: int) -> None:
    async def main() -> None:
        disk = SessionsDisk(lambda: 0.01)
        disk.fail_next(fails)
        store = MemorySessionStore(disk)
        statements = Statements(store, lambda: 3)
        session_id, message_id = bytes(32), bytes([1]) * 32
        spoken: list[bytes | None] = []

        def speak() -> None:
            disk.crash()
            spoken.append(MemorySessionStore(disk).found_body(message_id))

        store.put_body(BodyRow(session_id, message_id, b"body", b"full node"))
        statements.say({ONE: receipts(ONE, New())}, speak)
        await asyncio.sleep(2 * RETRY_S)
        assert spoken == [b"body"]

    in_virtual_time(main)


def test_what_is_over_is_forgotten_with_its_catchain() -> None:
    async def main() -> None:
        store = MemorySessionStore(SessionsDisk())
        statements = Statements(store, lambda: 3)
        statements.say({ONE: receipts(ONE, Duplicate(BLOCK))}, lambda: None)
        await asyncio.sleep(0.1)
        for seqno, is_kept in ((3, True), (4, False)):
            assert statements.forget_before(seqno) == [], "a queue of this run knows of its end"
            await asyncio.sleep(5.0)
            assert any(CombinedReceipt.decode(row.receipts).receipts for row in store.statements) == is_kept

    in_virtual_time(main)


def test_the_next_life_knows_the_messages_of_which_receipts_were_forgotten() -> None:
    async def main() -> None:
        disk, now = SessionsDisk(), [3]
        statements = Statements(MemorySessionStore(disk), lambda: now[0])
        statements.say({ONE: receipts(ONE, Timeout())}, lambda: None)
        statements.say({OTHER: receipts(OTHER, New())}, lambda: None)
        await asyncio.sleep(1.0)
        disk.crash()
        second = Statements(MemorySessionStore(disk), lambda: now[0])
        assert second.earlier.pop(OTHER), "a session resumes it"
        now[0] = 6
        assert second.forget_before(4) == [ONE], "no queue of this life knows that it is over"
        assert second.forget_before(4) == []
        await asyncio.sleep(5.0)
        disk.crash()
        third = Statements(MemorySessionStore(disk), lambda: now[0])
        assert third.earlier == {}
        assert third.over == {6: {ONE, OTHER}}

    in_virtual_time(main)


def test_messages_of_which_receipts_are_to_come_keep_those_they_have_also_on_disk() -> None:
    async def main() -> None:
        disk = SessionsDisk()
        statements = Statements(MemorySessionStore(disk), lambda: 3)
        statements.say({ONE: receipts(ONE, New()), OTHER: receipts(OTHER, New())}, lambda: None)
        await asyncio.sleep(1.0)
        statements.forget_before(4, {ONE})
        assert (bool(statements.lanes[ONE]), bool(statements.lanes[OTHER])) == (True, False)
        await asyncio.sleep(5.0)
        disk.crash()
        assert ONE in Statements(MemorySessionStore(disk), lambda: 3).earlier, (
            "a first link that comes twice would convict"
        )

    in_virtual_time(main)


@pytest.mark.parametrize(("catchains", "is_kept"), [(LET_GO_CATCHAINS, True), (LET_GO_CATCHAINS + 1, False)])
def test_messages_that_are_over_are_kept_on_disk_as_long_as_a_queue_remembers_them(
    catchains: int, is_kept: bool
) -> None:
    async def main() -> None:
        disk, now = SessionsDisk(), [3]
        statements = Statements(MemorySessionStore(disk), lambda: now[0])
        for message_id, seqno in ((ONE, 3), (OTHER, 3 + catchains)):
            now[0] = seqno
            statements.say({message_id: receipts(message_id, Timeout())}, lambda: None)
            await asyncio.sleep(1.0)
            statements.forget_before(seqno + 1)
            await asyncio.sleep(5.0)
        disk.crash()
        found = Statements(MemorySessionStore(disk), lambda: now[0]).over
        assert found == ({3: {ONE}} if is_kept else {}) | {3 + catchains: {OTHER}}

    in_virtual_time(main)


def test_so_many_messages_that_are_over_are_kept_on_disk_and_the_oldest_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_store, "LET_GO_MAX", 2)

    async def main() -> None:
        disk, now = SessionsDisk(), [3]
        statements = Statements(MemorySessionStore(disk), lambda: now[0])
        for number, seqno in enumerate((3, 4, 5)):
            now[0] = seqno
            message_id = ExternalMessageId(bytes([number]) * 32)
            statements.say({message_id: receipts(message_id, Timeout())}, lambda: None)
            await asyncio.sleep(1.0)
            statements.forget_before(seqno + 1)
            await asyncio.sleep(5.0)
        disk.crash()
        assert Statements(MemorySessionStore(disk), lambda: now[0]).over.keys() == {4, 5}

    in_virtual_time(main)


def test_many_at_once_are_more_than_one_row() -> None:
    """Each may name another block, and another master block: a packet has room for so many."""

    async def main() -> None:
        disk = SessionsDisk()
        store = MemorySessionStore(disk)
        statements = Statements(store, lambda: 3)
        ids = [ExternalMessageId(number.to_bytes(32, "big")) for number in range(ROW_RECEIPTS_MAX + 1)]
        said: dict[bytes, list[Receipt]] = {
            one: receipts(
                one, Accepted(Level.SHARDCHAIN, BlockId(seqno=number + 1), BlockId(seqno=1_000 + number))
            )
            for number, one in enumerate(ids)
        }
        statements.say(said, lambda: None)
        await asyncio.sleep(1.0)
        assert len(store.statements) == 2
        disk.crash()
        assert Statements(MemorySessionStore(disk), lambda: 3).earlier.keys() == set(ids)

    in_virtual_time(main)
