"""Backups taken under load and restored elsewhere; `make soak` repeats this with other moments of killing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.backups import restored_elsewhere, validator_restored

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("storms")]


def test_a_node_restored_from_a_backup_under_load_accepts_no_replay(run_seed: int) -> None:
    figure, faults = restored_elsewhere(run_seed)

    assert not faults, f"{faults}\n{figure}"


def test_a_validator_restored_from_a_backup_signs_nothing_a_second_time(
    tmp_path: Path, run_seed: int
) -> None:
    figure, faults = validator_restored(tmp_path, run_seed, per_s=5.0)

    assert not faults, f"{faults}\n{figure}"
