"""The search for bodies: who is asked, when it is given up, and what it costs."""

from __future__ import annotations

import pytest

from stagepost.remp.queue.body_search import (
    ASK_AGAIN_S,
    GIVEN_UP_AFTER_S,
    GIVEN_UP_ASKED_MAX,
    BodySearch,
)

AUTHOR = 2


def ids(count: int, of: int = 0) -> list[bytes]:
    return [bytes([of]) * 16 + number.to_bytes(16, "big") for number in range(1, count + 1)]


def by_author(message_id: bytes) -> tuple[int]:
    return (AUTHOR,)


def run(search: BodySearch, until: float) -> list[tuple[float, int]]:
    """Return who was asked when, up to `until`, and never call before the wake."""
    asked = []
    while (wake := search.next_wake) is not None and wake <= until:
        search.give_up(wake)
        asked += [(wake, member) for member, _ in search.again(wake, by_author)]
    return asked


def test_the_author_and_two_others_are_asked_before_it_is_given_up_at_five_seconds() -> None:
    search, (one,) = BodySearch(0, 7), ids(1)
    assert search.begin(one, AUTHOR, 10.0) == AUTHOR
    asked = run(search, 10.0 + GIVEN_UP_AFTER_S - 0.001)
    assert [at for at, _ in asked] == [10.0 + ASK_AGAIN_S, 10.0 + 2 * ASK_AGAIN_S]
    assert len({AUTHOR, *(member for _, member in asked)}) == 3
    assert search.give_up(10.0 + GIVEN_UP_AFTER_S - 0.001) == []
    assert search.next_wake == 10.0 + GIVEN_UP_AFTER_S
    assert search.give_up(10.0 + GIVEN_UP_AFTER_S) == [one]
    assert search.give_up(30.0) == [], "once"
    assert len(search) == 0


def test_it_is_not_given_up_while_too_few_were_asked() -> None:
    search, (one,) = BodySearch(0, 7), ids(1)
    search.begin(one, AUTHOR, 0.0)
    assert search.give_up(100.0) == []


@pytest.mark.parametrize("members", [2, 3])
def test_in_a_small_session_all_others_are_enough(members: int) -> None:
    search, (one,) = BodySearch(0, members), ids(1)
    search.begin(one, 1, 0.0)
    for _ in range(members - 2):
        search.not_had(one, 0.0, (1,))
    assert search.give_up(GIVEN_UP_AFTER_S) == [one]


def given_up(counts: dict[int, int]) -> BodySearch:
    search = BodySearch(0, 4)
    for author, count in counts.items():
        for one in ids(count, author):
            search.begin(one, author, 0.0)
            search.not_had(one, 0.0, (author,))
            search.not_had(one, 0.0, (author,))
    assert len(search.give_up(GIVEN_UP_AFTER_S)) == sum(counts.values())
    return search


def test_what_was_given_up_is_asked_for_slowly_and_no_author_delays_another() -> None:
    search = given_up({2: 1_000, 3: 1})
    wake = search.next_wake
    assert wake == GIVEN_UP_AFTER_S + ASK_AGAIN_S
    found = search.again(wake, lambda message_id: (message_id[0],))
    assert len(found) == GIVEN_UP_ASKED_MAX + 1
    assert (3, ids(1, 3)[0]) in found
    assert search.next_wake == wake + ASK_AGAIN_S


def test_each_time_another_member_is_asked() -> None:
    search = given_up({2: 1})
    asked = [search.again(10.0 + number * ASK_AGAIN_S, lambda _: ())[0][0] for number in range(3)]
    assert sorted(asked) == [1, 2, 3]


def test_nothing_is_asked_for_any_more_once_the_body_is_here() -> None:
    search = given_up({2: 2})
    for one in ids(2, 2):
        search.end(one)
    assert search.next_wake is None
    assert search.begin(ids(1, 2)[0], 2, 50.0) == 2


def test_ten_thousand_searches_make_the_next_wake_no_dearer() -> None:
    search = BodySearch(0, 4)
    for number, one in enumerate(ids(10_000)):
        search.begin(one, AUTHOR, number * 0.0001)
    touched = []

    class Counted(dict[bytes, object]):
        def get(self, *key: object) -> object:
            touched.append(key)
            return super().get(*key)  # type: ignore[call-overload]

    search._searches = Counted(search._searches)  # type: ignore[assignment]
    assert search.next_wake == ASK_AGAIN_S
    assert len(touched) == 1
