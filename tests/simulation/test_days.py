"""Some minutes of the day that `make soak` simulates in full: faults all along, every rule kept in every part of it."""

from __future__ import annotations

import asyncio

import pytest

from stagepost.dmq.node.intake import Intake
from stagepost.simulation.history import (
    History,
    ListenerConnection,
    Listing,
    Made,
    NotifiedMessage,
    SubmissionAnswer,
)
from tests.simulation.days import SLOPE_MAX, WARM_UP_HOURS, Day, forget_the_old, run_day

WINDOW_S = 300.0
HOURS = 2 * WINDOW_S / 3_600


def test_minutes_of_a_day_with_faults_break_no_rule(run_seed: int) -> None:
    day = run_day(run_seed, HOURS, WINDOW_S)

    assert not day.violations, f"seed {run_seed}: {day.violations[:5]}"
    assert day.accepted > 10
    assert len(day.resident_bytes) == 2


def test_a_node_that_sweeps_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Intake) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Intake, "expire_loop", never)

    assert any("nothing_expired_is_shown" in text for text in run_day(3, HOURS, WINDOW_S).violations)


def test_growth_is_measured_after_the_warm_up_and_in_parts_of_what_was_there_then() -> None:
    warm = [10, 60, 90, 95]
    assert len(warm) == WARM_UP_HOURS
    assert Day(0, resident_bytes=warm).slope_per_hour() is None
    assert Day(0, resident_bytes=[*warm, 100, 100, 100]).slope_per_hour() == pytest.approx(0)
    assert Day(0, resident_bytes=[*warm, 100, 102, 104, 106]).slope_per_hour() == pytest.approx(2 * SLOPE_MAX)


def test_what_is_forgotten_between_hours_is_all_that_concerns_expired_messages() -> None:
    old, young = b"old" * 20, b"young" * 20
    history = History(0.0, made={old: Made(1_000), young: Made(5_000)})
    history.answers = [SubmissionAnswer("node", 1, 0.0, 0.0, raw, True) for raw in (old, young)]
    history.cursors = [
        ListenerConnection("node", 1, 0, 0.0, heard=[NotifiedMessage(0.0, 0.0, raw) for raw in (old, young)])
    ]
    history.listings = [Listing("node", 1, 0.0, 0.0, (old,), "final")]

    forget_the_old(history, 2_000.0, replayable={old})

    assert set(history.made) == {old, young}
    assert [answer.raw for answer in history.answers] == [young]
    assert [heard.raw for heard in history.cursors[0].heard] == [young]
    assert not history.listings
