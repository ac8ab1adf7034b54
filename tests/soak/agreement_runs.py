"""Long runs of validators under attack: many seeds, checked for the promises about agreement that the queue keeps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from rigs.results import Result, result
from tests.soak.runs import Run
from tests.worlds.catchain.catchain_runs import run_once

AGREEMENT_SEEDS_BY_SCALE = {"commit": 300, "release": 10_000}
LARGE_EVERY = 50
"""So often a run has 21 members; the others have 4, 7 or 13."""

SEEDS_APART = 1_000_000
PROMISES = ("B1", "B2", "B4", "B6", "B8")
WHERE = "tests/worlds/catchain/catchain_runs.py"


def play_agreement(seed: int, size: int | None) -> str | None:
    """What did not hold, with the seed in it."""
    logging.disable(logging.CRITICAL)
    try:
        run_once(seed, size=size)
    except AssertionError as failed:
        return str(failed)
    return None


def agree(run: Run) -> Iterator[Result]:
    """Each run checks all of them at once, so one that fails has broken every one of these promises."""
    first, count = run.seed % SEEDS_APART, run.count(AGREEMENT_SEEDS_BY_SCALE)
    plans = [
        (first + number, 21 if number % LARGE_EVERY == LARGE_EVERY - 1 else None) for number in range(count)
    ]
    faults: list[str] = []
    with ProcessPoolExecutor(run.processes) as pool:
        for number, task in enumerate(as_completed([pool.submit(play_agreement, *plan) for plan in plans])):
            fault = task.result()
            if fault is not None:
                faults.append(fault)
            if number % 100 == 99:
                run.say(f"{number + 1} of {count} runs of validators done")
    figure = f"{count:,} runs of 4 to 21 validators from seed {first}, {len(faults)} broken"
    for promise in PROMISES:
        yield result(promise, WHERE, figure, faults=faults, seed=run.seed)
