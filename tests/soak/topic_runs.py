"""Long runs of a topic log: its writer killed, or its power cut, again and again under load, a reader beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rigs.results import Result, result
from stagepost.errors import StorageError
from tests.e2e.power_cuts import PowerCutImpossible
from tests.e2e.test_kill_topic_writer import kill_loop
from tests.e2e.test_topic_power_cut import cut_loop
from tests.soak.node_runs import kill_again
from tests.soak.runs import Run

TOPIC_KILLS_BY_SCALE = {"commit": 100, "release": 1_000}
TOPIC_CUTS_BY_SCALE = {"commit": 40, "release": 500}

Loop = Callable[[Path, int, int], int]


def kill_topic_writer(run: Run) -> Iterator[Result]:
    """D1 for topics: what was acknowledged is there, and nothing torn was ever read."""
    cycles = run.count(TOPIC_KILLS_BY_SCALE)
    acknowledged, broken = kill_again(run, cycles, _asserting(kill_loop), "a topic's writer")
    figure = f"{cycles:,} kills, {acknowledged:,} records acknowledged, {len(broken)} runs with a loss or a torn record"
    test = "tests/e2e/test_kill_topic_writer.py: kill -9 under load, beside a reader"
    yield result("D1", test, figure, faults=broken, seed=run.seed)


def cut_topic_power(run: Run) -> Iterator[Result]:
    """D2 for topics: the same when the power fails."""
    cuts = run.count(TOPIC_CUTS_BY_SCALE)
    test = "tests/e2e/test_topic_power_cut.py: ext4 shut down without writing its log, under load"
    try:
        acknowledged, broken = kill_again(run, cuts, _asserting(cut_loop), "a topic's power")
    except PowerCutImpossible as error:
        # Not proved here: that is a result as well, and not a pass.
        text = f"power cuts need root, mkfs.ext4 and a loop device: {error}"
        yield result("D2", test, "not run", faults=[text], seed=run.seed)
        return
    figure = f"{cuts:,} power cuts, {acknowledged:,} records acknowledged, {len(broken)} runs with a loss"
    yield result("D2", test, figure, faults=broken, seed=run.seed)


def _asserting(loop: Loop) -> Loop:
    """Damage that is noticed afterwards is a fault as well: neither a kill nor a power cut damages anything."""

    def play(folder: Path, seed: int, cycles: int) -> int:
        try:
            return loop(folder, seed, cycles)
        except StorageError as error:
            raise AssertionError(error.text) from error

    return play
