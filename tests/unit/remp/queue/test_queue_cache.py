"""How long messages live, what the cache lets go of, and which bodies are fresh: published behaviour and ours."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from stagepost.errors import LocalProtocolError
from stagepost.remp.message import Origin, header_of
from stagepost.remp.queue.message_cache import (
    ORIGINS_MAX,
    REFUSED_MAX,
    Absent,
    CachedMessage,
    Fresh,
    MessageCache,
    Standing,
    TwinWaits,
    UidTaken,
)
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, Rejected
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from tests.worlds.remp.queue_world import message

BLOCK, MASTER = BlockId(0, 1 << 63, 5129), BlockId(-1, 1 << 63, 9)


def put(cache: MessageCache, number: int, *, with_body: bool = True, **same: Any) -> CachedMessage:
    one = message(number, **same)
    header = header_of(one, Origin(bytes(32), 0, number), cache.window.current)
    cached = cache.add(header, New(), Standing.OWN, 0.0)
    if with_body:
        cache.give_body(cached, one)
    return cached


def test_by_number_what_came_under_n_is_over_at_n_plus_two() -> None:
    cache = MessageCache()
    cache.advance(10, 0)
    one = put(cache, 1)
    assert cache.advance(11, 1_000).total == 0
    assert cache.get(one.message_id) is one
    assert 10 in cache.window
    gone = cache.advance(12, 2_000)
    assert gone.messages == [one]
    assert cache.get(one.message_id) is None
    assert 10 not in cache.window


def test_staying_changes_nothing_and_going_back_in_number_or_time_is_refused() -> None:
    cache = MessageCache()
    cache.advance(10, 5_000)
    put(cache, 1)
    assert cache.advance(10, 9_000).total == 0
    for seqno, time_ms in ((9, 6_000), (0, 6_000), (11, 4_999), (12, 0)):
        with pytest.raises(
            LocalProtocolError, match=f"master catchain {seqno} of {time_ms} ms cannot follow"
        ):
            cache.advance(seqno, time_ms)
    assert cache.window.current == 10
    assert len(cache) == 1
    cache.advance(11, 5_000)
    assert cache.window.current == 11


def test_what_leaves_is_counted_by_its_end() -> None:
    cache = MessageCache()
    cache.advance(10, 0)
    statuses: list[MessageStatus] = [
        New(),
        Accepted(Level.SHARDCHAIN),
        Rejected(Level.COLLATOR, "no"),
        Accepted(Level.MASTERCHAIN),
    ]
    for number, status in enumerate(statuses):
        put(cache, number).status = status
    put(cache, 9, with_body=False)
    gone = cache.advance(12, 1_000)
    assert (gone.total, gone.accepted, gone.rejected, gone.lost, gone.header_only) == (5, 2, 1, 1, 1)


# Bodies


def test_of_two_ids_with_one_body_the_smaller_is_fresh() -> None:
    cache = MessageCache()
    cache.advance(1, 0)
    pair = [put(cache, number, account=7, body=b"same") for number in (1, 2)]
    smaller, greater = sorted(pair, key=lambda one: one.message_id)
    assert cache.freshness(smaller.message_id) == Fresh(smaller.header.uid)
    assert cache.freshness(greater.message_id) == TwinWaits(smaller.message_id)


def test_the_answer_that_a_body_was_taken_names_the_message_in_a_block_and_not_one_that_waits() -> None:
    cache = MessageCache()
    cache.advance(1, 0)
    trio = [put(cache, number, account=7, body=b"same") for number in (1, 2, 3)]
    waiting, asked, included = sorted(trio, key=lambda one: one.message_id)
    included.status = Accepted(Level.SHARDCHAIN, BLOCK)
    assert cache.freshness(asked.message_id) == UidTaken(BLOCK, asked.header.uid, included.message_id)
    assert cache.freshness(waiting.message_id) == UidTaken(BLOCK, asked.header.uid, included.message_id)


def test_a_body_that_was_accepted_in_the_masterchain_is_taken_until_its_shelf_leaves() -> None:
    cache = MessageCache()
    cache.advance(1, 0)
    first = message(1, account=7, body=b"same")
    cache.index_final(first, 1, BLOCK, MASTER, 0.0)
    cache.advance(2, 10_000)
    second = put(cache, 2, account=7, body=b"same")
    expected = UidTaken(BLOCK, first.uid, first.message_id)
    assert cache.freshness(second.message_id) == expected
    cache.advance(3, 20_000)
    assert cache.freshness(second.message_id) == Fresh(first.uid)


def test_equal_bodies_to_different_accounts_are_different_messages() -> None:
    cache = MessageCache()
    cache.advance(1, 0)
    pair = [put(cache, number, account=number, body=b"same") for number in (1, 2)]
    assert all(isinstance(cache.freshness(one.message_id), Fresh) for one in pair)


def test_uids_need_not_be_looked_at() -> None:
    cache = MessageCache(checks_uids=False)
    cache.advance(1, 0)
    pair = [put(cache, number, account=7, body=b"same") for number in (1, 2)]
    assert all(isinstance(cache.freshness(one.message_id), Fresh) for one in pair)
    pair[0].status = Accepted(Level.SHARDCHAIN, BLOCK)
    assert isinstance(cache.freshness(pair[0].message_id), UidTaken), "the id itself always counts"


def test_an_announcement_without_a_body_takes_nobodys_place() -> None:
    cache = MessageCache()
    cache.advance(1, 0)
    true = put(cache, 1, account=7, body=b"same")
    forged = header_of(message(1, account=7, body=b"same"), Origin(bytes(32), 0, 0), 1)
    cache.add(
        type(forged)(bytes(32), *[getattr(forged, name) for name in forged.__struct_fields__[1:]]),
        New(),
        Standing.OWN,
        0.0,
    )
    assert bytes(32) < true.message_id
    assert isinstance(cache.freshness(true.message_id), Fresh)
    assert isinstance(cache.freshness(bytes(32)), Absent)
    assert isinstance(cache.freshness(sha256(b"unknown").digest()), Absent)


def test_the_bytes_correct_what_was_announced_of_them() -> None:
    cache = MessageCache()
    cache.advance(1, 0)
    one = message(1, account=7, body=b"same")
    lie = header_of(message(1, account=8, body=b"other"), Origin(bytes(32), 0, 0), 1)
    header = type(lie)(one.message_id, *[getattr(lie, name) for name in lie.__struct_fields__[1:]])
    cached = cache.add(header, New(), Standing.OWN, 0.0)
    cache.give_body(cached, one)
    assert (cached.header.account, cached.header.uid) == (one.account, one.uid)
    other = put(cache, 2, account=7, body=b"same")
    taken = [cache.freshness(x.message_id) for x in (cached, other)]
    assert sum(isinstance(one, TwinWaits) for one in taken) == 1


def test_so_many_full_nodes_hear_of_one_message_and_no_more() -> None:
    cache = MessageCache()
    cache.advance(1, 0)
    cached = put(cache, 1)
    origins = [Origin(bytes([number]) * 32, 0, 0) for number in range(1, ORIGINS_MAX + 2)]
    assert [cached.add_origin(origin) for origin in origins] == [True] * ORIGINS_MAX + [False]
    assert not cached.add_origin(origins[0])


def test_a_message_has_one_place() -> None:
    cache = MessageCache()
    cache.advance(1, 0)
    cached = put(cache, 1)
    with pytest.raises(LocalProtocolError):
        cache.add(cached.header, New(), Standing.OWN, 0.0)


def test_refusals_are_remembered_up_to_a_number() -> None:
    cache = MessageCache()
    ids = [number.to_bytes(32, "big") for number in range(REFUSED_MAX + 1)]
    for message_id in ids[:REFUSED_MAX]:
        cache.note_refused(message_id, b"f" * 32)
    assert cache.was_refused(ids[0], b"f" * 32), "so many fit"
    assert not cache.was_refused(ids[0], b"g" * 32), "another full node was told nothing"
    cache.note_refused(ids[-1], b"f" * 32)
    assert not cache.was_refused(ids[0], b"f" * 32), "the oldest goes first"
    assert cache.was_refused(ids[1], b"f" * 32)
    assert cache.was_refused(ids[-1], b"f" * 32)
