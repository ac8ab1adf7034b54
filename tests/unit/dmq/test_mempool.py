"""The mempool: order, bounds, expiry, and readers who keep nothing but an index."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq.mempool import BYTES_MAX, MESSAGES_MAX, Mempool, MempoolEntry, MempoolLimits
from stagepost.dmq.message import FIVE_AND_FOUR, FIVE_ONLY, DmqMessage, MessageLayout
from stagepost.errors import ErrorCode, LocalProtocolError
from tests.worlds.ground.strategies import MessageParts


def a_message(
    number: int, *, expires_at: int = 1_000, body_bytes: int = 90, elements: int = 5, pool: int = 0
) -> DmqMessage:
    return MessageParts(
        cold_verification_key=pool.to_bytes(32, "big"),
        message_id=number.to_bytes(32, "big"),
        body=bytes(body_bytes),
        expires_at=expires_at,
        elements=elements,
    ).decoded()


def add(mempool: Mempool, number: int, **changes: int) -> MempoolEntry:
    return mempool.add(a_message(number, **changes), received_ms=number, source="local")


def code_of(mempool: Mempool, number: int, **changes: int) -> ErrorCode | None:
    fault = mempool.check_room(a_message(number, **changes))
    return None if fault is None else fault.code


def test_the_limits_are_those_of_the_specification() -> None:
    assert MempoolLimits() == MempoolLimits(messages_max=50_000, bytes_max=160_000_000)
    assert (MESSAGES_MAX, BYTES_MAX) == (50_000, 160_000_000)


def test_indexes_start_at_one_and_only_grow() -> None:
    mempool = Mempool()
    assert mempool.last_index == 0

    assert [add(mempool, number).index for number in (7, 3, 9)] == [1, 2, 3]
    mempool.expire(1_000)

    assert mempool.count == 0
    assert add(mempool, 8, expires_at=2_000).index == 4


def test_a_held_message_is_found_by_its_key_and_is_a_duplicate() -> None:
    mempool = Mempool()
    entry = add(mempool, 1)

    assert entry.message.key in mempool
    assert mempool.get(entry.message.key) is entry
    assert code_of(mempool, 1) is ErrorCode.MSG_DUPLICATE
    assert mempool.get(a_message(2).key) is None


def test_the_older_layout_does_not_shadow_the_same_id() -> None:
    mempool = Mempool()
    add(mempool, 1, elements=4)

    assert code_of(mempool, 1) is None
    assert (MessageLayout.FIVE, a_message(1).message_id) not in mempool
    assert code_of(mempool, 1, elements=4) is ErrorCode.MSG_DUPLICATE


def test_the_count_is_bounded_and_recovers_on_expiry() -> None:
    mempool = Mempool(MempoolLimits(messages_max=2))
    add(mempool, 1)
    assert code_of(mempool, 2) is None
    add(mempool, 2, expires_at=2_000)

    assert code_of(mempool, 3) is ErrorCode.QUEUE_FULL
    assert mempool.count == 2

    mempool.expire(1_000)
    assert code_of(mempool, 3, expires_at=2_000) is None


def test_the_bytes_are_bounded_at_exactly_the_limit() -> None:
    size = len(a_message(1).raw)
    mempool = Mempool(MempoolLimits(bytes_max=2 * size))
    add(mempool, 1)
    assert mempool.bytes == size
    assert code_of(mempool, 2) is None
    assert code_of(mempool, 2, body_bytes=91) is ErrorCode.QUEUE_FULL
    add(mempool, 2)
    assert code_of(mempool, 3) is ErrorCode.QUEUE_FULL

    mempool.expire(1_000)
    assert mempool.bytes == 0


def test_a_pool_holds_its_share_of_the_count_and_others_the_rest() -> None:
    mempool = Mempool(MempoolLimits(messages_max=10, pool_percent=25))
    add(mempool, 1)
    add(mempool, 2, expires_at=2_000)

    refusal = mempool.check_room(a_message(3))
    assert refusal is not None
    assert refusal.code is ErrorCode.QUEUE_FULL
    assert refusal.gives_way
    for number in range(3, 11):
        assert code_of(mempool, number, pool=number) is None
        add(mempool, number, pool=number)
    assert not mempool.check_room(a_message(11, pool=11)).gives_way  # type: ignore[union-attr]  # it is full

    mempool.expire(1_000)
    assert code_of(mempool, 1, expires_at=2_000) is None


def test_a_pool_holds_its_share_of_the_bytes_at_exactly_the_limit() -> None:
    size = len(a_message(1).raw)
    mempool = Mempool(MempoolLimits(bytes_max=4 * size, pool_percent=50))
    add(mempool, 1)
    assert code_of(mempool, 2) is None
    assert code_of(mempool, 2, body_bytes=91) is ErrorCode.QUEUE_FULL
    assert code_of(mempool, 2, body_bytes=91, pool=1) is None
    assert mempool.check_limits(a_message(2), 1, size, (0, 0)) is None
    assert mempool.check_limits(a_message(2), 1, size, (1, size)) is not None


def test_a_batch_passes_unseen_only_below_the_share_of_one_pool() -> None:
    mempool = Mempool(MempoolLimits(messages_max=8, pool_percent=25))
    assert mempool.has_room_for(2, 1, 1_000)
    assert not mempool.has_room_for(3, 1, 1_000)


def test_what_is_reserved_counts_as_held() -> None:
    size = len(a_message(1).raw)
    mempool = Mempool(MempoolLimits(messages_max=3, bytes_max=3 * size))
    message = a_message(1)

    assert mempool.check_limits(message, reserved_count=2) is None
    assert mempool.check_limits(message, reserved_count=3) is not None
    assert mempool.check_limits(message, reserved_bytes=2 * size) is None
    assert mempool.check_limits(message, reserved_bytes=2 * size + 1) is not None


def test_messages_expire_at_their_second_and_not_before() -> None:
    mempool = Mempool()
    first, second = add(mempool, 1, expires_at=1_000), add(mempool, 2, expires_at=999)
    assert mempool.next_expiry == 999

    assert mempool.expire(998.999) == []
    assert mempool.expire(999.0) == [second]
    assert mempool.next_expiry == 1_000
    assert mempool.expire(5_000.0) == [first]
    assert mempool.next_expiry is None


def test_what_has_expired_here_never_comes_back() -> None:
    mempool = Mempool()
    add(mempool, 1, expires_at=1_000)
    mempool.expire(1_000.0)

    # The clock was set back: the validator would let it pass, the mempool remembers.
    mempool.expire(400.0)

    assert code_of(mempool, 1, expires_at=1_000) is ErrorCode.MSG_EXPIRED
    assert code_of(mempool, 1, expires_at=1_001) is None


def test_readers_see_only_layouts_that_their_profile_knows() -> None:
    mempool = Mempool()
    add(mempool, 1)
    add(mempool, 2, elements=4)
    add(mempool, 3)

    assert [entry.index for entry in mempool.after(0, 9, FIVE_ONLY)] == [1, 3]
    assert [entry.index for entry in mempool.after(0, 9, FIVE_AND_FOUR)] == [1, 2, 3]
    assert [entry.index for entry in mempool.after(0, 2, FIVE_AND_FOUR)] == [1, 2]
    assert [entry.index for entry in mempool.after(1, 1, FIVE_ONLY)] == [3]
    assert mempool.has_after(2, FIVE_ONLY)
    assert not mempool.has_after(3, FIVE_AND_FOUR)
    assert not mempool.has_after(0, frozenset())


def test_an_index_given_elsewhere_may_leave_gaps_but_not_go_back() -> None:
    mempool = Mempool()
    mempool.insert(MempoolEntry(5, a_message(1), 0, "disk"))
    mempool.skip_to(9)
    mempool.skip_to(3)

    assert add(mempool, 2).index == 10
    assert [entry.index for entry in mempool.after(0, 9, FIVE_ONLY)] == [5, 10]
    with pytest.raises(LocalProtocolError):
        mempool.insert(MempoolEntry(10, a_message(3), 0, "disk"))


def test_a_message_is_not_added_twice() -> None:
    mempool = Mempool()
    add(mempool, 1)
    with pytest.raises(LocalProtocolError):
        add(mempool, 1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40), st.sampled_from((4, 5))),
        st.tuples(st.just("expire"), st.integers(0, 45), st.just(0)),
    ),
    max_size=400,
)


@given(STEPS, st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20)), max_size=5))
def test_it_is_the_list_of_unexpired_messages_in_order(
    steps: list[tuple[str, int, int]], questions: list[tuple[int, int]]
) -> None:
    """Against a plain list, through so many expiries that the holes are closed up."""
    mempool = Mempool()
    plain: list[MempoolEntry] = []
    for number, (what, time, elements) in enumerate(steps):
        if what == "add":
            plain.append(add(mempool, number, expires_at=time, elements=elements))
        else:
            gone = mempool.expire(time)
            assert sorted(entry.index for entry in gone) == [
                entry.index for entry in plain if entry.message.expires_at <= time
            ]
            plain = [entry for entry in plain if entry.message.expires_at > time]
        assert mempool.count == len(plain)
        assert mempool.bytes == sum(len(entry.message.raw) for entry in plain)
        assert mempool.next_expiry == min((entry.message.expires_at for entry in plain), default=None)

    for index, count_max in questions:
        for layouts in (FIVE_ONLY, FIVE_AND_FOUR):
            wanted = [entry for entry in plain if entry.index > index and entry.message.layout in layouts]
            assert mempool.after(index, count_max, layouts) == wanted[:count_max]
            assert mempool.has_after(index, layouts) == bool(wanted)


def test_holes_are_closed_up_so_that_they_cannot_pile_up() -> None:
    mempool = Mempool()
    add(mempool, 0, expires_at=10_000)
    for number in range(1, 2_000):
        add(mempool, number, expires_at=number)
        mempool.expire(number)

    assert mempool.count == 1
    assert len(mempool._entries) < 200
    assert mempool.after(0, 5, FIVE_ONLY)[0].index == 1
