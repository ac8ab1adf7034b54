"""What a peer is told of: in order of arrival, once, only in layouts that it knows, and nothing that is gone."""

from __future__ import annotations

from stagepost.dmq.mempool import Mempool
from stagepost.dmq.message import FIVE_AND_FOUR, FIVE_ONLY, DmqMessage
from stagepost.dmq.outcome import ACCEPTED, Rejected
from stagepost.dmq.submission import MESSAGES_BYTES_MAX
from stagepost.dmq.supplying import OfferedMessages, SupplyCore
from stagepost.errors import ErrorCode
from tests.worlds.dmq.pulling_world import NOW_UNIX_S, a_message, announced, legacy, messages


def a_mempool(*held: DmqMessage) -> Mempool:
    mempool = Mempool()
    for message in held:
        mempool.add(message, 0, "test")
    return mempool


def test_ids_come_once_in_order_of_arrival_with_their_real_sizes() -> None:
    held = messages(5)
    supplying = SupplyCore(a_mempool(*held), FIVE_ONLY)

    assert supplying.next_ids(3) == tuple(announced(message) for message in held[:3])
    assert supplying.next_ids(3) == tuple(announced(message) for message in held[3:])
    assert supplying.next_ids(3) == ()


def test_what_arrives_later_is_announced_later() -> None:
    mempool = a_mempool(*messages(2))
    supplying = SupplyCore(mempool, FIVE_ONLY)
    supplying.next_ids(10)

    late = a_message(99)
    mempool.add(late, 0, "test")

    assert supplying.next_ids(10) == (announced(late),)


def test_layouts_that_the_peer_does_not_know_are_passed_over_for_good() -> None:
    mempool = a_mempool(legacy(b"l" * 32), a_message(1), legacy(b"m" * 32))

    strict = SupplyCore(mempool, FIVE_ONLY)
    lenient = SupplyCore(mempool, FIVE_AND_FOUR)

    assert strict.next_ids(10) == (announced(a_message(1)),)
    assert strict.cursor == mempool.last_index
    assert len(lenient.next_ids(10)) == 3


def test_two_layouts_with_one_id_are_never_announced_together() -> None:
    newer = a_message(1)
    older = legacy(newer.message_id)
    supplying = SupplyCore(a_mempool(older, newer, a_message(2)), FIVE_AND_FOUR)

    assert supplying.next_ids(10) == (announced(older),)
    assert supplying.next_ids(10) == ()
    assert supplying.messages([newer.message_id]) == (older,)
    supplying.acknowledge(1)

    assert supplying.next_ids(10) == (announced(newer), announced(a_message(2)))
    assert supplying.messages([newer.message_id]) == (newer,)


def test_requested_messages_are_given_as_they_are() -> None:
    held = messages(3)
    supplying = SupplyCore(a_mempool(*held), FIVE_ONLY)
    supplying.next_ids(3)

    found = supplying.messages([held[2].message_id, held[0].message_id, held[2].message_id])

    assert found == (held[2], held[0])


def test_what_expired_after_its_announcement_is_left_out() -> None:
    short, long = a_message(1, expires_in_s=10), a_message(2, expires_in_s=100)
    mempool = a_mempool(short, long)
    supplying = SupplyCore(mempool, FIVE_ONLY)
    supplying.next_ids(2)

    mempool.expire(NOW_UNIX_S + 10)

    assert supplying.messages([short.message_id, long.message_id]) == (long,)


def test_a_reply_never_grows_beyond_what_the_peer_may_read() -> None:
    held = [a_message(number, body_bytes=2_000) for number in range(60)]
    supplying = SupplyCore(a_mempool(*held), FIVE_ONLY)
    supplying.next_ids(60)

    found = supplying.messages([message.message_id for message in held])

    total = sum(len(message.raw) for message in found)
    assert total < MESSAGES_BYTES_MAX < total + len(held[0].raw)


# Without a mempool


def test_offered_messages_are_bounded_and_come_in_order() -> None:
    offered = OfferedMessages(count_max=2)
    first, second, third = messages(3)

    assert offered.offer(first, NOW_UNIX_S) == ACCEPTED
    assert offered.offer(second, NOW_UNIX_S) == ACCEPTED
    refusal = offered.offer(third, NOW_UNIX_S)
    repeated = offered.offer(first, NOW_UNIX_S)

    assert isinstance(refusal, Rejected)
    assert refusal.code is ErrorCode.QUEUE_FULL
    assert isinstance(repeated, Rejected)
    assert repeated.code is ErrorCode.MSG_DUPLICATE
    assert offered.next_ids(5, NOW_UNIX_S) == (announced(first), announced(second))


def test_acknowledged_messages_make_room_and_announced_ones_do_not() -> None:
    offered = OfferedMessages(count_max=1)
    first, second = messages(2)
    offered.offer(first, NOW_UNIX_S)
    offered.next_ids(1, NOW_UNIX_S)
    assert isinstance(offered.offer(second, NOW_UNIX_S), Rejected)

    offered.acknowledge(1)

    assert offered.offer(second, NOW_UNIX_S) == ACCEPTED
    assert len(offered) == 1


def test_expired_messages_make_room_unless_they_were_announced() -> None:
    offered = OfferedMessages(count_max=2)
    announced_one, waiting, fresh = (a_message(n, expires_in_s=s) for n, s in ((1, 10), (2, 10), (3, 99)))
    offered.offer(announced_one, NOW_UNIX_S)
    offered.next_ids(1, NOW_UNIX_S)
    offered.offer(waiting, NOW_UNIX_S)

    assert offered.offer(fresh, NOW_UNIX_S + 10) == ACCEPTED

    assert offered.messages([announced_one.message_id], NOW_UNIX_S + 9) == (announced_one,)
    assert offered.messages([announced_one.message_id], NOW_UNIX_S + 10) == ()
    assert offered.next_ids(5, NOW_UNIX_S + 10) == (announced(fresh),)
