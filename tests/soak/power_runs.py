"""D2: power loss again and again, on a file system that forgets what was not synced."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from rigs.results import Result, result
from tests.e2e.power_cuts import CUTS_ON_ONE_DISK, PowerCutImpossible, cut_loop, lost_by_the_control
from tests.soak.runs import Run

CUTS_BY_SCALE = {"commit": 40, "release": 500}
CONTROL_CUTS = 5
TEST = "tests/e2e/power_cuts.py: ext4 shut down without writing its log, under load"


def power_cuts(run: Run) -> Iterator[Result]:
    """Every accepted message is there after each cut; a build that does not wait for the disk must lose some."""
    cuts = run.count(CUTS_BY_SCALE)
    accepted = done = lost_by_control = 0
    broken: list[str] = []
    try:
        while done < cuts:
            turn = min(CUTS_ON_ONE_DISK, cuts - done)
            with tempfile.TemporaryDirectory(prefix="stagepost-") as folder:
                try:
                    accepted += cut_loop(Path(folder), run.seed + done, turn)
                except AssertionError as error:
                    broken.append(f"power cut, seed {run.seed + done}: {error}")
            done += turn
            run.say(f"{done} of {cuts} power cuts done")
        with tempfile.TemporaryDirectory(prefix="stagepost-") as folder:
            lost_by_control = lost_by_the_control(Path(folder), run.seed, CONTROL_CUTS)
    except PowerCutImpossible as error:
        # Not proved here: that is a result as well, and not a pass.
        broken.append(f"power cuts need root, mkfs.ext4 and a loop device: {error}")
    else:
        if not lost_by_control:
            broken.append(
                f"a build that does not wait for the disk lost nothing by {CONTROL_CUTS} power cuts"
            )
    figure = (
        f"{done:,} power cuts, {accepted:,} messages, {len(broken)} faults; "
        f"control without fsync lost {lost_by_control:,} by {CONTROL_CUTS}"
    )
    yield result("D2", TEST, figure, faults=broken, seed=run.seed, cuts=done)
