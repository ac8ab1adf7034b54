"""Long runs of validators that agree on a chain: many seeds, checked for progress after faults and for the report of a
missing quorum."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from rigs.results import Result, result
from stagepost.ground.loop.virtual_time import VirtualTimeStuck
from tests.soak.runs import Run
from tests.worlds.chain.agreement_runs import run_once, run_without_quorum
from tests.worlds.chain.chain_overlay_runs import run_once as run_on_links

CHAIN_SEEDS_BY_SCALE = {"commit": 300, "release": 10_000}
WITHOUT_QUORUM_EVERY = 20
ON_LINKS_EVERY = 3
SEEDS_APART = 1_000_000
PROMISES = ("B8", "B9")
WHERE = "tests/simulation/test_chain_agreement.py"


def play_chain(seed: int) -> str | None:
    """What did not hold, with the seed in it."""
    logging.disable(logging.CRITICAL)
    try:
        run_once(seed)
    except AssertionError as failed:
        return str(failed)
    return None


def play_without_quorum(seed: int) -> str | None:
    logging.disable(logging.CRITICAL)
    try:
        run_without_quorum(seed)
    except AssertionError as failed:
        return str(failed)
    return None


def play_chain_on_links(seed: int) -> str | None:
    """The whole shell, with shards that split and merge: progress and one chain, too."""
    logging.disable(logging.CRITICAL)
    try:
        run_on_links(seed)
    except (AssertionError, VirtualTimeStuck) as failed:
        return str(failed)
    return None


def chain(run: Run) -> Iterator[Result]:
    """Each run checks safety as well: one that finds two final blocks, a bad certificate or an honest validator in
    evidence has broken the promise of progress, too."""
    first, count = run.seed % SEEDS_APART, run.count(CHAIN_SEEDS_BY_SCALE)
    few = max(1, count // WITHOUT_QUORUM_EVERY)
    on_links = max(1, count // ON_LINKS_EVERY)
    faults: dict[str, list[str]] = {promise: [] for promise in PROMISES}
    with ProcessPoolExecutor(run.processes) as pool:
        tasks = {pool.submit(play_chain, first + number): "B8" for number in range(count)}
        tasks |= {pool.submit(play_chain_on_links, first + number): "B8" for number in range(on_links)}
        tasks |= {pool.submit(play_without_quorum, first + number): "B9" for number in range(few)}
        for number, task in enumerate(as_completed(tasks)):
            fault = task.result()
            if fault is not None:
                faults[tasks[task]].append(fault)
            if number % 100 == 99:
                run.say(f"{number + 1} of {len(tasks)} runs of a chain's validators done")
    runs = {
        "B8": f"{count:,} runs of 4 to 13 validators and {on_links:,} on links",
        "B9": f"{few:,} runs with a third gone",
    }
    for promise in PROMISES:
        broken = faults[promise]
        figure = f"{runs[promise]} from seed {first}, {len(broken)} broken"
        yield result(promise, WHERE, figure, faults=broken, seed=run.seed)
