"""A store that shares its loop with many others rests between writes as long as the pacer says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stagepost.ground.loop.pacer import BUSY_SHARE, CALM_SHARE
from stagepost.ground.loop.virtual_time import VirtualTimeLoop, run_in_virtual_time
from stagepost.ground.storage.group_writer import REST_MAX_S, FileBackend
from stagepost.ground.storage.table_file import TableFile
from stagepost.ground.storage.tables import Table

NUMBERS: Table[int, int] = Table("numbers", int, int)


@pytest.mark.parametrize(("share", "rest"), [(CALM_SHARE, 0.0), (BUSY_SHARE, 1.0)])
def test_a_store_rests_under_pressure_if_it_is_told_to(tmp_path: Path, share: float, rest: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.load_share = share
        file = TableFile(tmp_path / "file", (NUMBERS,), "file")
        resting = FileBackend(file, "file", lambda: None, rests=True)
        other = FileBackend(file, "file", lambda: None)
        assert resting.rest_s() == pytest.approx(rest * REST_MAX_S, abs=1e-9)
        assert other.rest_s() == 0.0
        file.close()

    run_in_virtual_time(main())
