"""Many hostile connections at once, on a scale that fits here; `make soak` has the full one."""

from __future__ import annotations

import pytest

from tests.hostile.floods import forging, stalling
from tests.hostile.storms import Storm, dripping, holding_much, play

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("storms")]


@pytest.mark.parametrize(
    "storm",
    [
        pytest.param(holding_much(connections=100), id="frames that are large, slow or never finished"),
        pytest.param(dripping(connections=60), id="a byte a second"),
        pytest.param(forging(seconds=3), id="forged signatures at full speed"),
        pytest.param(stalling(consumers=20, stalled=5, messages=300), id="consumers that do not read"),
    ],
)
def test_storm_harms_nobody_else(storm: Storm) -> None:
    figure, faults = play(storm)

    assert not faults, f"{faults}\n{figure}"
