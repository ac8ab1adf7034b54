"""Long runs of validators under attack: many seeds, checked for the promises about agreement that the queue keeps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from rigs.results import Result, result
from tests.soak.runs import Run
from tests.worlds.catchain.catchain_runs import run_once
from tests.worlds.chain.agreement_pace import ALL_WITHIN_S, MOST_WITHIN_S, SIZES, longest_silence

AGREEMENT_SEEDS_BY_SCALE = {"commit": 1_000, "release": 10_000}
LARGE_EVERY = 50
"""So often a run has 21 members; the others have 4, 7 or 13."""

PACE_SEEDS_BY_SCALE = {"commit": 5, "release": 100}
PACE_LATE_SHARE_MAX = 0.01
"""Part of the runs that may need longer than `MOST_WITHIN_S`."""
PACE_WHERE = "tests/simulation/test_agreement_pace.py"

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


def measure_silence(seed: int, size: int, is_down: bool) -> tuple[str, float]:
    """Return the run's name, and the seconds that an honest validator waited for a final block at most."""
    name = f"seed {seed}, {size} validators, f {'down' if is_down else 'withholding'}"
    return name, longest_silence(seed, size, is_down=is_down, until=80.0).seconds


def keep_pace(run: Run) -> Iterator[Result]:
    """Play runs with f validators down, or withholding FINALISE votes, and messages that take up to 0.9 s."""
    first, count = run.seed % SEEDS_APART, run.count(PACE_SEEDS_BY_SCALE)
    plans = [
        (first + number, size, is_down)
        for number in range(count)
        for size in SIZES
        for is_down in (True, False)
    ]
    with ProcessPoolExecutor(run.processes) as pool:
        found = [task.result() for task in [pool.submit(measure_silence, *plan) for plan in plans]]
    late = [
        f"{name}: {seconds:.1f} s without a final block" for name, seconds in found if seconds > MOST_WITHIN_S
    ]
    faults = [] if len(late) <= PACE_LATE_SHARE_MAX * len(found) else late
    faults += [f"{name}: {seconds:.1f} s" for name, seconds in found if seconds > ALL_WITHIN_S]
    longest_s = max(seconds for _, seconds in found)
    figure = (
        f"{len(found):,} runs of 4 to 21 validators with f down or withholding from seed {first}, at most "
    )
    figure += f"{longest_s:.1f} s without a final block, {len(late)} above {MOST_WITHIN_S:g} s"
    yield result("B8", PACE_WHERE, figure, faults=faults, seed=run.seed)
