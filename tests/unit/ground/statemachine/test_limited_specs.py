"""Specs with time limits of one's own: equal limits share one, and only so many are kept."""

from __future__ import annotations

from stagepost.dmq.local_submission import LOCAL_SUBMISSION
from stagepost.ground.statemachine.spec import LIMITED_SPECS_KEPT_MAX


def test_equal_limits_share_one_spec() -> None:
    first = LOCAL_SUBMISSION.with_time_limits({"Idle": 12.5})

    assert LOCAL_SUBMISSION.with_time_limits({"Idle": 12.5}) is first
    assert first.state("Idle").timeout_s == 12.5
    assert LOCAL_SUBMISSION.with_time_limits({"Idle": 13.5}).state("Idle").timeout_s == 13.5


def test_limits_beyond_those_kept_are_made_each_time() -> None:
    fresh = LOCAL_SUBMISSION.with_states("fresh", {state: state for state in LOCAL_SUBMISSION.states})
    made = [fresh.with_time_limits({"Idle": float(number)}) for number in range(LIMITED_SPECS_KEPT_MAX + 1)]

    assert [spec.state("Idle").timeout_s for spec in made] == [float(number) for number in range(len(made))]
    assert fresh.with_time_limits({"Idle": 0.0}) is made[0]
    assert fresh.with_time_limits({"Idle": float(LIMITED_SPECS_KEPT_MAX)}) == made[-1]
    assert len(fresh._limited) == LIMITED_SPECS_KEPT_MAX
