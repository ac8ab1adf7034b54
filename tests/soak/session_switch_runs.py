"""Long runs over many sessions, their receipts, and quorums that get lost: the promises that outlive one session."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from rigs.results import Result, result
from tests.soak.runs import Run
from tests.worlds.catchain.quorum_runs import run_quiet, run_quorum
from tests.worlds.remp.receipt_runs import check_receipts
from tests.worlds.remp.session_runs import run_sessions

SWITCHES_BY_SCALE = {"commit": 100, "release": 2_000}
QUORUMS_BY_SCALE = {"commit": 40, "release": 400}
QUIET_EVERY = 5
ROUNDS = 5
SEEDS_APART = 1_000_000
SESSION_PROMISES = ("B3", "B5", "B7", "B8")


@dataclass
class Played:
    """`receipts` are counts by outcome; `fault` says what did not hold, with the seed in it."""

    switches: int = 0
    messages: int = 0
    blocks: int = 0
    settled_after_s: float = 0.0
    receipts: Counter[str] = field(default_factory=Counter)
    fault: str | None = None
    receipt_fault: str | None = None


def play_sessions(seed: int) -> Played:
    logging.disable(logging.CRITICAL)
    try:
        run = run_sessions(seed, ROUNDS)
    except AssertionError as failed:
        return Played(fault=str(failed), receipt_fault=str(failed))
    played = Played(
        run.switches,
        len(run.truth.messages),
        len(run.world.chain.final),
        max(run.settled_after_s),
    )
    try:
        played.receipts = check_receipts(run, seed)
    except AssertionError as failed:
        played.receipt_fault = f"seed {seed}: {failed}"
    return played


def switch_sessions(run: Run) -> Iterator[Result]:
    """As many runs as it takes to come by so many switches."""
    first, wanted = run.seed % SEEDS_APART, run.count(SWITCHES_BY_SCALE)
    played: list[Played] = []
    with ProcessPoolExecutor(run.processes) as pool:
        while sum(one.switches for one in played) < wanted and len(played) < wanted:
            batch = range(first + len(played), first + len(played) + 2 * run.processes)
            played += pool.map(play_sessions, batch)
            run.say(f"{sum(one.switches for one in played)} of {wanted} switches done")
    faults = [one.fault for one in played if one.fault is not None]
    switches = sum(one.switches for one in played)
    of_runs = f"{len(played)} runs with {switches:,} switches"
    messages, blocks = sum(one.messages for one in played), sum(one.blocks for one in played)
    figure = f"{of_runs} and {messages:,} messages from seed {first}, {len(faults)} broken"
    where = "tests/worlds/remp/session_runs.py"
    yield result("B3", where, f"{figure}, {blocks:,} blocks checked", faults=faults, seed=run.seed)
    yield result("B5", where, figure, faults=faults, seed=run.seed)
    longest = max(one.settled_after_s for one in played)
    yield result(
        "B8",
        where,
        f"{len(played) * ROUNDS} rounds of faults, settled after {longest:.0f} simulated s at the most, "
        f"{len(faults)} broken",
        faults=faults,
        seed=run.seed,
    )
    receipts = sum((one.receipts for one in played), Counter[str]())
    receipt_faults = [one.receipt_fault for one in played if one.receipt_fault is not None]
    lies = sum(number for name, number in receipts.items() if name.startswith("RECEIPT_"))
    yield result(
        "B7",
        "tests/worlds/remp/receipt_runs.py",
        f"{receipts['counted']:,} receipts of honest validators counted, {lies:,} forged, altered or foreign ones refused "
        f"by name, {receipts['illegal steps']:,} illegal steps noticed, {len(receipt_faults)} runs broken",
        faults=receipt_faults,
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
