"""What was accepted survives the loss of power; a build that does not wait for the disk loses it, in the same test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.power_cuts import CutDisk, PowerCutImpossible, cut_loop, lost_by_the_control

CUTS = 4
CONTROL_CUTS = 2


@pytest.mark.slow
def test_what_was_accepted_survives_a_power_cut(tmp_path: Path, run_seed: int) -> None:
    try:
        accepted = cut_loop(tmp_path, run_seed, CUTS)
    except PowerCutImpossible as error:
        pytest.skip(f"needs root, mkfs.ext4 and a loop device: {error}")

    assert accepted > CUTS


@pytest.mark.slow
def test_a_build_that_does_not_wait_for_the_disk_loses_messages_by_a_power_cut(
    tmp_path: Path, run_seed: int
) -> None:
    try:
        lost = lost_by_the_control(tmp_path, run_seed, CONTROL_CUTS)
    except PowerCutImpossible as error:
        pytest.skip(f"needs root, mkfs.ext4 and a loop device: {error}")

    assert lost > 0


def test_a_machine_that_cannot_cut_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(PowerCutImpossible, match=r"needs root|there is no mkfs\.ext4"):
        CutDisk(tmp_path)
