"""Long runs over many sessions, their receipts, and quorums that get lost: the promises that outlive one session."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec

from rigs.results import Result, result
from stagepost.ground.loop.virtual_time import VirtualTimeStuck
from tests.soak.runs import Run
from tests.worlds.catchain.quorum_runs import run_quiet, run_quorum
from tests.worlds.remp.primes_runs import PrimesOutcome, has_guards, run_primes, session_plan

SWITCHES_BY_SCALE = {"commit": 100, "release": 2_000}
QUORUMS_BY_SCALE = {"commit": 40, "release": 400}
QUIET_EVERY = 5
SEEDS_APART = 1_000_000
SESSION_PROMISES = ("B3", "B5", "B7", "B8")
WHERE = "tests/simulation/test_primes_sessions.py"


def play_sessions(seed: int) -> PrimesOutcome | str:
    """Return the outcome of a network, or what did not hold, with the seed in it."""
    logging.disable(logging.CRITICAL)
    try:
        return run_primes(seed, msgspec.structs.replace(session_plan(seed), chain_guards=has_guards(seed)))
    except (AssertionError, VirtualTimeStuck) as failed:
        return f"seed {seed}: {failed}"


def switch_sessions(run: Run) -> Iterator[Result]:
    """As many networks as it takes to come by so many switches, most of them with a dishonest validator."""
    first, wanted = run.seed % SEEDS_APART, run.count(SWITCHES_BY_SCALE)
    played: list[PrimesOutcome] = []
    faults: list[str] = []
    switches = 0
    with ProcessPoolExecutor(run.processes) as pool:
        while switches < wanted and len(played) + len(faults) < wanted:
            start = first + len(played) + len(faults)
            for outcome in pool.map(play_sessions, range(start, start + 2 * run.processes)):
                if isinstance(outcome, str):
                    faults.append(outcome)
                else:
                    played.append(outcome)
                    switches += outcome.switches
            run.say(f"{switches} of {wanted} switches done")
    final = sum(one.final for one in played)
    count = len(played) + len(faults)
    figure = (
        f"{count} networks with {switches:,} switches and {final:,} messages final once from seed {first}, "
        f"{len(faults)} broken"
    )
    yield result("B3", WHERE, figure, faults=faults, seed=run.seed)
    yield result("B5", WHERE, figure, faults=faults, seed=run.seed)
    longest = max((one.settled_after_s for one in played), default=0.0)
    settled = f"{count} networks, settled after {longest:.0f} simulated s at the most, {len(faults)} broken"
    yield result("B8", WHERE, settled, faults=faults, seed=run.seed)
    receipts = sum((one.receipts for one in played), Counter[str]())
    lies = sum(number for name, number in receipts.items() if name.startswith("RECEIPT_"))
    yield result(
        "B7",
        "tests/worlds/remp/receipt_runs.py",
        f"{receipts['counted']:,} receipts of honest validators counted, {lies:,} forged, altered or foreign ones refused "
        f"by name, {receipts['illegal steps']:,} illegal steps noticed, {len(faults)} runs broken",
        faults=faults,
        seed=run.seed,
    )


def play_quorum(seed: int) -> tuple[float, str | None]:
    logging.disable(logging.CRITICAL)
    try:
        if seed % QUIET_EVERY == 0:
            run_quiet(seed)
            return 0.0, None
        return run_quorum(seed), None
    except AssertionError as failed:
        return 0.0, str(failed)


def lose_quorums(run: Run) -> Iterator[Result]:
    first, count = run.seed % SEEDS_APART, run.count(QUORUMS_BY_SCALE)
    with ProcessPoolExecutor(run.processes) as pool:
        told = list(pool.map(play_quorum, range(first, first + count)))
    faults = [fault for _, fault in told if fault is not None]
    longest = max(told_after_s for told_after_s, _ in told)
    figure = (
        f"{count} runs from seed {first}, told after {longest:.0f} simulated s at the most, one in {QUIET_EVERY} with "
        f"nothing to tell; {len(faults)} broken"
    )
    yield result("B9", "tests/worlds/catchain/quorum_runs.py", figure, faults=faults, seed=run.seed)
