"""Clocks of real nodes are set while they run; needs libfaketime, and is skipped with the reason where it cannot be had."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hostile.clock_steps import day_ahead, skewed, stepping
from tests.hostile.disk_shim import NotToBeHad
from tests.hostile.storms import Figure

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("storms")]

MESSAGES = 5


def played(scenario: Callable[[], tuple[Figure, list[str]]]) -> list[str]:
    try:
        _, faults = scenario()
    except NotToBeHad as reason:
        pytest.skip(str(reason))
    return faults


@pytest.mark.parametrize("back_s", [600, 86_400])
def test_a_clock_that_is_set_back_lets_no_replay_in(back_s: int) -> None:
    assert not played(lambda: stepping(back_s, MESSAGES, waits_for_sweep=False))


def test_a_clock_that_is_a_day_ahead_costs_no_day_and_lets_no_replay_in() -> None:
    assert not played(lambda: day_ahead(MESSAGES))


@pytest.mark.parametrize("skew_s", [5, -5, -30])
def test_a_node_with_another_clock_refuses_nothing_within_the_limit_and_names_it_beyond(skew_s: int) -> None:
    assert not played(lambda: skewed(skew_s))
