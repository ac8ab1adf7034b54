"""Reliable delivery under loss, delay, repetition, partitions, crashes and full disks: seeds in virtual time."""

from __future__ import annotations

import pytest

from tests.simulation.delivery_worlds import SCENARIOS, faults_found, run_delivery, told

SEEDS = 9


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", SCENARIOS)
def test_promises_hold_in_every_run(name: str, seed: int) -> None:
    scenario = SCENARIOS[name]
    history = run_delivery(scenario, seed)

    assert len(history.calls) + len(history.killed) >= scenario.calls / 2
    found = faults_found(scenario, history)
    assert not found, told(scenario, seed, dict(found), history)


def test_same_seed_gives_the_same_run() -> None:
    one, other = (run_delivery(SCENARIOS["crashes"], 3) for _ in range(2))

    assert one == other
    assert one != run_delivery(SCENARIOS["crashes"], 4)
