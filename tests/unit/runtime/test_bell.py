"""News wake everybody at once; what follows too soon wakes them once for all of it, and nothing is missed."""

from __future__ import annotations

import asyncio

from stagepost.runtime.bell import Bell
from stagepost.runtime.intake import RING_EVERY_S
from stagepost.runtime.virtual_time import run_in_virtual_time


async def _woken(bell: Bell, times: list[float]) -> None:
    while True:
        await bell.wait()
        times.append(asyncio.get_running_loop().time())


def _times_woken(bell: Bell, rings_at: list[float]) -> list[float]:
    times: list[float] = []

    async def run() -> None:
        listening = asyncio.create_task(_woken(bell, times))
        loop = asyncio.get_running_loop()
        for at in rings_at:
            loop.call_at(at, bell.ring)
        await asyncio.sleep(10)
        listening.cancel()

    run_in_virtual_time(run())
    return [round(at, 6) for at in times]


def test_each_ring_wakes_where_no_least_time_is_set() -> None:
    assert _times_woken(Bell(), [1.0, 1.001, 1.002]) == [1.0, 1.001, 1.002]


def test_the_first_ring_after_a_silence_wakes_at_once() -> None:
    assert _times_woken(Bell(at_most_every_s=0.5), [1.0, 3.0]) == [1.0, 3.0]


def test_rings_that_follow_too_soon_wake_once_for_all_of_them() -> None:
    assert _times_woken(Bell(at_most_every_s=0.5), [1.0, 1.1, 1.2, 1.4, 1.6]) == [1.0, 1.5, 2.0]


def test_a_ring_after_exactly_the_least_time_is_not_put_off() -> None:
    assert _times_woken(Bell(at_most_every_s=0.5), [1.0, 1.5]) == [1.0, 1.5]


def test_news_of_the_intake_wait_two_milliseconds_at_most() -> None:
    assert RING_EVERY_S == 0.002
