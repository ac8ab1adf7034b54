"""Observations about pools beyond single messages: two bodies for one slot, and keys that come to their end.

A node has no keys. The certificate of a message that a local program submitted says when the pool's key ends,
and the message says in which period it was signed. Messages of others say nothing about the pools of this
node's operator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stagepost.dmq.equivocation import Equivocation, Equivocations
from stagepost.dmq.mempool import Mempool, MempoolEntry
from stagepost.dmq.message import FIVE_AND_FOUR, DmqMessage
from stagepost.dmq.node.local_service import LOCAL_SOURCE
from stagepost.dmq.validation import SLOTS_PER_KES_PERIOD, Pools
from stagepost.ground.crypto.hashing import format_pool_id
from stagepost.ground.loop.clock import Clock
from stagepost.ground.telemetry.status import EquivocatingPool, EquivocationStatus

IN_USE_S = float(SLOTS_PER_KES_PERIOD)
"""Seconds: one KES period of the public networks: a pool that was silent for longer may have moved elsewhere."""
POOLS_MAX = 1_024


@dataclass
class KeysInUse:
    """Pools for which local programs send, by cold key: the time of the last message, and the periods then
    left."""

    _pools: dict[bytes, tuple[float, int]] = field(default_factory=dict)

    def note(self, message: DmqMessage, evolutions_max: int, mono_s: float) -> None:
        """Record an accepted message of a local program."""
        key = message.cold_verification_key
        # The latest comes last, so that the first is the pool that was silent for longest.
        self._pools.pop(key, None)
        self._pools[key] = (mono_s, evolutions_max - message.kes_evolution)
        if len(self._pools) > POOLS_MAX:
            del self._pools[next(iter(self._pools))]

    def periods_remaining(self, mono_s: float) -> int | None:
        """Return the periods left of the key that ends first, the present period included; None while none is
        in use."""
        for key, (used_at_s, _) in list(self._pools.items()):
            if mono_s - used_at_s > IN_USE_S:
                del self._pools[key]
        return min((remaining for _, remaining in self._pools.values()), default=None)


POOLS_SHOWN_MAX = 20
RESTORED_AT_ONCE = 1_000

log = logging.getLogger(__name__)


class PoolWatch:
    """Observer of every accepted and every expired message.

    `is_remarkable` says whether pools must wait between messages on this network. Where they need not,
    programs of one pool often sign several messages in a second, and only the counters show it.
    """

    def __init__(
        self, equivocations: Equivocations, pools: Pools, clock: Clock, *, is_remarkable: bool = True
    ) -> None:
        self.equivocations = equivocations
        self._is_remarkable = is_remarkable
        self._keys = KeysInUse()
        self._pools = pools
        self._clock = clock
        equivocations.on_found.append(self._tell)

    def restored(self, mempool: Mempool) -> None:
        """Observe the stored messages like new ones."""
        self._look_at(mempool, 0, mempool.count)

    async def restored_meanwhile(self, mempool: Mempool) -> None:
        """Do what `restored` does a little at a time: where nobody is refused for it, nobody need wait for
        it."""
        index, last = 0, mempool.last_index
        while index < last:
            index = self._look_at(mempool, index, RESTORED_AT_ONCE)
            await asyncio.sleep(0)

    def _look_at(self, mempool: Mempool, index: int, count: int) -> int:
        """Observe `count` entries after `index`; return the index of the last one."""
        entries = mempool.after(index, count, FIVE_AND_FOUR)
        for entry in entries:
            self.accepted(entry)
        return entries[-1].index if entries else mempool.last_index

    def accepted(self, entry: MempoolEntry) -> None:
        self.equivocations.hold(entry.message)
        if entry.source == LOCAL_SOURCE and self._pools.is_ready:
            self._keys.note(entry.message, self._pools.kes_evolutions_max, self._clock.mono_s())

    def expired(self, entries: Sequence[MempoolEntry]) -> None:
        self.equivocations.forget(entry.message for entry in entries)

    @property
    def kes_periods_remaining(self) -> int | None:
        return self._keys.periods_remaining(self._clock.mono_s())

    def status(self) -> EquivocationStatus:
        """Return the counts, and the latest pools first."""
        found = list(self.equivocations.pools.values())[::-1]
        pools = tuple(
            EquivocatingPool(pool.count, **_described(pool.latest)) for pool in found[:POOLS_SHOWN_MAX]
        )
        return EquivocationStatus(self.equivocations.count, self.equivocations.refused, pools)

    def _tell(self, found: Equivocation) -> None:
        # Once for each pool: the counters show the rest, and a pool that equivocates all the time must not
        # fill the log.
        if self._is_remarkable and self.equivocations.pools[found.pool_id].count == 1:
            log.warning("pool signed two bodies for one slot", extra=_described(found))


def _described(found: Equivocation) -> dict[str, Any]:
    return {
        "pool_id": format_pool_id(found.pool_id),
        "first": found.first.hex(),
        "second": found.second.hex(),
        "expires_at": found.expires_at,
        "refused": found.is_refused,
    }
