"""The pools file of a running node: polled, and replaced in memory when its new content is good."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from stagepost.dmq.pools import POOLS_FILE_BYTES_MAX, PoolDistribution, parse_pools
from stagepost.errors import ConfigFaults
from stagepost.ground.files.small_files import read_small_file
from stagepost.ground.identifiers import PoolId

POLL_INTERVAL_S = 2.0

log = logging.getLogger(__name__)

_Seen = tuple[int, int, int]


class PoolsFile:
    """Implementation of `Pools` with the last good content of the file."""

    def __init__(self, path: Path, *, poll_interval_s: float = POLL_INTERVAL_S) -> None:
        self._path = path
        self._poll_interval_s = poll_interval_s
        self._current: PoolDistribution | None = None
        self._seen: _Seen | None = None
        self.fault: ConfigFaults | None = None
        """Reason why the file on disk is not in force; None while it is."""

    @property
    def is_ready(self) -> bool:
        return self._current is not None

    @property
    def kes_evolutions_max(self) -> int:
        return self._distribution.kes_evolutions_max

    def stake(self, pool_id: PoolId) -> int | None:
        return None if self._current is None else self._current.stakes.get(pool_id)

    @property
    def pool_count(self) -> int:
        return 0 if self._current is None else len(self._current.stakes)

    @property
    def fault_text(self) -> str | None:
        return None if self.fault is None else self.fault.text

    @property
    def not_ready_reason(self) -> str | None:
        return None if self.is_ready else "the pools file has not been read"

    @property
    def works_with(self) -> str:
        return f"{self.pool_count} pools of the file {self._path}"

    @property
    def _distribution(self) -> PoolDistribution:
        assert self._current is not None, "load comes first"
        return self._current

    def load(self) -> None:
        """Read the file at the start; raise `ConfigFaults` if it is absent or broken, for then no pool is
        known to be eligible."""
        self._seen = self._look()
        self._current = self._read()

    def reload_if_changed(self) -> bool:
        """Return True if another distribution is in force now. A broken or missing file leaves the old one,
        and is logged once."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            fresh = self._read()
        except ConfigFaults as error:
            self.fault = error
            log.error(
                "pools file is broken; the old one stays in force",
                extra={"file": str(self._path), "faults": error.text, "code": str(error.code)},
            )
            return False
        self.fault = None
        changed = fresh != self._current
        self._current = fresh
        if changed:
            log.info("pools file reloaded", extra={"file": str(self._path), "pools": len(fresh.stakes)})
        return changed

    async def watch(self) -> None:
        """Poll the file until cancelled. A thread reads it: a large file takes longer than the loop should
        wait."""
        while True:
            await asyncio.sleep(self._poll_interval_s)
            await asyncio.to_thread(self.reload_if_changed)

    def _look(self) -> _Seen | None:
        """Return values that change when the file does; the inode tells two files of one size and time apart."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> PoolDistribution:
        content, _ = read_small_file(self._path, POOLS_FILE_BYTES_MAX, "a pools file")
        return parse_pools(content, str(self._path))
