"""Backups under load, restored elsewhere with kills in between: DMQ nodes at 100 messages a second, and validators."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from rigs.results import Result, result_of
from tests.hostile.backups import restored_elsewhere, validator_restored
from tests.soak.runs import Run

NODES, VALIDATORS = 20, 5
PER_S = 100.0


def backups(run: Run) -> Iterator[Result]:
    for number in range(run.inputs or NODES):
        run.say(f"backup of a DMQ node, {number + 1}")
        figure, faults = restored_elsewhere(run.seed + number, PER_S)
        yield result_of({**figure, "seed": run.seed + number}, "tests/hostile/backups.py: a DMQ node", faults)
    for number in range(run.inputs or VALIDATORS):
        run.say(f"backup of a validator, {number + 1}")
        with tempfile.TemporaryDirectory() as name:
            figure, faults = validator_restored(Path(name), run.seed + number, PER_S)
        yield result_of(
            {**figure, "seed": run.seed + number}, "tests/hostile/backups.py: a validator", faults
        )
