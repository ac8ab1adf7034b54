"""Check the models of the agreement in specs/model with Spin: `make model`.

Each run states the model, its definitions, the result and the number of states. A run with a planted fault must find an
error, and a run without one must search all states without an error; otherwise the exit code is 1.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parents[1] / "specs" / "model"
SAFETY, TIMEOUTS = "safety.pml", "timeouts.pml"
STEPS_MAX = 1_000_000
"""Steps of one execution, at most; a longer one ends the run with an error of its own."""
RUN_WITHIN_S = 600


@dataclass(frozen=True)
class ModelRun:
    """A model with its definitions, whether Spin must find an error in it, and whether the search is too long for tests."""

    model: str
    definitions: tuple[str, ...] = ()
    has_fault: bool = False
    is_long: bool = False

    @property
    def name(self) -> str:
        return " ".join((self.model, *self.definitions))


RUNS = (
    ModelRun(SAFETY, ("SLOTS=2",)),
    ModelRun(SAFETY, ("SLOTS=2", "FAULT_SKIP_AFTER_FINALISE"), has_fault=True),
    ModelRun(SAFETY, ("SLOTS=2", "FAULT_NOTARISE_TWICE"), has_fault=True, is_long=True),
    ModelRun(SAFETY, ("SLOTS=2", "FAULT_SLOT_LEFT_OUT"), has_fault=True),
    ModelRun(TIMEOUTS),
    ModelRun(TIMEOUTS, ("FAULT_NOTARISED_IS_GOOD",), has_fault=True),
    ModelRun(TIMEOUTS, ("FAULT_SILENT_UNTIL_FINAL",), has_fault=True),
)


@dataclass(frozen=True)
class ModelResult:
    """Errors and states that Spin reports, and whether it searched all states."""

    errors: int
    states: int
    is_complete: bool

    def fits(self, run: ModelRun) -> bool:
        return self.errors > 0 if run.has_fault else self.errors == 0 and self.is_complete


def missing_program() -> str | None:
    """Return the name of a program that a check needs and that this machine lacks."""
    return next((name for name in ("spin", "gcc") if shutil.which(name) is None), None)


def check_model(run: ModelRun) -> ModelResult:
    """Translate, compile and search one model. `SAFETY` models have assertions, the others a formula over time."""
    is_safety = run.model == SAFETY
    with tempfile.TemporaryDirectory() as folder:
        _call(folder, "spin", "-a", *(f"-D{one}" for one in run.definitions), str(MODELS / run.model))
        _call(folder, "gcc", "-O2", *(("-DSAFETY", "-DNOFAIR") if is_safety else ()), "-o", "pan", "pan.c")
        options = ("-E",) if is_safety else ("-a", "-f")
        said = _call(folder, "./pan", *options, f"-m{STEPS_MAX}", "-w24")
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"([\d.e+]+) states, stored", said)
    if errors is None or states is None:
        raise RuntimeError(f"{run.name}: Spin reports no result: {said[:500]}")
    is_complete = "Search not completed" not in said and "max search depth too small" not in said
    return ModelResult(int(errors.group(1)), int(float(states.group(1))), is_complete)


def _call(folder: str, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=RUN_WITHIN_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{command[0]} failed with {done.returncode}: {(done.stderr or done.stdout)[:500]}"
        )
    return done.stdout


def main() -> int:
    missing = missing_program()
    if missing is not None:
        print(f"{missing} is not installed: install the packages spin and gcc", file=sys.stderr)
        return 1
    has_failed = False
    for run in RUNS:
        found = check_model(run)
        expected = "an error is expected" if run.has_fault else "no error is expected"
        state = "ok" if found.fits(run) else "FAILED"
        print(
            f"{state:6} {run.name}: {found.errors} errors in {found.states:,} states; {expected}", flush=True
        )
        has_failed |= not found.fits(run)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
