"""What a node tells about pools: two bodies for one slot once in the log and always in the status, and keys that end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from stagepost.dmq.equivocation import Equivocations
from stagepost.dmq.mempool import Mempool, MempoolEntry
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.local_service import LOCAL_SOURCE
from stagepost.dmq.node.pool_watch import POOLS_SHOWN_MAX, PoolWatch
from stagepost.ground.crypto.hashing import format_pool_id
from stagepost.ground.loop.clock import LoopClock
from tests.worlds.dmq.pool_signers import NOW, KnownPools, Signer


def a_watch() -> PoolWatch:
    return PoolWatch(Equivocations(), KnownPools(), LoopClock(NOW))


def an_entry(message: DmqMessage, index: int = 1, source: str = "10.0.0.1:3141") -> MempoolEntry:
    return MempoolEntry(index, message, NOW * 1_000, source)


def test_two_bodies_are_logged_once_for_each_pool_with_both_ids(caplog: pytest.LogCaptureFixture) -> None:
    watch = a_watch()
    messages = [Signer(pool).sign(tag) for pool in (0, 1) for tag in (1, 2, 3)]

    with caplog.at_level(logging.WARNING, "stagepost"):
        for message in messages:
            watch.accepted(an_entry(message))

    records = [vars(record) for record in caplog.records]
    assert [record["message"] for record in records] == ["pool signed two bodies for one slot"] * 2
    assert [record["pool_id"] for record in records] == [format_pool_id(Signer(n).pool_id) for n in (0, 1)]
    assert (records[0]["first"], records[0]["second"]) == tuple(m.message_id.hex() for m in messages[:2])
    assert watch.status().count == 4


def test_status_shows_the_latest_pools_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.dmq.node.pool_watch.POOLS_SHOWN_MAX", 2)
    watch = a_watch()
    for pool in range(3):
        for tag in (1, 2):
            watch.accepted(an_entry(Signer(pool).sign(tag)))

    shown = [pool.pool_id for pool in watch.status().pools]

    assert shown == [format_pool_id(Signer(pool).pool_id) for pool in (2, 1)]
    assert POOLS_SHOWN_MAX == 20


@pytest.mark.parametrize("is_meanwhile", [False, True])
def test_what_a_restart_brought_along_counts(is_meanwhile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.dmq.node.pool_watch.RESTORED_AT_ONCE", 1)
    mempool = Mempool()
    for index, tag in enumerate((1, 2), start=1):
        mempool.insert(an_entry(Signer().sign(tag, evolution=50), index, LOCAL_SOURCE))
    watch = a_watch()

    if is_meanwhile:
        asyncio.run(watch.restored_meanwhile(mempool))
    else:
        watch.restored(mempool)

    assert watch.status().count == 1
    assert watch.kes_periods_remaining == 12


def test_keys_of_other_nodes_programs_are_not_ours() -> None:
    watch = a_watch()
    watch.accepted(an_entry(Signer().sign(1, evolution=61)))
    assert watch.kes_periods_remaining is None

    watch.accepted(an_entry(Signer(1).sign(1, evolution=60), source=LOCAL_SOURCE))

    assert watch.kes_periods_remaining == 2


def test_what_expired_is_forgotten() -> None:
    watch = a_watch()
    entry = an_entry(Signer().sign(1))
    watch.accepted(entry)

    watch.expired([entry])
    watch.accepted(an_entry(Signer().sign(2)))

    assert watch.status().count == 0


def test_where_pools_need_not_wait_several_messages_in_a_second_are_counted_and_not_held_against_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = PoolWatch(Equivocations(), KnownPools(), LoopClock(NOW), is_remarkable=False)

    with caplog.at_level(logging.WARNING, "stagepost"):
        for tag in (1, 2):
            watch.accepted(an_entry(Signer(0).sign(tag)))

    assert caplog.records == []
    assert watch.status().count == 1
