"""A loop that works is told from one that waits, and writes rest only where it has hardly any time left."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost.ground.loop.load import WINDOW_S, LoopLoad
from stagepost.ground.storage.group_writer import BUSY_SHARE, CALM_SHARE, REST_MAX_S, FileBackend
from stagepost.ground.storage.table_file import TableFile
from stagepost.ground.storage.tables import Table

NUMBERS: Table[int, int] = Table("numbers", int, int)


class Machine:
    """Its clocks are moved by hand."""

    def __init__(self) -> None:
        self.now_s = self.worked_s = 0.0
        self.load = LoopLoad(lambda: self.now_s, lambda: self.worked_s)

    def goes_on(self, seconds: float, share: float) -> None:
        self.now_s += seconds
        self.worked_s += seconds * share


def test_the_share_is_that_of_the_last_window_and_is_kept_until_the_next_is_full() -> None:
    machine = Machine()
    load = machine.load
    assert load.share() == 0.0
    machine.goes_on(WINDOW_S, 0.75)
    assert load.share() == pytest.approx(0.75)
    machine.goes_on(WINDOW_S / 2, 0.0)
    assert load.share() == pytest.approx(0.75)
    machine.goes_on(WINDOW_S, 1.0)
    assert load.share() == pytest.approx(2 / 3)
    machine.goes_on(100 * WINDOW_S, 2.0)  # clocks need not agree
    assert load.share() == 1.0


@pytest.mark.parametrize(
    ("share", "rest"),
    [(0.0, 0.0), (CALM_SHARE, 0.0), ((CALM_SHARE + BUSY_SHARE) / 2, 0.5), (BUSY_SHARE, 1.0), (1.0, 1.0)],
)
def test_the_busier_the_loop_the_longer_a_store_rests_up_to_a_limit(
    tmp_path: Path, share: float, rest: float
) -> None:
    machine = Machine()
    file = TableFile(tmp_path / "file", (NUMBERS,), "file")
    resting = FileBackend(file, "file", lambda: None, rests=True)
    resting._load = machine.load
    other = FileBackend(file, "file", lambda: None)
    machine.goes_on(WINDOW_S, share)
    assert resting.rest_s() == pytest.approx(rest * REST_MAX_S, abs=1e-9)
    assert other.rest_s() == 0.0
    file.close()
