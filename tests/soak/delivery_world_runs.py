"""Long runs of simulated publishers and receivers: many seeds of every scenario, checked for D5 to D8."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from rigs.results import Result, result
from tests.simulation.delivery_worlds import SCENARIOS, faults_found, run_delivery, told
from tests.soak.runs import Run

DELIVERY_SEEDS_BY_SCALE = {"commit": 200, "release": 1_000}
SEEDS_APART = 1_000_000
"""Worlds are numbered by small seeds, which are easier to type again."""

PROVES = {
    "D5": {
        "statuses_follow_the_graph",
        "whatever_was_returned_comes_to_a_reported_end",
        "every_waiting_call_ends_once",
        "acked_means_processed_by_enough_critical_peers",
        "nothing_broke",
    },
    "D6": {"nothing_is_dropped_silently"},
    "D7": {
        "effects_happen_once",
        "only_what_was_published_arrives_and_unchanged",
        "everything_arrives_where_nothing_is_lost",
    },
    "D8": {"order_is_kept"},
}


def play_delivery(name: str, seed: int) -> dict[str, str]:
    """What was broken in one world, by checker."""
    logging.disable(logging.CRITICAL)
    scenario = SCENARIOS[name]
    history = run_delivery(scenario, seed)
    found = faults_found(scenario, history)
    return {rule: told(scenario, seed, {rule: faults}, history) for rule, faults in found.items()}


def simulate_delivery(run: Run) -> Iterator[Result]:
    first, count = run.seed % SEEDS_APART, run.count(DELIVERY_SEEDS_BY_SCALE)
    worlds = [(name, seed) for seed in range(first, first + count) for name in SCENARIOS]
    broken: list[dict[str, str]] = []
    with ProcessPoolExecutor(run.processes) as pool:
        for number, task in enumerate(as_completed([pool.submit(play_delivery, *world) for world in worlds])):
            broken.append(task.result())
            if number % 500 == 499:
                run.say(f"{number + 1} of {len(worlds)} delivery worlds done")
    for promise, rules in PROVES.items():
        faults = [text for found in broken for rule, text in found.items() if rule in rules]
        figure = f"{len(worlds):,} worlds from seed {first}, {len(faults)} broken"
        yield result(promise, "tests/simulation/delivery_worlds.py", figure, faults=faults, seed=run.seed)
