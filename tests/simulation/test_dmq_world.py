"""Many nodes survive loss, delay, partitions, crashes and liars: fresh seeds each time, and every seed that ever failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.dmq_scenarios import SCENARIOS, run_seed, scenario_of

FRESH_SEEDS = 40
SEEDS_PER_RUN = 1_000
ROOT = Path(__file__).parents[2]


def regression_seeds() -> list[tuple[str, int]]:
    """Lines of `scenario seed`; what follows a # says which fault it once showed."""
    lines = Path(__file__).with_name("regression_seeds.txt").read_text(encoding="utf-8").splitlines()
    entries = [line.partition("#")[0].split() for line in lines]
    return [(scenario, int(seed)) for scenario, seed in filter(None, entries)]


@pytest.mark.parametrize("number", range(FRESH_SEEDS))
def test_a_fresh_seed_breaks_no_rule(run_seed_base: int, number: int) -> None:
    result = run_seed(run_seed_base + number)

    assert not result.violations, result.report()


@pytest.mark.parametrize(("scenario", "seed"), regression_seeds())
def test_a_seed_that_once_failed_breaks_no_rule(scenario: str, seed: int) -> None:
    result = run_seed(seed, scenario)

    assert not result.violations, result.report()


def test_the_same_seed_is_the_same_run_whatever_python_hashes() -> None:
    """In processes of their own, with other hash seeds: order must not come from sets or addresses."""
    first, *others = (_traces_in_a_process(7, hash_seed) for hash_seed in ("0", "1", "4242"))

    assert first.keys() == SCENARIOS.keys()
    assert all(first.values())
    assert [name for name, trace in first.items() if any(other[name] != trace for other in others)] == []


def test_seeds_take_turns_at_the_scenarios() -> None:
    assert {scenario_of(seed) for seed in range(FRESH_SEEDS)} == set(SCENARIOS)


@pytest.fixture
def run_seed_base(pytestconfig: pytest.Config) -> int:
    """Seeds of one run follow one another; those of two runs are far apart."""
    return int(pytestconfig.option.hypothesis_seed) * SEEDS_PER_RUN


def _traces_in_a_process(seed: int, hash_seed: str) -> dict[str, str]:
    """Run `seed` in every scenario, in one process; return the trace of each."""
    code = (
        "import json; from tests.simulation.dmq_scenarios import SCENARIOS, run_seed; "
        f"print(json.dumps({{name: run_seed({seed}, name).trace for name in SCENARIOS}}))"
    )
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    traces: dict[str, str] = json.loads(done.stdout)
    return traces
