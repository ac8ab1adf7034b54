"""What a node takes over from its message store when it starts: messages, pools' memories and the time."""

from __future__ import annotations

from dataclasses import dataclass

from stagepost.dmq.mempool import Entry, Mempool
from stagepost.dmq.node.message_store import MessageStore, StoredPool, StoredState, check_stored_time, pool_of
from stagepost.dmq.pool_memory import PoolRecord
from stagepost.dmq.validation import Validator
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.clock import FlooredClock


@dataclass(frozen=True)
class Restored:
    """For the log and the status page. `unkept` is what only a wrong clock can have let in."""

    messages: int
    expired: int
    unkept: int
    pools: int
    damage: tuple[str, ...]


def restore(
    store: MessageStore,
    validator: Validator,
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
    expired: list[Entry] = []
    unkept: list[Entry] = []
    rules = validator.rules
    # Nothing that a sweep at this time would remove is taken in, so nothing of it can be replayed either.
    mempool.expire(now - rules.skew_s)
    over, too_far = now - rules.skew_s, now + rules.ttl_max_s + rules.skew_s
    for entry in state.messages:
        expires_at = entry.message.expires_at
        if expires_at <= over:
            expired.append(entry)
        elif expires_at >= too_far:
            unkept.append(entry)
        else:
            # Even beyond a limit that was lowered meanwhile: accepted is accepted.
            mempool.insert(entry)
    mempool.skip_to(state.index_max)
    if expired or unkept:
        store.forget(expired + unkept, now)
        # As after every sweep: what is gone by this time stays gone, whatever the clock says next.
        clock.raise_floor(now)
    return Restored(mempool.count, len(expired), len(unkept), len(validator.pools_remembered), state.damage)


def _take_over_pools(validator: Validator, state: StoredState, now: float, mono: float) -> None:
    pools: dict[PoolId, StoredPool] = {pool.pool_id: pool for pool in state.pools}
    # Per cold key first, whose hash is the pool's id: pools are few, messages many.
    last: dict[tuple[bytes, int], Entry] = {}
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
