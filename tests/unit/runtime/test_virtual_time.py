"""The clock jumps, order is kept, and standing still is noticed."""

from __future__ import annotations

import asyncio
import socket

import pytest

from stagepost.runtime.virtual_time import run_in_virtual_time


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
