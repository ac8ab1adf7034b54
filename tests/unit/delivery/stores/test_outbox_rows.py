"""What an outbox promises, in memory and on disk alike: order, totals that balance, bounds, one answer for each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.delivery.stores.outbox import (
    DEAD_LETTERS_MAX,
    DONE_KEYS_MAX,
    DoneKey,
    EntryProgress,
    Finished,
    OutboxContent,
    OutboxRecord,
    OutboxStore,
    OutboxTotals,
)
from stagepost.delivery.stores.outbox_rules import COUNTER_JUMP, OutboxLimits
from stagepost.delivery.stores.outbox_stores import MemoryOutbox, MemoryOutboxDisk, OutboxRows, SqliteOutbox
from stagepost.errors import StorageError
from tests.worlds.delivery.outbox_records import CREATED_MS, a_dead, a_record, acked, sent

Open: TypeAlias = Callable[..., OutboxRows]
SMALL = OutboxLimits(dead_letters_max=3, done_keys_max=2)


@pytest.fixture(params=["memory", "disk"])
def open_outbox(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same outbox again and again, as restarts do."""
    disk = MemoryOutboxDisk()

    def opened(**options: Any) -> OutboxRows:
        if request.param == "memory":
            return MemoryOutbox(disk, **options)
        return SqliteOutbox(tmp_path / "outbox", **options)

    return opened


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def contents(open_outbox: Open, store: OutboxRows, **options: Any) -> OutboxContent:
    """After a restart in good order."""
    await store.close()
    again = open_outbox(**options)
    content = again.load()
    await again.close()
    return content


def test_a_new_outbox_is_empty_and_has_a_prefix_of_its_own_that_stays(open_outbox: Open) -> None:
    async def main() -> None:
        store: OutboxStore = open_outbox()
        assert store.load() == OutboxContent()
        prefix = store.nonce_prefix
        await store.close()
        again = open_outbox()
        assert again.nonce_prefix == prefix
        assert len(prefix) == 8
        await again.close()

    run(main())
    assert MemoryOutbox().nonce_prefix != MemoryOutbox().nonce_prefix


