"""The models of the agreement hold, and Spin finds planted faults; `make model` runs the long search as well."""

from __future__ import annotations

import pytest

from rigs.optional import require
from tools.model import RUNS, ModelRun, check_model, missing_program


@pytest.mark.parametrize("run", [run for run in RUNS if not run.is_long], ids=lambda run: run.name)
def test_a_model_holds_and_its_planted_faults_are_found(run: ModelRun) -> None:
    missing = missing_program()
    if missing is not None:
        require("spin", f"{missing} is not installed")
    found = check_model(run)
    assert found.fits(run), f"{run.name}: {found}"
