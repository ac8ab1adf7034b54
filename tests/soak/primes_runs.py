"""Long runs of primes: whole networks of REMP in virtual time, and of processes that are killed."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

from rigs.results import Result, result
from stagepost.ground.loop.virtual_time import VirtualTimeStuck
from tests.soak.runs import Run
from tests.worlds.devnet.devnet_runs import devnet
from tests.worlds.remp.primes_runs import PrimesOutcome, PrimesPlan, run_primes
from tests.worlds.remp.primes_world import FAULTS

SEEDS_BY_SCALE = {"commit": 100, "release": 2_000}
KILLED_BY_SCALE = {"commit": 20, "release": 200}
SEEDS_APART = 1_000_000
PLAN = PrimesPlan(accounts=20, messages=50, validators=7, full_nodes=3, crashes=4)
PROMISES = ("B3", "B5")
WHERE = "tests/simulation/test_primes.py"
WHERE_KILLED = "tests/e2e/test_devnet_killed.py"


def plan_of(seed: int) -> PrimesPlan:
    """Everybody is honest, or one of seven is not, each time in another way; crashes make a second one."""
    return msgspec.structs.replace(PLAN, fault=(None, *FAULTS)[seed % (len(FAULTS) + 1)])


def play_primes(seed: int) -> PrimesOutcome | str:
    """What did not hold, with the seed in it."""
    logging.disable(logging.CRITICAL)
    try:
        return run_primes(seed, plan_of(seed))
    except (AssertionError, VirtualTimeStuck) as failed:
        return f"seed {seed}: {failed}"


def play_killed(seed: int) -> str | None:
    with tempfile.TemporaryDirectory(prefix="stagepost-") as folder:
        options = ("--validators", "4", "--shards", "2", "--seed", str(seed), "--rate", "20", "--faults")
        done = devnet(Path(folder) / "data", *options, "--messages", "200")
    return None if done.returncode == 0 else f"seed {seed}: {done.stdout}{done.stderr}"


def primes(run: Run) -> Iterator[Result]:
    """Every run checks all sums, all blocks and all receipts."""
    first, count = run.seed % SEEDS_APART, run.count(SEEDS_BY_SCALE)
    faults: list[str] = []
    final = switches = replays = 0
    with ProcessPoolExecutor(run.processes) as pool:
        for number, task in enumerate(
            as_completed(pool.submit(play_primes, first + one) for one in range(count))
        ):
            outcome = task.result()
            if isinstance(outcome, str):
                faults.append(outcome)
            else:
                final, switches = final + outcome.final, switches + outcome.switches
                replays += outcome.replays
            run.say(f"{number + 1} of {count} runs of primes done")
    figure = (
        f"{count} networks from seed {first}, {final:,} messages final once, {switches:,} switches, {replays:,} candidates "
        f"with a replay declined; {len(faults)} broken"
    )
    for promise in PROMISES:
        yield result(promise, WHERE, figure, faults=faults, seed=run.seed)


def primes_of_processes(run: Run) -> Iterator[Result]:
    """The same sums, by processes whose members and full node are killed."""
    first, count = run.seed % SEEDS_APART, run.count(KILLED_BY_SCALE)
    faults: list[str] = []
    for number in range(count):
        fault = play_killed(first + number)
        if fault is not None:
            faults.append(fault)
        run.say(f"{number + 1} of {count} runs of processes done")
    figure = f"{count} networks of processes with members and full node killed; {len(faults)} broken"
    yield result("B3", WHERE_KILLED, figure, faults=faults, seed=run.seed)
