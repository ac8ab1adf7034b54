"""Stories of ends, many times: processes that are killed at random moments, public commands, proofs by two verifiers."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from random import Random

from rigs.results import Result, result
from stagepost.ground.loop.virtual_time import VirtualTimeStuck
from tests.soak.runs import Run
from tests.worlds.chain.proof_forger import Forger, both_say, grounds
from tests.worlds.devnet.end_stories import STORIES, play
from tests.worlds.remp.primes_runs import PrimesOutcome, PrimesPlan, ends_plan, run_primes, storm_plan

RUNS_BY_SCALE = {"commit": 10, "release": 100}
PRIMES_BY_SCALE = {"commit": 200, "release": 1_000}
FORGERIES_BY_SCALE = {"commit": 50_000, "release": 1_000_000}
FORGERIES_AT_ONCE = 1_000
SEEDS_APART = 1_000_000
WHERE = "tests/e2e/test_end_stories.py"
WHERE_PRIMES = "tests/simulation/test_primes_ends.py"
WHERE_FORGED = "tests/unit/chain/proofs/test_verifiers_agree.py"


def play_primes(plan_of: Callable[[int], PrimesPlan], seed: int) -> PrimesOutcome | str:
    """Return the outcome of a network, or what did not hold, with the seed in it."""
    logging.disable(logging.CRITICAL)
    try:
        return run_primes(seed, plan_of(seed))
    except (AssertionError, VirtualTimeStuck) as failed:
        return f"seed {seed}: {failed}"


def ends_of_primes(run: Run) -> Iterator[Result]:
    """Networks with every attacker: subsets, switches, splits, merges, crashes, expiries, false proofs, held sessions."""
    return _networks(run, "primes-ends", ends_plan)


def storms_of_primes(run: Run) -> Iterator[Result]:
    """The same networks with sessions of four seconds, and power cuts of many validators around their switches."""
    return _networks(run, "primes-storms", storm_plan)


def _networks(run: Run, part: str, plan_of: Callable[[int], PrimesPlan]) -> Iterator[Result]:
    first, tries = run.seed % SEEDS_APART, run.tries(PRIMES_BY_SCALE)
    played: list[PrimesOutcome | str] = []
    with ProcessPoolExecutor(run.processes) as pool:
        for outcome in pool.map(partial(play_primes, plan_of), (first + number for number in tries)):
            played.append(outcome)
            if isinstance(outcome, str) or len(played) % 10 == 0:
                run.say(
                    f"{len(played)} of {len(tries)} networks done"
                    + (f"; {outcome}" if isinstance(outcome, str) else "")
                )
    whole = [one for one in played if isinstance(one, PrimesOutcome)]
    shares = run.rows_of_all_shares(
        part,
        {
            "faults": [one for one in played if isinstance(one, str)],
            "proved": sum((one.proved for one in whole), Counter[str]()),
            "lies": sum(sum(one.false_proofs.values()) for one in whole),
            "shown": sum(one.shown for one in whole),
            "crashes": sum(one.crashes for one in whole),
        },
    )
    if not shares:
        return
    faults = [fault for share in shares for fault in share["faults"]]
    proved = sum((Counter[str](share["proved"]) for share in shares), Counter[str]())
    crashes = sum(share["crashes"] for share in shares)
    figure = (
        f"{run.count(PRIMES_BY_SCALE)} networks from seed {first}, {crashes:,} crashes, ends proved: {dict(sorted(proved.items()))}, "
        f"{sum(share['lies'] for share in shares):,} false proofs refused, "
        f"{sum(share['shown'] for share in shares):,} blocks of held sessions shown; {len(faults)} broken"
    )
    yield result("B10", WHERE_PRIMES, figure, faults=faults, seed=run.seed)


def forge(first: int) -> tuple[int, list[str]]:
    """Return how many of the forgeries from seed `first` on are believed, and those of which the verifiers differ."""
    known, believed, faults = grounds(), 0, list[str]()
    for seed in range(first, first + FORGERIES_AT_ONCE):
        random = Random(f"forger {seed}")
        said = both_say(Forger(random, random.choice(known)).forgery())
        believed += said.first is not None
        if said.first != said.second:
            faults.append(f"forger {seed}: {said}")
    return believed, faults


def forged_proofs(run: Run) -> Iterator[Result]:
    """Forgeries of proofs, checkpoints and geneses, of which both verifiers must say the same."""
    first, count = run.seed % SEEDS_APART, run.count(FORGERIES_BY_SCALE)
    believed, faults = 0, list[str]()
    with ProcessPoolExecutor(run.processes) as pool:
        for of_part, faults_of_part in pool.map(forge, range(first, first + count, FORGERIES_AT_ONCE)):
            believed += of_part
            faults += faults_of_part
            run.say(f"{believed:,} of {count:,} forgeries believed by both, {len(faults)} by one alone")
    figure = f"{count:,} forgeries from seed {first}, {believed:,} believed by both verifiers; {len(faults)} by one alone"
    yield result("B10", WHERE_FORGED, figure, faults=faults, seed=run.seed)


def play_story(name: str, seed: int) -> list[str]:
    """Return the faults of one story in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="stagepost-") as folder:
        return play(name, seed, Path(folder))


def ends(run: Run) -> Iterator[Result]:
    """Each story so many times, each time with another seed. Stories mostly wait, so several are played at once."""
    first, tries = run.seed % SEEDS_APART, run.tries(RUNS_BY_SCALE)
    broken: list[str] = []
    with ProcessPoolExecutor(run.processes) as pool:
        stories = [pool.submit(play_story, name, first + number) for number in tries for name in STORIES]
        for number, task in enumerate(as_completed(stories), start=1):
            broken += task.result()
            run.say(f"{number} of {len(stories)} stories done, {len(broken)} broken")
    shares = run.rows_of_all_shares("ends", {"faults": broken})
    if not shares:
        return
    faults = [fault for share in shares for fault in share["faults"]]
    figure = f"{len(STORIES)} stories, {run.count(RUNS_BY_SCALE)} times each from seed {first}, {len(faults)} broken"
    yield result("B10", WHERE, figure, faults=faults, seed=run.seed)
