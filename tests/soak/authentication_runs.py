"""S2, S3, S4 and S6 by random lives of a node's way in; S8 to S10 by its keys."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from rigs.results import Result, result, result_of
from tests.hostile.canaries import searching
from tests.hostile.key_evolution import LAST_PERIOD, evolving
from tests.hostile.key_permissions import permissions
from tests.simulation.intake_model import Findings, run_life
from tests.soak.runs import Run

LIVES_BY_SCALE = {"commit": 250, "release": 5_000}
PERIODS_BY_SCALE = {"commit": (0, 1, 31, 32, LAST_PERIOD - 2), "release": tuple(range(LAST_PERIOD - 1))}
SEEDS_APART = 2**31


def ways_in(run: Run) -> Iterator[Result]:
    first, count = run.seed % SEEDS_APART, run.count(LIVES_BY_SCALE)
    found = Findings()
    with ProcessPoolExecutor(run.processes) as pool:
        for task in as_completed([pool.submit(run_life, seed) for seed in range(first, first + count)]):
            found.add(task.result())
    test = "tests/simulation/intake_model.py"
    lives = f"in {count:,} random lives with {found.restarts:,} restarts"
    texts = {
        "S2": f"{found.rejected:,} messages refused {lives}, state compared before and after each",
        "S3": f"{found.replayed:,} replays at random times {lives}, 0 may be accepted",
        "S4": f"virtual: {found.steps_back:,} clocks set back, {found.replayed:,} replays, 0 may be accepted",
        "S6": f"{found.counters:,} judgements by a certificate's number {lives}",
    }
    for promise, text in texts.items():
        broken = "S3" if promise == "S4" else promise
        faults = [violation for violation in found.violations if violation.startswith((broken, "S1"))]
        yield result(promise, test, f"{text}; {len(faults)} violations", faults=faults, seed=first)


def keys(run: Run) -> Iterator[Result]:
    run.say("kill -9 at each step of evolution")
    figure, faults = evolving(PERIODS_BY_SCALE[run.scale])
    yield result_of(figure, "tests/hostile/key_evolution.py", faults)
    run.say("the matrix of permissions")
    figure, faults = permissions()
    yield result_of(figure, "tests/hostile/key_permissions.py", faults)
    run.say("canary keys")
    figure, faults = searching()
    yield result_of(figure, "tests/hostile/canaries.py", faults)
