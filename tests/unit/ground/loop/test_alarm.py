"""An alarm rings once, at the earliest time that was asked for, and not after it was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

import pytest

from stagepost.ground.loop.alarm import Alarm
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time


def rings(act: Callable[[Alarm], None], for_s: float = 10.0) -> list[float]:
    """When it rang after these calls, which happen at 0."""
    rung: list[float] = []

    async def main() -> None:
        clock = SystemClock()
        alarm = Alarm(clock, lambda: rung.append(clock.mono_s()))
        act(alarm)
        await asyncio.sleep(for_s)

    run_in_virtual_time(main())
    return rung


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((3.0,), [3.0]),
        ((3.0, 5.0), [3.0]),
        ((5.0, 3.0), [3.0]),
        ((5.0, 3.0, 4.0), [3.0]),
        ((-1.0,), [0.0]),
        ((None, inf), []),
        ((None, 2.0, inf), [2.0]),
    ],
)
def test_the_earliest_time_that_was_asked_for_counts(
    asked: tuple[float | None, ...], expected: list[float]
) -> None:
    def act(alarm: Alarm) -> None:
        for at in asked:
            alarm.set(at)

    assert rings(act) == expected


def test_it_can_be_set_again_by_whom_it_has_called() -> None:
    rung: list[float] = []

    async def main() -> None:
        clock = SystemClock()

        def ring() -> None:
            rung.append(clock.mono_s())
            if len(rung) < 3:
                alarm.set(clock.mono_s() + 1.0)

        alarm = Alarm(clock, ring)
        alarm.set(1.0)
        await asyncio.sleep(10.0)

    run_in_virtual_time(main())
    assert rung == [1.0, 2.0, 3.0]


def test_what_was_cancelled_does_not_ring_and_keeps_no_later_time_from_being_set() -> None:
    def act(alarm: Alarm) -> None:
        alarm.set(1.0)
        alarm.cancel()
        alarm.cancel()
        alarm.set(2.0)

    assert rings(act) == [2.0]
    assert rings(lambda alarm: alarm.cancel()) == []
