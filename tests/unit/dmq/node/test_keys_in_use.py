"""Periods left of local keys: of the one that ends first, while it is in use."""

from __future__ import annotations

import pytest

from stagepost.dmq.node.pool_watch import IN_USE_S, POOLS_MAX, KeysInUse
from tests.worlds.dmq.pool_signers import Signer


def test_nothing_is_left_to_tell_while_no_key_is_in_use() -> None:
    assert KeysInUse().periods_remaining(0.0) is None


@pytest.mark.parametrize(("evolution", "left"), [(0, 62), (1, 61), (61, 1)])
def test_the_present_period_is_among_those_left(evolution: int, left: int) -> None:
    keys = KeysInUse()
    keys.note(Signer(start_kes_period=7).sign(evolution=evolution), 62, 0.0)

    assert keys.periods_remaining(0.0) == left


def test_the_key_that_ends_first_is_told_and_a_renewed_one_is_seen_at_once() -> None:
    keys = KeysInUse()
    keys.note(Signer(0).sign(evolution=3), 62, 0.0)
    keys.note(Signer(1).sign(evolution=60), 62, 1.0)
    assert keys.periods_remaining(2.0) == 2

    keys.note(Signer(1, issue_number=2, start_kes_period=60).sign(evolution=0), 62, 3.0)

    assert keys.periods_remaining(4.0) == 59


def test_a_pool_that_was_silent_for_a_period_is_not_in_use_any_more() -> None:
    keys = KeysInUse()
    keys.note(Signer().sign(), 62, 0.0)

    assert keys.periods_remaining(IN_USE_S) == 62
    assert keys.periods_remaining(IN_USE_S + 1) is None


def test_as_many_pools_are_remembered_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.dmq.node.pool_watch.POOLS_MAX", 2)
    keys = KeysInUse()
    keys.note(Signer(0).sign(evolution=61), 62, 0.0)
    keys.note(Signer(1).sign(), 62, 0.0)
    assert keys.periods_remaining(0.0) == 1

    keys.note(Signer(2).sign(), 62, 0.0)

    assert keys.periods_remaining(0.0) == 62
    assert POOLS_MAX == 1_024
