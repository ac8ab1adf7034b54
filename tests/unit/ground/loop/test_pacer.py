"""Work waits for company only while the loop has hardly any time left, and all parts of a process hear the same."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from stagepost.ground.loop.pacer import BUSY_SHARE, CALM_SHARE, Pacer, pacer
from stagepost.ground.loop.virtual_time import VirtualTimeLoop, run_in_virtual_time


@pytest.mark.parametrize(
    ("share", "pressure"),
    [
        (0.0, 0.0),
        (CALM_SHARE, 0.0),
        ((CALM_SHARE + BUSY_SHARE) / 2, 0.5),
        (BUSY_SHARE, 1.0),
        (1.0, 1.0),
    ],
)
def test_the_busier_the_loop_the_longer_work_waits_up_to_a_limit(share: float, pressure: float) -> None:
    paced = Pacer(lambda: share)
    assert paced.pressure() == pytest.approx(pressure, abs=1e-9)
    assert paced.pause_s(0.1, 0.4) == pytest.approx(0.1 + 0.3 * pressure)


def test_all_parts_of_a_process_share_one_pacer() -> None:
    async def main() -> tuple[Pacer, Pacer]:
        return pacer(), pacer()

    first, second = asyncio.run(main())
    assert first is second
    other, _ = asyncio.run(main())
    assert other is not first


def test_a_virtual_loop_is_as_busy_as_its_run_says() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        assert pacer().pressure() == 0.0
        loop.load_share = 1.0
        assert pacer().pressure() == 1.0

    run_in_virtual_time(main())


def test_a_loop_that_is_over_is_freed_with_its_pacer() -> None:
    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        pacer()
        return weakref.ref(asyncio.get_running_loop())

    kept = run_in_virtual_time(main())
    gc.collect()
    assert kept() is None
