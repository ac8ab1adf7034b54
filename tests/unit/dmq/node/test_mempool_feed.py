"""A program's place in the mempool: nothing twice, nothing unexpired left out, whatever happens in between."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq.mempool import Mempool
from stagepost.dmq.message import FIVE_AND_FOUR, FIVE_ONLY, DmqMessage
from stagepost.dmq.node.mempool_feed import Audience, MempoolFeed
from stagepost.ground.loop.bell import Bell
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from tests.worlds.ground.strategies import MessageParts


def a_message(number: int, expires_at: int = 1_000, elements: int = 5) -> DmqMessage:
    return MessageParts(
        message_id=number.to_bytes(32, "big"), expires_at=expires_at, elements=elements
    ).decoded()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 60), st.sampled_from((4, 5, 5))),
        st.tuples(st.just("expire"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("take"), st.integers(0, 2), st.integers(0, 7)),
    ),
    max_size=120,
)


@given(STEPS)
def test_any_interleaving_never_repeats_and_never_skips_what_has_not_expired(
    steps: list[tuple[str, int, int]],
) -> None:
    mempool, bell = Mempool(), Bell()
    feeds = [MempoolFeed(mempool, bell, layouts) for layouts in (FIVE_ONLY, FIVE_AND_FOUR, FIVE_AND_FOUR)]
    given_to: list[list[DmqMessage]] = [[], [], []]
    added: list[DmqMessage] = []
    # What a feed may no longer get, because it expired while it was still ahead of it.
    missed: list[set[bytes]] = [set(), set(), set()]
    for number, (what, first, second) in enumerate(steps):
        if what == "add":
            message = a_message(number, first, second)
            mempool.add(message, 0, "local")
            added.append(message)
        elif what == "expire":
            for entry in mempool.expire(first):
                for taken, lost in zip(given_to, missed, strict=True):
                    if entry.message not in taken:
                        lost.add(entry.message.message_id)
        else:
            messages, has_more = feeds[first].take(second)
            assert len(messages) <= second
            given_to[first] += messages
            assert has_more == mempool.has_after(feeds[first].cursor, FIVE_AND_FOUR if first else FIVE_ONLY)
    for feed, taken, lost, layouts in zip(
        feeds, given_to, missed, (FIVE_ONLY, FIVE_AND_FOUR, FIVE_AND_FOUR), strict=True
    ):
        has_more = True
        while has_more:
            messages, has_more = feed.take(3)
            taken += messages
        assert taken == [
            message for message in added if message.layout in layouts and message.message_id not in lost
        ]
        assert feed.take(5) == ((), False)


def test_waiting_ends_when_there_is_something_for_this_program() -> None:
    async def main() -> None:
        mempool, bell = Mempool(), Bell()
        strict, tolerant = MempoolFeed(mempool, bell, FIVE_ONLY), MempoolFeed(mempool, bell, FIVE_AND_FOUR)
        waiting = asyncio.create_task(strict.wait())
        mempool.add(a_message(1, elements=4), 0, "local")
        bell.ring()
        await tolerant.wait()
        await asyncio.sleep(1)
        assert not waiting.done()
        assert tolerant.take(9) == ((a_message(1, elements=4),), False)

        mempool.add(a_message(2), 0, "local")
        bell.ring()
        await waiting
        assert strict.take(9) == ((a_message(2),), False)
        assert strict.cursor == 2

    run_in_virtual_time(main())


def test_who_stops_waiting_is_forgotten_and_wakes_nobody_else() -> None:
    async def main() -> None:
        bell = Bell()
        first, second = asyncio.create_task(bell.wait()), asyncio.create_task(bell.wait())
        await asyncio.sleep(0)
        assert bell.waiting == 2
        first.cancel()
        await asyncio.sleep(0)
        assert bell.waiting == 1
        assert not second.done()
        bell.ring()
        bell.ring()
        await second
        assert bell.waiting == 0

    run_in_virtual_time(main())


def test_what_expires_unseen_is_counted_for_each_program_that_listens() -> None:
    mempool, bell, audience = Mempool(), Bell(), Audience()
    told: list[int] = []
    audience.on_unseen.append(told.append)
    quick, slow, strict, unused = (
        MempoolFeed(mempool, bell, layouts, audience)
        for layouts in (FIVE_AND_FOUR, FIVE_AND_FOUR, FIVE_ONLY, FIVE_ONLY)
    )
    for feed in (quick, slow, strict):
        assert feed.take(9) == ((), False)
    for number, elements in enumerate((5, 4, 5), 1):
        mempool.add(a_message(number, expires_at=10 * number, elements=elements), 0, "local")
    assert len(quick.take(9)[0]) == 3
    assert len(slow.take(1)[0]) == 1

    audience.expired(mempool.expire(20))
    assert (audience.expired_unseen, told) == (2, [2]), (
        "one for the slow program, the newer one for the strict"
    )
    slow.close()
    audience.expired(mempool.expire(30))

    assert (audience.expired_unseen, told) == (3, [2, 1]), "who is gone misses nothing"
    assert unused.cursor == 0


def test_programs_at_the_same_place_share_what_they_are_given_until_something_changes() -> None:
    mempool, bell, audience = Mempool(), Bell(), Audience()
    first, second, third = (MempoolFeed(mempool, bell, FIVE_ONLY, audience) for _ in range(3))
    mempool.add(a_message(1, expires_at=10), 0, "local")
    mempool.add(a_message(2), 0, "local")

    shared, _ = first.take(9)
    assert second.take(9)[0] is shared
    mempool.expire(10)
    assert third.take(9) == ((a_message(2),), False)


def test_in_a_storm_a_reply_is_better_later_unless_it_is_full() -> None:
    async def main() -> None:
        mempool, bell = Mempool(), Bell(at_most_every_s=1)
        feed = MempoolFeed(mempool, bell, FIVE_ONLY)
        mempool.add(a_message(1), 0, "local")
        bell.ring()
        assert not feed.is_better_later(2), "nobody rings soon"
        bell.ring()
        assert feed.is_better_later(2)
        assert not feed.is_better_later(1), "a full reply need not wait"
        await asyncio.sleep(1)
        assert not feed.is_better_later(2)

    run_in_virtual_time(main())


def test_a_thousand_stalled_programs_hold_nothing() -> None:
    """A stalled program costs one number; others are served as if it were not there."""
    mempool, bell = Mempool(), Bell()
    stalled = [MempoolFeed(mempool, bell, FIVE_ONLY) for _ in range(1_000)]
    quick = MempoolFeed(mempool, bell, FIVE_ONLY)
    for number in range(300):
        mempool.add(a_message(number), 0, "local")
        assert len(quick.take(100)[0]) == 1
    assert {feed.cursor for feed in stalled} == {0}
    messages, has_more = stalled[0].take(100)
    assert (len(messages), has_more) == (100, True)
