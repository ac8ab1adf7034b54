"""S4 and S5: clocks that are set and clocks that differ, on real nodes where libfaketime can be had, and in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

from rigs.results import Result, result, result_of
from tests.hostile.clock_steps import SKEWS_S, STEPS_BACK_S, day_ahead, skewed, stepping
from tests.hostile.disk_shim import NotToBeHad
from tests.simulation import skews
from tests.soak.runs import Run

REPLAYS = 250
SEEDS = 20


def clocks(run: Run) -> Iterator[Result]:
    yield from _simulated_skews(run)
    try:
        for back_s in STEPS_BACK_S:
            for waits_for_sweep in (False, True):
                run.say(f"a live step of -{back_s} s")
                figure, faults = stepping(back_s, run.inputs or REPLAYS, waits_for_sweep=waits_for_sweep)
                how = "by a running node" if waits_for_sweep else "across a restart"
                yield result_of(figure, f"tests/hostile/clock_steps.py: set back {back_s:,} s {how}", faults)
        run.say("a live clock a day ahead, and back")
        figure, faults = day_ahead(run.inputs or REPLAYS)
        yield result_of(figure, "tests/hostile/clock_steps.py: a day ahead, and back", faults)
        for skew_s in SKEWS_S:
            run.say(f"a live skew of {skew_s} s")
            figure, faults = skewed(skew_s)
            yield result_of(figure, "tests/hostile/clock_steps.py: live skew", faults)
    except NotToBeHad as reason:
        for promise in ("S4", "S5"):
            yield result(promise, "tests/hostile/clock_steps.py", f"live: not run, {reason}")


def _simulated_skews(run: Run) -> Iterator[Result]:
    sent = 0
    faults: list[str] = []
    for skew_s in skews.SKEWS_S:
        for seed in range(run.seed, run.seed + SEEDS):
            found = skews.run_skew(skew_s, seed)
            sent += found.sent
            faults += [f"skew {skew_s} s, seed {seed}: {text}" for text in found.violations]
    figure = f"{sent:,} honest messages at {len(skews.SKEWS_S)} skews, {len(faults)} wrong rejections"
    yield result("S5", "tests/simulation/skews.py", figure, faults=faults, seed=run.seed)
