"""What a store still has to write: kept until a transaction took all of it, however many failed before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagepost.dmq.mempool import Entry
from stagepost.dmq.node.message_store import StoredPool, pool_of


class Changes:
    """Messages to forget, what their pools have settled, and the time at which that was seen."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self._pools: dict[bytes, StoredPool] = {}
        self._seen_ms = 0
        self._reset_ms: int | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.places or self._seen_ms or self._reset_ms is not None)

    def forget(self, records: Sequence[Entry], unix_ms: int) -> None:
        for record in records:
            self.places.append(record.index)
            settled = _not_after(pool_of(record), unix_ms)
            self._pools[settled.pool_id] = settled.merged(self._pools.get(settled.pool_id))
        self._seen_ms = max(self._seen_ms, unix_ms)

    def reset_time(self, unix_ms: int) -> None:
        self._reset_ms = self._seen_ms = unix_ms

    def followed_by(self, later: Changes) -> Changes:
        """These, which could not be written, and what came after them."""
        joined = Changes()
        joined.places = self.places + later.places
        joined._pools = dict(self._pools)
        for pool_id, pool in later._pools.items():
            joined._pools[pool_id] = pool.merged(joined._pools.get(pool_id))
        joined._reset_ms = self._reset_ms if later._reset_ms is None else later._reset_ms
        joined._seen_ms = max(self._seen_ms if later._reset_ms is None else 0, later._seen_ms)
        return joined

    def pools_after(self, held: Mapping[bytes, StoredPool]) -> list[StoredPool]:
        """The pools whose memory changes, as it then is."""
        before = held
        after: dict[bytes, StoredPool] = {}
        if self._reset_ms is not None:
            before = {pool_id: _not_after(pool, self._reset_ms) for pool_id, pool in held.items()}
            after = dict(before)
        for pool_id, pool in self._pools.items():
            after[pool_id] = pool.merged(before.get(pool_id))
        return [pool for pool_id, pool in after.items() if pool != held.get(pool_id)]

    def time_after(self, highest_ms: int) -> int:
        return max(self._seen_ms, highest_ms if self._reset_ms is None else self._reset_ms)


def _not_after(pool: StoredPool, unix_ms: int) -> StoredPool:
    """Times beyond the present came from a clock that was wrong."""
    if pool.last_valid_ms <= unix_ms:
        return pool
    return StoredPool(pool.pool_id, pool.issue_number, unix_ms)
