"""Who gets every block from its maker asks seldom what it has missed; as soon as asking has helped, it asks often again."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.catchain.catching_up import CALM_MAX, SYNC_MAX_S, SYNC_MIN_S, SyncOptions
from stagepost.catchain.effects import Ask, Effect, Persist
from stagepost.catchain.graph import Graph, GraphRules
from stagepost.catchain.member import Member, MemberOptions
from stagepost.catchain.queries import Difference, GetDifference, decode_query, encode_answer
from tests.worlds.catchain.members_world import verify_once

SIZE = 4


def member_of(index: int, sync: SyncOptions) -> Member:
    graph = Graph(
        bytes([7]) * 32, [public_key_of(one) for one in range(SIZE)], GraphRules(), verify=verify_once
    )
    options = MemberOptions(start_wait_s=0.0, sync=sync)
    payloads = [b"something to say"]
    return Member(
        graph,
        index,
        seed_of(index),
        lambda is_due, account: payloads.pop() if payloads else None,
        Random(index),
        0.0,
        options,
    )


def block_of(index: int) -> bytes:
    member = member_of(index, SyncOptions())
    (persist,) = (one for one in member.tick(0.0) + member.speak_soon(0.1) if isinstance(one, Persist))
    return persist.frame


def answered(member: Member, effects: list[Effect], now: float) -> int:
    """How many differences were asked for; each is answered at once: there is none."""
    asked = [one for one in effects if isinstance(one, Ask)]
    for ask in asked:
        query = decode_query(ask.query)
        assert isinstance(query, GetDifference)
        member.answered(ask.peer, ask.number, encode_answer(Difference(query.heights)), now)
    return len(asked)


def asks_until(member: Member, begin: float, end: float) -> list[float]:
    """When it asks, woken as often as it wants."""
    asked: list[float] = []
    now = begin
    while now < end:
        if answered(member, member.tick(now), now):
            asked.append(now)
        now = max(member.next_wake, now + 0.001)
    return asked


def longest(times: list[float]) -> float:
    return max(after - before for before, after in pairwise(times))


def test_asking_in_vain_makes_the_pauses_longer_up_to_a_limit() -> None:
    member = member_of(0, SyncOptions())
    times = asks_until(member, 0.0, 60.0)
    assert times[0] <= SYNC_MAX_S + 0.001
    assert times[1] - times[0] <= 2 * SYNC_MAX_S + 0.001
    assert (
        SYNC_MIN_S * (1 << CALM_MAX) < longest(times[CALM_MAX + 1 :]) <= SYNC_MAX_S * (1 << CALM_MAX) + 0.001
    )


def test_a_block_that_its_maker_did_not_bring_makes_it_ask_soon_again() -> None:
    member = member_of(0, SyncOptions())
    asks_until(member, 0.0, 30.0)
    member.frame_received(2, block_of(1), 30.0)
    times = asks_until(member, 30.0, 31.0)
    assert times[0] <= 30.0 + SYNC_MAX_S + 0.001


def test_a_block_of_its_maker_changes_nothing() -> None:
    member = member_of(0, SyncOptions())
    asks_until(member, 0.0, 30.0)
    due = member._sync.next_wake
    member.frame_received(1, block_of(1), 30.0)
    assert member._sync.next_wake == due


@pytest.mark.parametrize("neighbours", [1, 3])
def test_where_blocks_go_to_a_few_it_never_asks_less_often(neighbours: int) -> None:
    member = member_of(0, SyncOptions(neighbours=neighbours))
    assert longest(asks_until(member, 0.0, 20.0)) <= SYNC_MAX_S + 0.001


@pytest.mark.parametrize("is_told", [True, False])
def test_where_somebody_does_not_answer_it_asks_as_often_as_ever(is_told: bool) -> None:
    member = member_of(0, SyncOptions())
    asks_until(member, 0.0, 30.0)
    now = member.next_wake
    (ask,) = (one for one in member.tick(now) if isinstance(one, Ask))
    if is_told:
        member.answered(ask.peer, ask.number, None, now)
    now += SyncOptions().query_timeout_s
    first, second, *_ = asks_until(member, now, now + 2.0)
    assert second - first <= SYNC_MAX_S * 2 + 0.001