def test_what_was_inserted_is_there_in_its_order_with_everything_that_was_said(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox()
        records = [a_record(number, tier=Tier.ACKED, key=bytes([number]) * 32) for number in range(1, 8)]
        await asyncio.gather(*map(store.insert, records))
        store.mark(EntryProgress(3, DeliveryStatus.SENT, 2, 77, maybe_duplicate=True))

        content = await contents(open_outbox, store)

        moved = OutboxRecord(
            3,
            records[2].delivery_id,
            Tier.ACKED,
            records[2].topic,
            records[2].payload,
            records[2].nonce,
            records[2].created_ms,
            records[2].key_hash,
            ("alice", "b" * 56),
            2,
            DeliveryStatus.SENT,
            2,
            77,
            True,
        )
        assert content.records == (*records[:2], moved, *records[3:])
        assert (content.totals, content.next_counter, content.damage) == (OutboxTotals(7), 8, ())

    run(main())


def test_the_largest_numbers_and_the_emptiest_payload_fit(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox()
        record = a_record(2**62, payload=b"")
        await store.insert(record)
        content = await contents(open_outbox, store)
        assert content.records == (record,)
        assert content.next_counter == 2**62 + 1

    run(main())


def test_good_ends_move_into_the_totals_and_leave_no_row(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox()
        for number in range(1, 5):
            await store.insert(a_record(number))
        store.mark(sent(1))
        store.mark(acked(2))
        store.mark(acked(4))

        content = await contents(open_outbox, store)

        assert [record.sequence for record in content.records] == [3]
        assert content.totals == OutboxTotals(4, acked=2, sent_final=1)
        assert content.totals.live == 1

    run(main())


def test_an_insert_and_those_that_make_room_for_it_are_one_thing(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox()
        for number in range(1, 4):
            await store.insert(a_record(number))
        dead = [a_dead(a_record(1)), a_dead(a_record(3), "ErrMessageExpired")]
        await store.insert(a_record(4), dead)

        content = await contents(open_outbox, store)

        assert [record.sequence for record in content.records] == [2, 4]
        assert content.dead_letters == tuple(dead)
        assert content.totals == OutboxTotals(4, failed={"ErrQueueEvicted": 1, "ErrMessageExpired": 1})

    run(main())


def test_a_replay_takes_its_dead_letter_away_and_counts_as_a_new_message(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox()
        await store.insert(a_record(1, key=b"k" * 32))
        store.mark(a_dead(a_record(1, key=b"k" * 32), "ErrNacked"))
        await store.insert(a_record(2, key=b"k" * 32, delivery_id=a_record(1).delivery_id), replayed=1)

        content = await contents(open_outbox, store)

        assert [record.delivery_id for record in content.records] == [a_record(1).delivery_id]
        assert (content.dead_letters, content.done_keys) == ((), ())
        assert content.totals == OutboxTotals(2, failed={"ErrNacked": 1})

    run(main())


def test_dead_letters_are_bounded_and_the_oldest_go_first(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox(limits=SMALL)
        for number in range(1, 7):
            await store.insert(a_record(number), [a_dead(a_record(number - 1))] if number > 1 else [])
        content = await contents(open_outbox, store)
        assert [dead.record.sequence for dead in content.dead_letters] == [3, 4, 5]
        assert content.totals.failed == {"ErrQueueEvicted": 5}

        store = open_outbox(limits=SMALL)
        await store.insert(a_record(7), [a_dead(a_record(6))])
        content = await contents(open_outbox, store)
        assert [dead.record.sequence for dead in content.dead_letters] == [4, 5, 6]

    run(main())
    assert DEAD_LETTERS_MAX == 1_000


def test_a_whole_group_of_deaths_is_bounded_as_well(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox(limits=SMALL)
        await asyncio.gather(*(store.insert(a_record(number)) for number in range(1, 10)))
        for number in range(1, 10):
            store.mark(a_dead(a_record(number)))
        content = await contents(open_outbox, store)
        assert [dead.record.sequence for dead in content.dead_letters] == [7, 8, 9]
        assert content.totals.live == 0

    run(main())


def test_keys_are_remembered_with_how_they_ended_and_are_bounded(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox(limits=SMALL)
        for number in range(1, 5):
            await store.insert(a_record(number, key=bytes([number]) * 32))
        store.mark(Finished(1, DeliveryStatus.SENT, CREATED_MS + 300))
        store.mark(Finished(2, DeliveryStatus.ACKED, CREATED_MS + 400, ("bob", "carol")))
        store.mark(a_dead(a_record(3, key=b"\3" * 32), "ErrAckTimeout"))

        content = await contents(open_outbox, store)

        failed_ms = CREATED_MS + 503
        died = DoneKey(
            b"\3" * 32,
            a_record(3).delivery_id,
            DeliveryStatus.FAILED,
            failed_ms,
            (),
            "ErrAckTimeout",
            "pushed out by a newer one",
        )
        confirmed = DoneKey(
            b"\2" * 32, a_record(2).delivery_id, DeliveryStatus.ACKED, CREATED_MS + 400, ("bob", "carol")
        )
        assert content.done_keys == (confirmed, died)

    run(main())
    assert DONE_KEYS_MAX == 10_000


def test_what_is_said_about_a_message_that_is_gone_has_no_effect(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox()
        await store.insert(a_record(1))
        for mark in (
            sent(1),
            acked(1),
            a_dead(a_record(1)),
            EntryProgress(1, DeliveryStatus.SENT, 1, 1),
            sent(9),
        ):
            store.mark(mark)
        content = await contents(open_outbox, store)
        assert content == OutboxContent(totals=OutboxTotals(1, sent_final=1), next_counter=2)

    run(main())


def test_a_sequence_is_used_once(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox()
        await store.insert(a_record(5))
        for used in (5, 4):
            with pytest.raises(StorageError, match="the next one is 6"):
                await store.insert(a_record(used))
        content = await contents(open_outbox, store)
        assert content.totals == OutboxTotals(1)

    run(main())


def test_a_closed_outbox_says_so(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox()
        await store.close()
        await store.close()
        for attempt in (store.insert(a_record(1)), store.flush()):
            with pytest.raises(StorageError, match="closed"):
                await attempt
        with pytest.raises(StorageError, match="closed"):
            store.mark(sent(1))

    run(main())


def test_who_stops_waiting_does_not_stop_the_writing(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox()
        impatient = asyncio.create_task(store.insert(a_record(1)))
        await asyncio.sleep(0)
        impatient.cancel()
        await store.insert(a_record(2))
        content = await contents(open_outbox, store)
        assert [record.sequence for record in content.records] == [1, 2]

    run(main())


@pytest.mark.parametrize("fsync", ["commit", "interval", "off"])
def test_every_mode_keeps_everything_over_an_end_in_good_order(open_outbox: Open, fsync: str) -> None:
    async def main() -> None:
        store = open_outbox(fsync=fsync)
        await asyncio.gather(*(store.insert(a_record(number)) for number in range(1, 6)))
        store.mark(sent(2))
        content = await contents(open_outbox, store)
        assert [record.sequence for record in content.records] == [1, 3, 4, 5]
        assert content.next_counter == 6, "the counter jumps only where something may be missing"

    run(main())


def test_without_syncs_the_counter_jumps_over_everything_that_may_be_missing() -> None:
    """Or a nonce would be used twice, and a receiver would take the new message for the old one."""

    async def main() -> None:
        disk = MemoryOutboxDisk()
        store = MemoryOutbox(disk, fsync="off")
        for number in range(1, 6):
            await store.insert(a_record(number))
        disk.crash()
        again = MemoryOutbox(disk)
        content = again.load()
        assert content.records == ()
        assert content.next_counter > COUNTER_JUMP
        await again.close()
        assert MemoryOutbox(disk).load().next_counter == content.next_counter

    run(main())


class Model:
    """An outbox in a few lines, to compare with."""

    def __init__(self) -> None:
        self.live: list[int] = []
        self.published = self.acked = self.sent = 0
        self.failed: dict[str, int] = {}

    def check(self, content: OutboxContent) -> None:
        assert [record.sequence for record in content.records] == self.live
        assert content.totals == OutboxTotals(self.published, self.acked, self.sent, self.failed)
        assert content.totals.live == len(self.live)
        assert content.damage == ()


STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "evict", "sent", "acked", "died", "try", "flush", "restart"]), st.integers(0, 9)),
    max_size=40,
)  # fmt: skip


MODES = st.sampled_from(["commit", "interval", "off"])


@given(STEPS, MODES)
def test_after_any_steps_the_totals_balance_and_a_restart_finds_them(
    steps: list[tuple[str, int]], fsync: str
) -> None:
    disk = MemoryOutboxDisk()
    walk(lambda: MemoryOutbox(disk, fsync=fsync), steps)


@settings(max_examples=15)
@given(STEPS, MODES)
def test_the_same_holds_on_a_real_disk(steps: list[tuple[str, int]], fsync: str) -> None:
    with TemporaryDirectory() as folder:
        walk(lambda: SqliteOutbox(Path(folder), fsync=fsync), steps)


def walk(opened: Callable[[], OutboxRows], steps: list[tuple[str, int]]) -> None:
    async def main() -> None:
        model, store = Model(), opened()
        sequence = 0
        for step, choice in steps:
            chosen = model.live[choice % len(model.live)] if model.live else 0
            if step in ("insert", "evict"):
                sequence += 1
                dead = [a_dead(a_record(chosen))] if step == "evict" and chosen else []
                await store.insert(a_record(sequence), dead)
                model.live = [number for number in model.live if not dead or number != chosen] + [sequence]
                model.published += 1
                if dead:
                    model.failed["ErrQueueEvicted"] = model.failed.get("ErrQueueEvicted", 0) + 1
            elif step == "flush":
                await store.flush()
            elif step == "restart":
                await store.close()
                store = opened()
                model.check(store.load())
            elif step == "try":
                store.mark(EntryProgress(chosen, DeliveryStatus.SENT, choice, choice))
            elif chosen:
                model.live.remove(chosen)
                if step == "sent":
                    model.sent += 1
                    store.mark(sent(chosen))
                elif step == "acked":
                    model.acked += 1
                    store.mark(acked(chosen))
                else:
                    model.failed["ErrNacked"] = model.failed.get("ErrNacked", 0) + 1
                    store.mark(a_dead(a_record(chosen), "ErrNacked"))
        await store.close()
        store = opened()
        model.check(store.load())
        await store.close()

    asyncio.run(main())


def test_the_size_of_the_queue_is_kept_for_those_who_watch(open_outbox: Open) -> None:
    async def main() -> None:
        store = open_outbox(limits=OutboxLimits(queue_size=60))
        await store.insert(a_record(1))
        assert (await contents(open_outbox, store)).queue_size == 60
        store = open_outbox(limits=OutboxLimits(queue_size=7))
        assert (await contents(open_outbox, store)).queue_size == 7

    run(main())
