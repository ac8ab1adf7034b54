"""Long runs of the node itself: simulated worlds from many seeds, and kill -9 again and again."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rigs.results import Result, result
from tests.e2e.test_kill_intake import kill_loop
from tests.simulation.dmq_scenarios import SCENARIOS, run_seed
from tests.simulation.dmq_scenarios import Result as WorldResult
from tests.soak.runs import Run

SEEDS_BY_SCALE = {"commit": 300, "release": 10_000}
KILLS_BY_SCALE = {"commit": 100, "release": 1_000}
KILLS_ON_ONE_FOLDER = 20
PROGRESS_EVERY_S = 10
SEEDS_APART = 2**31
"""Worlds are numbered by small seeds, which are easier to type again."""

BY_PROMISE = {
    "N10": ("eclipse",),
    "N11": ("sybil",),
    "W1": tuple(name for name in SCENARIOS if name not in ("eclipse", "sybil")),
}


def simulate(run: Run) -> Iterator[Result]:
    """A result for each promise that worlds prove; what they broke, with the line that repeats it."""
    first, count = run.seed % SEEDS_APART, run.count(SEEDS_BY_SCALE)
    results: list[WorldResult] = []
    said_at = time.monotonic()
    with ProcessPoolExecutor(run.processes) as pool:
        for task in as_completed([pool.submit(run_seed, seed) for seed in range(first, first + count)]):
            results.append(task.result())
            if time.monotonic() - said_at > PROGRESS_EVERY_S:
                said_at = time.monotonic()
                run.say(f"{len(results)} of {count} worlds done")
    for promise, scenarios in BY_PROMISE.items():
        runs = [found for found in results if found.scenario in scenarios]
        if runs:
            yield _result(promise, runs, first)


def _result(promise: str, runs: Sequence[WorldResult], first: int) -> Result:
    broken = [found.report() for found in runs if found.violations]
    messages = sum(found.accepted for found in runs)
    hours = sum(found.simulated_s for found in runs) / 3_600
    scenarios = Counter(found.scenario for found in runs)
    figure = f"{len(runs):,} worlds, {hours:,.1f} simulated hours, {messages:,} messages, {len(broken)} with a violation"
    return result(
        promise,
        f"tests/simulation: {', '.join(sorted(scenarios))}",
        figure,
        faults=broken,
        seed=first,
        scenarios=dict(scenarios),
        converged_s_max=round(max(found.converged_s for found in runs), 1),
    )


def kill_again(
    run: Run, cycles: int, loop: Callable[[Path, int, int], int], what: str
) -> tuple[int, list[str]]:
    """Twenty kills on one folder, then the next one. What the loops counted, and what they found broken."""
    counted = done = 0
    broken: list[str] = []
    while done < cycles:
        turn = min(KILLS_ON_ONE_FOLDER, cycles - done)
        with tempfile.TemporaryDirectory(prefix="stagepost-") as folder:
            try:
                counted += loop(Path(folder), run.seed + done, turn)
            except AssertionError as error:
                broken.append(f"kill -9 of {what}, seed {run.seed + done}: {error}")
        done += turn
        run.say(f"{done} of {cycles} kills of {what} done")
    return counted, broken


def kill(run: Run) -> Iterator[Result]:
    """D1: what was accepted is on disk, however the process ended."""
    cycles = run.count(KILLS_BY_SCALE)
    accepted, broken = kill_again(run, cycles, kill_loop, "the intake")
    figure = f"{cycles:,} kills, {accepted:,} messages accepted, {len(broken)} runs with a loss"
    yield result(
        "D1", "tests/e2e/test_kill_intake.py: kill -9 under load", figure, faults=broken, seed=run.seed
    )
