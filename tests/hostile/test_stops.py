"""SIGTERM in the midst of work: nothing accepted is lost, nothing is accepted twice afterwards, and the next start is soon ready."""

from __future__ import annotations

import pytest

from tests.hostile.big_store import restarting
from tests.hostile.stops import stopping

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("storms")]

STOPS = 10
STORED = 8_000


def test_a_stop_under_load_loses_nothing_and_lets_no_replay_in(run_seed: int) -> None:
    figure, faults = stopping(STOPS, run_seed)

    assert not faults, f"{faults}\n{figure}"


def test_a_node_with_thousands_of_stored_messages_is_ready_in_time() -> None:
    """A start that costs more for each message than for the one before is not ready in time; `make soak` has a million."""
    figure, faults = restarting(STORED)

    assert not faults, f"{faults}\n{figure}"
