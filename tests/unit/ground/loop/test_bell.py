"""News wake everybody at once; what follows too soon wakes them once for all of it, and nothing is missed."""

from __future__ import annotations

import asyncio
from functools import partial

from stagepost.dmq.node.intake import RING_EVERY_S, RING_PER_READER_S
from stagepost.ground.loop.bell import SILENCE_MAX_S, Bell
from stagepost.ground.loop.virtual_time import run_in_virtual_time


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


def test_the_silence_grows_with_those_who_wait_up_to_a_limit() -> None:
    async def times_rung(waiting: int) -> float:
        bell = Bell(at_most_every_s=0.002, per_waiter_s=0.000_5)
        woken: list[int] = []
        for number in range(waiting):
            bell.call(partial(woken.append, number))
        bell.ring()
        began = asyncio.get_running_loop().time()
        bell.ring()
        assert bell.is_put_off
        await bell.wait()
        return round(asyncio.get_running_loop().time() - began, 6)

    silences = {waiting: run_in_virtual_time(times_rung(waiting)) for waiting in (0, 4, 5, 10, 10_000)}

    assert silences == {0: 0.002, 4: 0.002, 5: 0.002_5, 10: 0.005, 10_000: SILENCE_MAX_S}


def test_who_asks_for_a_call_is_called_once_after_the_ring_and_not_inside_of_it() -> None:
    calls: list[str] = []

    async def main() -> None:
        bell = Bell()
        first, second = partial(calls.append, "first"), partial(calls.append, "second")
        for call in (first, second, first):
            bell.call(call)
        bell.forget(second)
        assert bell.waiting == 1
        bell.ring()
        assert calls == []
        bell.ring()
        await asyncio.sleep(0)
        assert calls == ["first"]
        assert bell.waiting == 0

    run_in_virtual_time(main())


def test_in_a_storm_news_wait_for_two_milliseconds_or_one_for_each_reader() -> None:
    assert (RING_EVERY_S, RING_PER_READER_S, SILENCE_MAX_S) == (0.002, 0.001, 0.1)
