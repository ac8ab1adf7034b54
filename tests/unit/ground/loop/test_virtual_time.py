"""The clock jumps, order is kept, and standing still is noticed."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from stagepost.ground.loop import virtual_time
from stagepost.ground.loop.virtual_time import (
    Patience,
    VirtualTimeLoop,
    VirtualTimeStuck,
    run_in_virtual_time,
)


def test_clock_jumps_to_each_timer_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []
        done = asyncio.Event()
        loop.call_later(3_600, lambda: seen.append(("hour", loop.time())))
        loop.call_later(3_600, done.set)
        loop.call_later(0.5, lambda: seen.append(("half a second", loop.time())))
        loop.call_later(86_400 * 3, lambda: seen.append(("never reached", loop.time())))
        await done.wait()
        return seen

    assert run_in_virtual_time(main()) == [("half a second", 0.5), ("hour", 3_600)]


def test_what_is_ready_comes_before_any_jump() -> None:
    async def main() -> float:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.send(b"ready")
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(1):
                assert await loop.sock_recv(ours, 10) == b"ready"
            return loop.time()

    assert run_in_virtual_time(main()) == 0


def test_timeout_passes_in_no_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(300):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == 300


def test_standing_still_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="stands still"):
        run_in_virtual_time(main())


def stuck_with(main: Coroutine[Any, Any, object], patience: Patience | None = None) -> str:
    with pytest.raises(VirtualTimeStuck) as caught:
        run_in_virtual_time(main, patience)
    return str(caught.value)


def test_standing_still_names_what_each_task_waits_for() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        waiting = asyncio.get_running_loop().create_task(wait_for_nobody(), name="somebody who waits")
        await waiting

    told = stuck_with(main())

    assert "every task waits and no timer is set" in told
    assert "somebody who waits" in told
    assert "wait_for_nobody: await asyncio.Event().wait()" in told


def test_tasks_that_keep_one_another_busy_while_no_time_passes_are_ended() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.about = "seed 4711"
        spinning = loop.create_task(spin(), name="the one that spins")
        loop.call_later(5, print)
        await asyncio.sleep(3)
        await spinning

    told = stuck_with(main(), Patience(steps_at_once_max=1_000))

    assert told.startswith(
        "virtual time is stuck in seed 4711: 1000 turns of the loop passed without any time passing"
    )
    assert "the one that spins" in told
    assert "spin: await asyncio.sleep(0)" in told
    assert "timers: 2" in told


def test_as_many_turns_at_once_as_are_allowed_are_no_fault() -> None:
    async def main(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    run_in_virtual_time(main(900), Patience(steps_at_once_max=1_000))
    assert "without any time passing" in stuck_with(main(1_100), Patience(steps_at_once_max=1_000))


def test_turns_are_counted_anew_whenever_time_passes() -> None:
    async def main(pause_s: float) -> int:
        for turn in range(3_000):
            await asyncio.sleep(pause_s if turn % 100 == 0 else 0)
        return turn

    assert run_in_virtual_time(main(0.001), Patience(steps_at_once_max=1_000)) == 2_999
    assert "without any time passing" in stuck_with(main(0), Patience(steps_at_once_max=1_000))


def test_a_run_that_goes_on_for_ever_ends_at_its_virtual_limit() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    told = stuck_with(main(), Patience(virtual_s_max=3_600))

    assert "it is not over after 3600 s of virtual time" in told
    assert "\nat 3601.000000 s" in told


def test_real_time_that_runs_out_ends_a_run_whose_clock_goes_on() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    assert "it is not over after 0.05 s of real time" in stuck_with(main(), Patience(real_s_max=0.05))


def test_a_callback_that_never_returns_is_interrupted_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "INTERRUPT_AFTER_S", 0.0)

    async def main() -> None:
        number = 0
        while True:
            number += 1

    told = stuck_with(main(), Patience(real_s_max=0.05))

    assert "it is not over after 0.05 s of real time" in told
    assert "number += 1" in told or "while True" in told
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_task_that_will_not_end_does_not_keep_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "ENDING_S_MAX", 0.05)

    async def deaf() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    assert "it is not over after 10 s of virtual time" in stuck_with(deaf(), Patience(virtual_s_max=10))


def test_an_error_of_the_run_itself_stays_what_it_is() -> None:
    async def main() -> None:
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        run_in_virtual_time(main())


def test_a_loop_in_another_thread_is_watched_without_signals() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    with ThreadPoolExecutor(1) as threads:
        told = threads.submit(stuck_with, main(), Patience(real_s_max=0.05)).result()

    assert "it is not over after 0.05 s of real time" in told
