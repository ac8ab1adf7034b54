"""Stores of accepted messages, which are kept so that a restart neither forgets one nor accepts it a second time.

At its start a node takes over from its message store: messages, pools' memories and the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from stagepost.dmq.mempool import Mempool, MempoolEntry
from stagepost.dmq.pool_memory import PoolRecord
from stagepost.dmq.validation import MessageValidator
from stagepost.errors import ConfigError, StorageError
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.clock import FlooredClock

STORED_TIME_AHEAD_MAX_S = 3_600
ACCEPT_STORED_TIME = "unsafe-accept-stored-time"
"""Name of the override in configuration and command line."""

StoredMessage: TypeAlias = MempoolEntry
Written: TypeAlias = Callable[[StorageError | None], None]


class StoredPool(msgspec.Struct, frozen=True):
    """Memory of a pool's messages: kept after the messages themselves have expired."""

    pool_id: PoolId
    issue_number: int
    last_valid_ms: int

    def merged(self, other: StoredPool | None) -> StoredPool:
        if other is None:
            return self
        return StoredPool(
            self.pool_id,
            max(self.issue_number, other.issue_number),
            max(self.last_valid_ms, other.last_valid_ms),
        )


def pool_of(entry: MempoolEntry) -> StoredPool:
    message = entry.message
    return StoredPool(message.pool_id, message.issue_number, entry.received_ms)


@dataclass(frozen=True)
class StoredState:
    """Content of a store at its opening. `damage` is for people: one sentence for each thing that was wrong."""

    messages: tuple[StoredMessage, ...] = ()
    pools: tuple[StoredPool, ...] = ()
    highest_ms: int = 0
    index_max: int = 0
    damage: tuple[str, ...] = ()


class MessageStore(Protocol):
    """Durable store of one owner at a time. A failure is a `StorageError`; the store may be asked again at any time."""

    @property
    def fault(self) -> str | None:
        """Reason why the last write failed; None after one that went well."""
        ...

    def load(self) -> StoredState:
        """Return everything, in order of arrival. Called once, before anything else."""
        ...

    def write(self, records: Sequence[StoredMessage], written: Written) -> None:
        """`written` is called once, on the event loop and perhaps at once, when all would survive a power cut.

        With an error none of them counts. Never raises: a store that is closed tells `written`, too.
        """
        ...

    def forget(self, records: Sequence[StoredMessage], unix_s: float) -> None:
        """Forget `records`, which expired, as was seen at `unix_s`: in the background, in order with `write`, despite errors.

        Their pools are remembered, and so is the time: a clock that was set back must not revive them.
        """
        ...

    def reset_time(self, unix_s: float) -> None:
        """Replace the highest time, where somebody decided that the stored one was wrong."""
        ...

    async def close(self) -> None: ...


async def write_and_wait(store: MessageStore, records: Sequence[StoredMessage]) -> None:
    """`write` for those who would rather wait than be called. Returns when all are safe; raises `StorageError`."""
    done: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()

    def written(error: StorageError | None) -> None:
        if not done.done():
            done.set_result(error)

    store.write(records, written)
    error = await done
    if error is not None:
        raise error


def check_stored_time(highest_ms: int, now_unix_s: float) -> None:
    """Refuse to start with a clock far behind: every message would look expired, or an old one would look new."""
    ahead_s = highest_ms / 1_000 - now_unix_s
    if ahead_s > STORED_TIME_AHEAD_MAX_S:
        raise ConfigError(
            f"the stored messages are from {highest_ms / 1_000:.0f}, {ahead_s:.0f} s ahead of this machine's clock, "
            f"which says {now_unix_s:.0f}; at most {STORED_TIME_AHEAD_MAX_S} s are allowed",
            advice=f"correct the clock; if it is right now and was wrong before, start once with {ACCEPT_STORED_TIME}",
            limit=STORED_TIME_AHEAD_MAX_S,
            found=round(ahead_s),
        )


@dataclass(frozen=True)
class Restored:
    """Counts for the log and the status page. `unkept` messages can only have come in by a wrong clock."""

    messages: int
    expired: int
    unkept: int
    pools: int
    damage: tuple[str, ...]


def restore(
    store: MessageStore,
    validator: MessageValidator,
    mempool: Mempool,
    clock: FlooredClock,
    *,
    accept_stored_time: bool = False,
) -> Restored:
    """`ConfigError` if the stored time lies far ahead of the clock, unless that is to be accepted."""
    state = store.load()
    if accept_stored_time:
        # Somebody vouches for the clock: the stored times were wrong, and so is everything that relies on them.
        store.reset_time(clock.unix_s())
    else:
        check_stored_time(state.highest_ms, clock.unix_s())
        clock.raise_floor(state.highest_ms / 1_000)
    now, mono = clock.unix_s(), clock.mono_s()
    _take_over_pools(validator, state, now, mono)
    expired: list[MempoolEntry] = []
    unkept: list[MempoolEntry] = []
    rules = validator.rules
    # Nothing that a sweep at this time would remove is taken in, so nothing of it can be replayed either.
    mempool.expire(now - rules.skew_s)
    over, too_far = now - rules.skew_s, now + rules.ttl_max_s + rules.skew_s
    for entry in state.messages:
        expires_at = entry.message.expires_at
        if expires_at <= over:
            expired.append(entry)
        elif expires_at >= too_far and accept_stored_time:
            unkept.append(entry)
        else:
            # Even beyond a limit that was lowered meanwhile, or from a time when the clock was ahead: accepted is accepted,
            # and must not be accepted once more when its time comes.
            mempool.insert(entry)
    mempool.skip_to(state.index_max)
    if expired or unkept:
        store.forget(expired + unkept, now)
        # As after every sweep: what is gone by this time stays gone, whatever the clock says next.
        clock.raise_floor(now)
    return Restored(mempool.count, len(expired), len(unkept), len(validator.pools_remembered), state.damage)


def _take_over_pools(validator: MessageValidator, state: StoredState, now: float, mono: float) -> None:
    pools: dict[PoolId, StoredPool] = {pool.pool_id: pool for pool in state.pools}
    # Per cold key first, whose hash is the pool's id: pools are few, messages many.
    last: dict[tuple[bytes, int], MempoolEntry] = {}
    for entry in state.messages:
        message = entry.message
        signer = (message.cold_verification_key, message.issue_number)
        known = last.get(signer)
        if known is None or entry.received_ms > known.received_ms:
            last[signer] = entry
    for entry in last.values():
        settled = pool_of(entry)
        pools[settled.pool_id] = settled.merged(pools.get(settled.pool_id))
    records = {
        pool.pool_id: PoolRecord(pool.last_valid_ms / 1_000, pool.issue_number) for pool in pools.values()
    }
    validator.pools_remembered.take_over(records, now, mono)
