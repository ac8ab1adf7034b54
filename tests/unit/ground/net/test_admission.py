"""Limits on connections, each at its edge."""

from __future__ import annotations

from stagepost.ground.net.admission import Admission, AdmissionLimits, Refusal

LIMITS = AdmissionLimits(soft_max=3, hard_max=5, delay_s=5.0, per_source_max=2)


def test_connections_up_to_the_soft_limit_are_served_at_once_and_then_after_a_pause() -> None:
    admission = Admission(LIMITS)

    waits = [admission.enter(f"source-{number}") for number in range(5)]

    assert waits == [0.0, 0.0, 0.0, 5.0, 5.0]


def test_connection_above_the_hard_limit_is_refused_with_the_limit_named() -> None:
    admission = Admission(LIMITS)
    for number in range(5):
        admission.enter(f"source-{number}")

    refusal = admission.enter("source-6")

    assert isinstance(refusal, Refusal)
    assert (refusal.limit, refusal.found) == (5, 5)
    assert admission.count == 5


def test_source_above_its_own_limit_is_refused_and_others_are_not() -> None:
    admission = Admission(LIMITS)
    admission.enter("one")
    admission.enter("one")

    assert isinstance(admission.enter("one"), Refusal)
    assert not isinstance(admission.enter("two"), Refusal)


def test_exempt_source_is_held_to_the_common_limits_only() -> None:
    admission = Admission(LIMITS, exempt=frozenset({"127.0.0.1"}))

    outcomes = [admission.enter("127.0.0.1") for _ in range(6)]

    assert [isinstance(outcome, Refusal) for outcome in outcomes] == [False] * 5 + [True]


def test_leaving_makes_room_again() -> None:
    admission = Admission(LIMITS)
    admission.enter("one")
    admission.enter("one")
    admission.leave("one")

    assert not isinstance(admission.enter("one"), Refusal)
    assert admission.count == 2
