"""O1: a simulated day of seven nodes with faults, in a process of its own whose memory is watched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

from rigs.results import ROOT, Result, result
from tests.simulation.days import NODES, SLOPE_MAX, Day
from tests.soak.runs import Run

HOURS_BY_SCALE = {"commit": 24, "release": 240}
MEGABYTE = 1_000_000
SEEDS_APART = 2**31


def day(run: Run) -> Iterator[Result]:
    hours, seed = run.count(HOURS_BY_SCALE), run.seed % SEEDS_APART
    run.say(f"{hours} simulated hours")
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.days", str(seed), str(hours)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = Day(**json.loads(done.stdout))
    slope = found.slope_per_hour()
    faults = [f"seed {seed}: {violation}" for violation in found.violations]
    if slope is not None and slope > SLOPE_MAX:
        faults.append(f"seed {seed}: memory grows by {slope:.2%} in an hour, {SLOPE_MAX:.0%} are allowed")
    grows = "not measured" if slope is None else f"{slope:+.3%} per hour"
    figure = (
        f"{found.hours:g} simulated hours, {NODES} nodes, {found.faults:,} faults, {found.accepted:,} messages, "
        f"{len(found.violations)} violations, memory {grows} after the warm-up"
    )
    yield result(
        "O1",
        "tests/simulation/days.py",
        figure,
        faults=faults,
        seed=seed,
        real_s=round(found.real_s),
        resident_mb=[round(size / MEGABYTE, 1) for size in found.resident_bytes],
    )
