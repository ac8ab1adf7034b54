"""Queries under way on one link: so many and no more, each answered once, none remembered for ever."""

from __future__ import annotations

import pytest

from stagepost.catchain.query_window import (
    LATE_ANSWERS_MAX,
    QUERIES_ASKED_MAX,
    QUERIES_HELD_MAX,
    QUERY_LIFE_S,
    ReceivedQueries,
    SentQueries,
)
from stagepost.errors import ErrorCode, RemoteProtocolError


def test_numbers_count_up_and_64_may_be_under_way() -> None:
    asked = SentQueries()
    assert [asked.number_for_next(0.0) for _ in range(QUERIES_ASKED_MAX)] == list(range(64))
    assert asked.number_for_next(0.0) is None
    asked.answered(5)
    assert asked.number_for_next(0.0) == 64, "a number that was not given out is not lost"
    assert asked.number_for_next(0.0) is None


def test_a_query_makes_room_when_its_life_is_over_and_no_sooner() -> None:
    asked = SentQueries()
    for _ in range(QUERIES_ASKED_MAX):
        asked.number_for_next(10.0)
    assert asked.number_for_next(10.0 + QUERY_LIFE_S - 0.001) is None
    assert asked.number_for_next(10.0 + QUERY_LIFE_S) == 64
    assert asked.under_way == 1


@pytest.mark.parametrize("number", [0, 3, 1 << 63])
def test_an_answer_to_what_was_never_asked_is_a_broken_rule(number: int) -> None:
    with pytest.raises(RemoteProtocolError) as broken:
        SentQueries().answered(number)
    assert (broken.value.code, broken.value.reason) == (ErrorCode.PROTOCOL_WINDOW, "AnswerWithoutQuery")


def test_a_second_answer_is_a_broken_rule() -> None:
    asked = SentQueries()
    asked.number_for_next(0.0)
    asked.answered(0)
    with pytest.raises(RemoteProtocolError):
        asked.answered(0)


def test_an_answer_that_was_given_up_may_come_once_and_only_so_many_are_remembered() -> None:
    asked = SentQueries()
    for number in range(LATE_ANSWERS_MAX + 2):
        assert asked.number_for_next(number * QUERY_LIFE_S) == number
    # The last one is under way; of the others the oldest is forgotten.
    asked.answered(1)
    with pytest.raises(RemoteProtocolError):
        asked.answered(1)
    with pytest.raises(RemoteProtocolError):
        asked.answered(0)
    asked.answered(LATE_ANSWERS_MAX + 1)


def test_the_peers_queries_come_in_order() -> None:
    held = ReceivedQueries()
    held.take(0, 0.0)
    for wrong in (0, 2):
        with pytest.raises(RemoteProtocolError) as broken:
            held.take(wrong, 0.0)
        assert (broken.value.code, broken.value.reason) == (ErrorCode.PROTOCOL_WINDOW, "QueryOutOfOrder")
    held.take(1, 0.0)


def test_128_queries_of_the_peer_may_wait_and_no_more_within_their_life() -> None:
    held = ReceivedQueries()
    for number in range(QUERIES_HELD_MAX):
        held.take(number, 0.0)
    with pytest.raises(RemoteProtocolError) as broken:
        held.take(QUERIES_HELD_MAX, QUERY_LIFE_S - 0.001)
    assert (broken.value.reason, broken.value.limit) == ("TooManyQueries", QUERIES_HELD_MAX)
    held.take(QUERIES_HELD_MAX, QUERY_LIFE_S)
    assert held.count == 1


def test_a_query_is_answered_once_and_within_its_life() -> None:
    held = ReceivedQueries()
    for number in range(2):
        held.take(number, 0.0)
    assert held.may_answer(0, QUERY_LIFE_S - 0.001)
    assert not held.may_answer(0, 1.0)
    assert not held.may_answer(1, QUERY_LIFE_S)
    assert not held.may_answer(7, 0.0)


def test_an_honest_asker_never_breaks_the_rule_of_a_peer_that_never_answers_however_late_things_come() -> (
    None
):
    for late_s in (0.0, 1.0, QUERY_LIFE_S - 0.001):
        asked, held = SentQueries(), ReceivedQueries()
        events: list[tuple[float, int]] = []
        now = 0.0
        while now < 10 * QUERY_LIFE_S:
            number = asked.number_for_next(now)
            if number is not None:
                events.append((now, number))
            now += 0.1
        # The line is stalled once for `late_s`: what was asked meanwhile comes at its end, together.
        for asked_at, number in events:
            stalled = 95.0 <= asked_at < 95.0 + late_s
            held.take(number, 95.0 + late_s if stalled else asked_at)
            assert held.count <= QUERIES_HELD_MAX
        assert len(events) > QUERIES_HELD_MAX, "it asked more than could wait at once"
