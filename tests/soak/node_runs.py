"""Long runs of the node itself: simulated worlds from many seeds, and kill -9 again and again."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.e2e.test_kill_intake import kill_loop
from tests.simulation.dmq_scenarios import Result, run_seed

SEEDS_BY_SCALE = {"commit": 300, "release": 10_000}
KILLS_BY_SCALE = {"commit": 100, "release": 1_000}
KILLS_ON_ONE_FOLDER = 20
PROGRESS_EVERY_S = 10

Figure = dict[str, object]


def simulate(
    first: int, count: int, processes: int, say: Callable[[str], None]
) -> Iterator[tuple[Figure, list[str]]]:
    """One figure for each scenario; what it broke, with the line that repeats it."""
    results: list[Result] = []
    said_at = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        for task in as_completed([pool.submit(run_seed, seed) for seed in range(first, first + count)]):
            results.append(task.result())
            if time.monotonic() - said_at > PROGRESS_EVERY_S:
                said_at = time.monotonic()
                say(f"{len(results)} of {count} worlds done")
    seeds = Counter(result.scenario for result in results)
    for scenario in sorted(seeds):
        runs = [result for result in results if result.scenario == scenario]
        broken = [result for result in runs if result.violations]
        figure: Figure = {
            "promise": "DMQ world",
            "target": scenario,
            "inputs": len(runs),
            "failures": len(broken),
            "seed": first,
            "seconds": round(sum(result.real_s for result in runs), 1),
            "messages": sum(result.accepted for result in runs),
            "simulated_s": round(sum(result.simulated_s for result in runs)),
            "converged_s_max": round(max(result.converged_s for result in runs), 1),
        }
        yield figure, [result.report() for result in broken]


def kill(seed: int, cycles: int, say: Callable[[str], None]) -> tuple[Figure, list[str]]:
    """D1: what was accepted is on disk, however the process ended."""
    began = time.monotonic()
    accepted = 0
    broken: list[str] = []
    done = 0
    while done < cycles:
        turn = min(KILLS_ON_ONE_FOLDER, cycles - done)
        with tempfile.TemporaryDirectory(prefix="stagepost-") as folder:
            try:
                accepted += kill_loop(Path(folder), seed + done, turn)
            except AssertionError as error:
                broken.append(f"kill -9, seed {seed + done}: {error}")
        done += turn
        say(f"{done} of {cycles} kills done")
    figure: Figure = {
        "promise": "D1",
        "target": "kill -9 of the intake",
        "inputs": cycles,
        "failures": len(broken),
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "messages": accepted,
    }
    return figure, broken
