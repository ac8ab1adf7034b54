"""Ends that bind, with real processes and public commands: without a quorum the end is not known, and afterwards there is
exactly one, proved; a message that expired meanwhile is proved never executed; a body under two ids is executed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.devnet.end_stories import STORIES, play

pytestmark = pytest.mark.xdist_group("devnet")


@pytest.mark.parametrize("name", STORIES)
def test_a_story_has_one_end_and_the_end_is_proved(name: str, run_seed: int, tmp_path: Path) -> None:
    seed = run_seed % 1_000_000
    print(f"seed {seed}")
    assert play(name, seed, tmp_path) == []
