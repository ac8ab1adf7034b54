"""A change of the validator sets: whatever it does not name is judged as before, and a switch names little."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from rigs.remp_world import FULL_NODE, session, session_name, sets_file, source_of
from stagepost.remp.session_windows import ALWAYS, Window
from stagepost.remp.sets_change import SetsChange, sets_change
from stagepost.remp.validator_sets import ValidatorSets, parse_validator_sets

SEEDS = range(30)
TIMES = range(0, 60, 2)


def sets_of(*sessions: dict[str, Any], timeout_ms: int = 77) -> ValidatorSets:
    return parse_validator_sets(json.dumps(sets_file(*sessions, timeout_ms=timeout_ms)).encode(), "sets.json")


def test_a_switch_names_the_keys_of_both_sessions_from_that_moment_on() -> None:
    old = session(1, range(3), from_ms=0, to_ms=100)
    before = sets_of(old, session(2, range(3), seqno=101, from_ms=100))
    after = sets_of(
        old,
        session(2, range(3), seqno=101, from_ms=100, to_ms=200),
        session(3, range(1, 5), seqno=102, from_ms=200),
    )
    change = sets_change(before, after)
    assert change.keys == {source_of(who): (Window(200),) for who in range(5)}
    assert change.sessions == (Window(200),)
    assert not change.touches(source_of(0), 100, 199)
    assert change.touches(source_of(0), 100, 200)
    assert not change.touches(source_of(7), 0, 1_000)


def test_equal_sets_change_nothing() -> None:
    assert not sets_change(sets_of(session(1, range(3))), sets_of(session(1, range(3))))


def test_a_full_node_and_the_timeout_are_named() -> None:
    one = sets_of(session(1, range(3)))
    other = ValidatorSets({}, list(one.sessions.values()), 78)
    assert sets_change(one, other) == SetsChange({source_of(FULL_NODE): (ALWAYS,)}, (), True)
    assert sets_change(one, sets_of(session(1, range(3)), timeout_ms=78))


def test_another_membership_names_both_windows_whole() -> None:
    before = sets_of(session(1, range(3), from_ms=10, to_ms=20))
    after = sets_of(session(1, range(1, 4), from_ms=10, to_ms=30))
    change = sets_change(before, after)
    assert change.keys == {
        source_of(0): (Window(10, 20),),
        source_of(1): (Window(10, 30),),
        source_of(2): (Window(10, 30),),
        source_of(3): (Window(10, 30),),
    }


def some_sets(random: Random) -> list[dict[str, Any]]:
    def one(number: int) -> dict[str, Any]:
        first = random.randrange(50)
        last = None if random.random() < 0.2 else first + random.randrange(1, 30)
        start = random.randrange(4)
        members = range(start, start + random.randrange(1, 5))
        return session(number, members, seqno=100 + random.randrange(3), from_ms=first, to_ms=last)

    return [one(number) for number in range(1, random.randrange(2, 6))]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_named_is_judged_as_before(seed: int) -> None:
    random = Random(seed)
    sessions = some_sets(random)
    others = [one for one in some_sets(random) if random.random() < 0.3]
    names = {one["session_id"] for one in others}
    kept = [one for one in sessions if one["session_id"] not in names and random.random() < 0.8]
    before, after = sets_of(*sessions), sets_of(*kept, *others)
    change = sets_change(before, after)
    for who in range(9):
        source = source_of(who)
        for first in TIMES:
            last = first + random.randrange(5)
            if change.touches(source, first, last):
                continue
            found_source = [sets.source(source, first) for sets in (before, after)]
            # The sentences may differ: a key that is in no session at all is another fault than one outside its windows.
            assert found_source[0] == found_source[1] or all(isinstance(one, str) for one in found_source), (
                seed
            )
            held = [
                {found.session_id: found for found, _ in sets.held_by(source, first, last)}
                for sets in (before, after)
            ]
            assert held[0].keys() == held[1].keys(), seed
            for session_id, found in held[0].items():
                same = held[1][session_id]
                assert (found.validators, found.age_key) == (same.validators, same.age_key), seed


@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_that_come_one_by_one_give_the_sets_of_the_file(seed: int) -> None:
    """A topic brings sessions one after another, and their ends later; the file has them all."""
    random = Random(seed)
    whole = sets_of(*some_sets(random))
    grown = ValidatorSets(whole.full_nodes, (), whole.message_timeout_ms)
    earlier = sets_of(*some_sets(random))
    for one in earlier.sessions.values():
        if one.session_id in whole.sessions:
            grown.enter(one)
    for who in range(9):
        grown.source(source_of(who), 5)
    grown.near(0, 5)
    for one in whole.sessions.values():
        grown.enter(one)
    assert grown.sessions == whole.sessions
    for who in range(9):
        for time_ms in TIMES:
            assert grown.source(source_of(who), time_ms) == whole.source(source_of(who), time_ms), seed
    for time_ms in TIMES:
        near = grown.near(time_ms, time_ms)
        held = {one.session_id for one in whole.sessions.values() if one.meets(time_ms, time_ms)}
        assert near.sessions.keys() == held, seed


def test_sets_near_a_time_keep_what_else_they_say() -> None:
    sets = sets_of(session(1, range(3), from_ms=5, to_ms=9), session(2, range(3), seqno=101, from_ms=9))
    near = sets.near(6, 8)
    assert list(near.sessions) == [session_name(1)]
    assert (near.full_nodes, near.message_timeout_ms) == (sets.full_nodes, sets.message_timeout_ms)
