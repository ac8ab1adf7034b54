"""SIGTERM in the midst of work: nothing accepted is lost, and nothing is accepted twice afterwards."""

from __future__ import annotations

import pytest

from tests.hostile.stops import stopping

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("storms")]

STOPS = 10


def test_a_stop_under_load_loses_nothing_and_lets_no_replay_in(run_seed: int) -> None:
    figure, faults = stopping(STOPS, run_seed)

    assert not faults, f"{faults}\n{figure}"
