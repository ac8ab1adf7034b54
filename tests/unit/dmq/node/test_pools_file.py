"""The pools file of a running node: reloaded when it changes, and never replaced by a broken one."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path

import pytest

from stagepost.dmq.node.pools_file import PoolsFile
from stagepost.errors import ConfigFaults
from stagepost.ground.identifiers import PoolId

POOL = PoolId(bytes(range(28)))


def write(path: Path, *, stake: int, evolutions: int = 62) -> None:
    """As careful people do: another file takes the place of the old one."""
    content = {
        "max_kes_evolutions": evolutions,
        "slots_per_kes_period": 1,
        "pools": [{"pool_id": POOL.hex(), "stake": stake}],
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content))
    fresh.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pools.json"
    write(path, stake=1)
    return path


@pytest.fixture
def pools(path: Path) -> PoolsFile:
    pools = PoolsFile(path)
    pools.load()
    return pools


def test_before_it_is_read_nobody_is_known(path: Path) -> None:
    pools = PoolsFile(path)

    assert not pools.is_ready
    assert pools.stake(POOL) is None


def test_what_the_file_says_is_in_force(pools: PoolsFile) -> None:
    assert pools.is_ready
    assert (pools.stake(POOL), pools.kes_evolutions_max, pools.pool_count) == (1, 62, 1)


@pytest.mark.parametrize("content", [None, "", "{}"])
def test_absent_or_broken_at_start_is_refused(path: Path, content: str | None) -> None:
    path.unlink()
    if content is not None:
        path.write_text(content)

    with pytest.raises(ConfigFaults):
        PoolsFile(path).load()


def test_a_changed_file_is_taken(path: Path, pools: PoolsFile) -> None:
    assert not pools.reload_if_changed()
    write(path, stake=2, evolutions=30)

    assert pools.reload_if_changed()
    assert (pools.stake(POOL), pools.kes_evolutions_max) == (2, 30)
    assert not pools.reload_if_changed()


def test_a_file_of_the_same_size_and_time_is_still_seen_to_be_another(path: Path, pools: PoolsFile) -> None:
    before = path.stat()
    write(path, stake=2)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert pools.reload_if_changed()


def test_a_touched_file_that_says_the_same_changes_nothing(path: Path, pools: PoolsFile) -> None:
    write(path, stake=1)

    assert not pools.reload_if_changed()
    assert pools.fault is None


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_broken_or_vanished_file_leaves_the_old_in_force_and_is_logged_once(
    path: Path, pools: PoolsFile, caplog: pytest.LogCaptureFixture, is_gone: bool
) -> None:
    if is_gone:
        path.unlink()
    else:
        path.write_text('{"pools": []}')

    with caplog.at_level(logging.INFO):
        assert not pools.reload_if_changed()
        assert not pools.reload_if_changed()

    assert pools.stake(POOL) == 1
    assert pools.fault is not None
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_repaired_file_is_taken_and_the_fault_forgotten(path: Path, pools: PoolsFile) -> None:
    path.write_text("{")
    pools.reload_if_changed()
    write(path, stake=7)

    assert pools.reload_if_changed()
    assert pools.stake(POOL) == 7
    assert pools.fault is None


def test_watching_takes_changes_by_itself(path: Path) -> None:
    pools = PoolsFile(path, poll_interval_s=0.001)
    pools.load()

    async def run() -> None:
        watching = asyncio.create_task(pools.watch())
        write(path, stake=9)
        while pools.stake(POOL) != 9:
            await asyncio.sleep(0)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    asyncio.run(run())
