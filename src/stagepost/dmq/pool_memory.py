"""The memory of each pool's earlier valid messages: when the last one came, and its certificate's number.

Both only grow. A node that stores messages exports this memory with wall-clock times and imports it after a
restart, so that neither the gap between messages nor the certificate's number starts anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from stagepost.dmq.outcome import Rejected, rejected
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import PoolId

POOLS_REMEMBERED_MAX = 65_536


class PoolMemory(msgspec.Struct, frozen=True, gc=False):
    """Memory of one pool, in the monotonic time of this process."""

    last_valid_mono_s: float
    issue_number: int


class PoolRecord(msgspec.Struct, frozen=True):
    """Memory of one pool, in wall-clock time: the form that survives a restart."""

    last_valid_unix_s: float
    issue_number: int


class PoolMemories:
    """Memory of all pools. `commit` alone changes it for a message; `put_back` undoes that, and calls
    `on_put_back` with the pool."""

    def __init__(
        self,
        message_gap_s: float,
        pools_max: int = POOLS_REMEMBERED_MAX,
        *,
        on_put_back: Callable[[PoolId], None] = lambda pool_id: None,
    ) -> None:
        self._message_gap_s = message_gap_s
        self._pools_max = pools_max
        self._on_put_back = on_put_back
        self._memories: dict[PoolId, PoolMemory] = {}

    def __len__(self) -> int:
        return len(self._memories)

    def get(self, pool_id: PoolId) -> PoolMemory | None:
        return self._memories.get(pool_id)

    def check_gap(self, pool_id: PoolId, mono: float) -> Rejected | None:
        # Without a gap the order of arrival does not matter either: a slower check may finish after a later
        # message.
        if self._message_gap_s <= 0:
            return None
        memory = self._memories.get(pool_id)
        if memory is None:
            return None
        wait_s = memory.last_valid_mono_s + self._message_gap_s - mono
        if wait_s <= 0:
            return None
        text = f"one message per {self._message_gap_s:g} s and pool; wait {wait_s:.1f} s"
        return rejected(ErrorCode.MSG_TOO_FREQUENT, text, retry_after_s=wait_s)

    def check_counter(self, pool_id: PoolId, issue_number: int) -> Rejected | None:
        memory = self._memories.get(pool_id)
        if memory is None or issue_number >= memory.issue_number:
            return None
        text = f"certificate number {issue_number} is lower than {memory.issue_number}, which this pool used before"
        return rejected(ErrorCode.OPCERT_COUNTER, text)

    def commit(self, pool_id: PoolId, issue_number: int, mono: float) -> Rejected | None:
        """Record a valid message, unless one that was committed meanwhile stands against it."""
        memory = self._memories.get(pool_id)
        if memory is not None:
            if self._message_gap_s > 0 or issue_number < memory.issue_number:
                fault = self.check_gap(pool_id, mono) or self.check_counter(pool_id, issue_number)
                if fault is not None:
                    return fault
            mono = max(mono, memory.last_valid_mono_s)
        # A pool of the distribution always fits: the bound is far above the number of existing pools.
        elif len(self._memories) >= self._pools_max:
            return rejected(ErrorCode.QUEUE_FULL, f"{self._pools_max} pools are remembered already")
        self._memories[pool_id] = PoolMemory(mono, issue_number)
        return None

    def put_back(self, pool_id: PoolId, memory: PoolMemory | None) -> None:
        """Undo commits with the earlier result of `get`, for messages that could not be kept after all."""
        if memory is None:
            self._memories.pop(pool_id, None)
        else:
            self._memories[pool_id] = memory
        self._on_put_back(pool_id)

    def export(self, now: float, mono: float) -> dict[PoolId, PoolRecord]:
        return {
            pool_id: PoolRecord(now - (mono - memory.last_valid_mono_s), memory.issue_number)
            for pool_id, memory in self._memories.items()
        }

    def take_over(self, records: Mapping[PoolId, PoolRecord], now: float, mono: float) -> None:
        """Import exported records. A time ahead of `now` counts as now: a pool waits one gap at most."""
        for pool_id, record in records.items():
            elapsed_s = max(0.0, now - record.last_valid_unix_s)
            found = PoolMemory(mono - elapsed_s, record.issue_number)
            known = self._memories.get(pool_id)
            if known is not None:
                found = PoolMemory(
                    max(known.last_valid_mono_s, found.last_valid_mono_s),
                    max(known.issue_number, found.issue_number),
                )
            self._memories[pool_id] = found
