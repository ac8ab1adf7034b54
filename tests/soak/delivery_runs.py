"""Long runs of reliable delivery: publisher and receiver killed again and again under load."""

from __future__ import annotations

from collections.abc import Iterator

from rigs.results import Result, result
from tests.e2e.test_kill_publisher import kill_loop
from tests.soak.node_runs import kill_again
from tests.soak.runs import Run

PUBLISHER_KILLS_BY_SCALE = {"commit": 200, "release": 1_000}


def kill_publisher(run: Run) -> Iterator[Result]:
    """D5: what a publisher has promised survives it, and every effect happens once."""
    cycles = run.count(PUBLISHER_KILLS_BY_SCALE)
    returned, broken = kill_again(run, cycles, kill_loop, "publisher and receiver")
    figure = f"{cycles:,} kills, {returned:,} ids returned, {len(broken)} runs with a loss or a repeat"
    test = "tests/e2e/test_kill_publisher.py: kill -9 of publisher and receiver under load"
    yield result("D5", test, figure, faults=broken, seed=run.seed)
