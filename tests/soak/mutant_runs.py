"""O6 by mutants of the promises: each is planted, and the promise's own tests must fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rigs.promise_mutants import MUTANTS, Mutant
from rigs.results import ROOT, Result, result
from tests.hostile.planted import planted
from tests.soak.runs import Run

WITHIN_S = 1_800
SEEDS_APART = 1_000_000
FAILED = re.compile(r"(\d+) failed")
WHERE = "rigs/promise_mutants.py: each mutant against its promise's own tests"


def survival(mutant: Mutant, seed: int) -> str | None:
    """Return what the tests of the promise said if one of them did not notice the mutant, or fails without it."""
    for test in mutant.tests:
        sound = _run(test, seed, os.environ)
        if sound.returncode != 0:
            return f"{test} fails without the mutant\n{sound.stdout[-2_000:]}"
        with tempfile.TemporaryDirectory(prefix="stagepost-") as folder:
            ended = _run(test, seed, {**os.environ, **planted(Path(folder), mutant.code)})
        if ended.returncode != 1 or not FAILED.search(ended.stdout):
            return f"{test}: exit {ended.returncode}\n{(ended.stdout + ended.stderr)[-2_000:]}"
    return None


def _run(test: str, seed: int, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            f"--hypothesis-seed={seed}",
            test,
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def mutants(run: Run) -> Iterator[Result]:
    chosen = [
        (promise, mutant)
        for promise, found in MUTANTS.items()
        for mutant in found
        if isinstance(mutant, Mutant) and (not run.promises or promise in run.promises)
    ]
    with ThreadPoolExecutor(run.processes) as pool:
        said = list(pool.map(lambda pair: survival(pair[1], run.seed % SEEDS_APART), chosen))
    faults = [
        f"{promise}: survived: {mutant.name}\n{text}"
        for (promise, mutant), text in zip(chosen, said, strict=True)
        if text is not None
    ]
    promises = len({promise for promise, _ in chosen})
    figure = f"{len(chosen)} mutants of {promises} promises, {len(faults)} survived"
    yield result("O6", WHERE, figure, faults=faults, seed=run.seed)
