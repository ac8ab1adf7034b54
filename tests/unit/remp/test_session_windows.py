"""The index of windows: the same values as a walk over all of them finds, whatever the order in which they came."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from stagepost.remp.session_windows import (
    ALWAYS,
    BEGINNING_MS,
    END_MS,
    Window,
    WindowIndex,
    changed_moments,
    joined_windows,
)

SEEDS = range(20)
TIMES = range(-1, 62)


def some_windows(random: Random, count: int) -> list[Window]:
    def window() -> Window:
        first = random.randrange(60)
        last = first + random.choice((1, 2, 3, random.randrange(1, 60)))
        return Window.between(
            None if random.random() < 0.1 else first, None if random.random() < 0.1 else last
        )

    return [window() for _ in range(count)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_index_finds_what_a_walk_finds(seed: int) -> None:
    random = Random(seed)
    entries = list(enumerate(some_windows(random, random.randrange(30))))
    index = WindowIndex((window, number) for number, window in entries)
    assert len(index) == len(entries)
    for first in TIMES:
        at = {number for number, window in entries if window.meets(first, first)}
        assert index.at(first) in at if at else index.at(first) is None, seed
        last = first + random.randrange(8)
        found = list(index.meeting(first, last))
        assert sorted(found) == [number for number, window in entries if window.meets(first, last)], seed


@pytest.mark.parametrize("seed", SEEDS)
def test_entering_and_removing_gives_the_index_of_what_is_left(seed: int) -> None:
    random = Random(seed)
    held: list[tuple[Window, int]] = []
    index: WindowIndex[int] = WindowIndex()
    for number, window in enumerate(some_windows(random, 40)):
        if held and random.random() < 0.4:
            index.remove(*held.pop(random.randrange(len(held))))
        index.enter(window, number)
        held.append((window, number))
        for time_ms in TIMES:
            found = sorted(index.meeting(time_ms, time_ms))
            assert found == sorted(value for one, value in held if one.meets(time_ms, time_ms)), seed
            assert (index.at(time_ms) is None) == (not found), seed


def test_a_value_that_is_not_there_is_not_removed() -> None:
    index = WindowIndex([(Window(1, 5), "one")])
    with pytest.raises(KeyError):
        index.remove(Window(1, 5), "other")
    with pytest.raises(KeyError):
        index.remove(Window(1, 6), "one")
    assert index.at(4) == "one"


def test_a_look_up_does_not_walk_over_history() -> None:
    """Count the windows that are looked at: the number of them before the time asked for does not matter."""
    looked_at = 0

    class Counted(Window):
        def __getattribute__(self, name: str) -> object:
            nonlocal looked_at
            looked_at += name == "to_ms"
            return super().__getattribute__(name)

    index = WindowIndex((Counted(10 * number, 10 * number + 10), number) for number in range(20_000))
    index.enter(Window(3), -1)
    looked_at = 0
    assert sorted(index.meeting(150_000, 150_009)) == [-1, 15_000]
    assert index.at(2) == 0
    assert looked_at <= 8


@pytest.mark.parametrize("seed", SEEDS)
def test_joined_windows_hold_the_same_moments(seed: int) -> None:
    windows = [*some_windows(Random(seed), 6), Window(5, 5)]
    found = joined_windows(windows)
    for time_ms in TIMES:
        held = [window for window in found if window.meets(time_ms, time_ms)]
        assert len(held) == any(window.meets(time_ms, time_ms) for window in windows), seed
    assert all(one.to_ms < other.from_ms for one, other in pairwise(found)), seed


@pytest.mark.parametrize("seed", SEEDS)
def test_changed_moments_are_those_of_one_window_only(seed: int) -> None:
    before, after = some_windows(Random(seed), 2)
    found = changed_moments(before, after)
    for time_ms in TIMES:
        is_changed = before.meets(time_ms, time_ms) != after.meets(time_ms, time_ms)
        assert any(window.meets(time_ms, time_ms) for window in found) == is_changed, seed


def test_open_bounds() -> None:
    assert Window.between(None, None) == ALWAYS == Window(BEGINNING_MS, END_MS)
    assert changed_moments(Window(5), Window(5, 9)) == (Window(9),)
    assert changed_moments(Window(5, 9), Window(5, 9)) == ()
