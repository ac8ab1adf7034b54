"""What a topic has acknowledged, and what its readers have seen, survives the loss of power; a log that never syncs loses it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stagepost.errors import StorageError
from tests.e2e.power_cuts import PowerCutImpossible, a_disk
from tests.e2e.test_kill_topic_writer import World

CUTS = 4
CONTROL_CUTS = 3


def cut_loop(folder: Path, seed: int, cuts: int, defect: str = "none") -> int:
    """Live, lose power, look: `cuts` times on one disk. How many records were acknowledged; all must be there."""
    told = folder / "told"
    acknowledged = 0
    with a_disk(folder) as disk:
        world = World(disk.place, told, seed, defect)

        def lose_power() -> None:
            # Who loses power says nothing more, also if a sync that is under way at this instant still succeeds.
            told_bytes = told.stat().st_size if told.exists() else 0
            disk.cut()
            sizes.append(told_bytes)

        for life in range(cuts):
            sizes: list[int] = []
            world.cycle(life, lose_power)
            if told.exists():
                os.truncate(told, sizes[0])
            disk.unmount()
            disk.mount()
            acknowledged = world.check()
    return acknowledged


@pytest.mark.slow
def test_what_a_topic_has_acknowledged_survives_a_power_cut(tmp_path: Path, run_seed: int) -> None:
    try:
        acknowledged = cut_loop(tmp_path, run_seed, CUTS)
    except PowerCutImpossible as error:
        pytest.skip(f"needs root, mkfs.ext4 and a loop device: {error}")

    assert acknowledged > CUTS


@pytest.mark.slow
def test_a_log_that_never_syncs_is_found_out_by_a_power_cut(tmp_path: Path, run_seed: int) -> None:
    """The control: cuts that lose nothing here prove nothing there."""

    def cut_control() -> None:
        for turn in range(CONTROL_CUTS):
            folder = tmp_path / str(turn)
            folder.mkdir()
            cut_loop(folder, run_seed + turn, 1, "never syncs")

    try:
        with pytest.raises((AssertionError, StorageError), match=r"was taken back|are lost|is damaged"):
            cut_control()
    except PowerCutImpossible as error:
        pytest.skip(f"needs root, mkfs.ext4 and a loop device: {error}")
