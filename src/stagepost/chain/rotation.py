"""Changes of shards and sessions by the masterchain: plans to split and to merge, and the sessions that
follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stagepost.chain.accounts import WORKCHAIN
from stagepost.chain.configuration import Configuration
from stagepost.chain.master_state import (
    MASTER_SHARD,
    MasterState,
    PlanKind,
    ShardEntry,
    in_order,
)
from stagepost.chain.shard_state import PREVIOUS_MAX, Source
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import WHOLE_SHARD


class Plan(msgspec.Struct, frozen=True):
    """A plan to split `shard`, or to merge its children into it, in the first master block at `at_ms` or
    later.
    """

    kind: PlanKind
    shard: Shard
    at_ms: int


def planned(state: MasterState, plans: Iterable[Plan]) -> MasterState | str:
    """Return the state with these plans noted, or why one of them is impossible."""
    entries = {entry.shard: entry for entry in state.shards}
    for plan in plans:
        name = f"{plan.kind.name.lower()} of shard {plan.shard.prefix:016x}"
        if plan.shard.workchain != WORKCHAIN or not 0 < plan.shard.prefix <= (1 << 64) - 1:
            return f"{name}: there is no such shard"
        if plan.kind is PlanKind.SPLIT:
            if plan.shard.bits >= state.configuration.shard_bits_max:
                return f"{name}: it was split {plan.shard.bits} times, which is the most"
            concerned: tuple[Shard, ...] = (plan.shard,)
        elif plan.kind is PlanKind.MERGE and plan.shard.prefix & 1 == 0:
            concerned = plan.shard.children
        else:
            return f"{name}: a plan is a split or a merge of two halves"
        if any(shard not in entries for shard in concerned):
            return f"{name}: not every shard that it needs is there"
        if any(entries[shard].plan for shard in concerned):
            return f"{name}: another plan stands already"
        if plan.at_ms > state.time_ms + state.configuration.shard_lifetime_ms:
            return f"{name}: it is planned further ahead than a session lives"
        for shard in concerned:
            entries[shard] = msgspec.structs.replace(entries[shard], plan=plan.kind, plan_at_ms=plan.at_ms)
    return msgspec.structs.replace(state, shards=in_order(entries.values()))


def lead_towards(count: int, state: MasterState, plans: Iterable[Plan]) -> bool:
    """Return whether each of these plans brings the number of shards nearer to `count`, with those that stand already."""
    kinds = [entry.plan for entry in state.shards]
    # A merge stands in both halves.
    present = len(kinds) + kinds.count(PlanKind.SPLIT) - kinds.count(PlanKind.MERGE) // 2
    for plan in plans:
        is_split = plan.kind is PlanKind.SPLIT
        if present >= count if is_split else present <= count:
            return False
        present += 1 if is_split else -1
    return True


def configured(state: MasterState, chosen: Configuration, *, is_new: bool = False) -> MasterState:
    """Return `state`, which has its block's number and time, under the configuration `chosen`: with its next set when the
    time of that has come, and with the sessions that follow. `is_new`: the block carries `chosen`, and is a key block even
    if its next set is the one in force, for verifiers see no more than that.
    """
    if chosen.next is not None and state.time_ms >= chosen.next.from_ms:
        chosen = msgspec.structs.replace(chosen, current=chosen.next, next=None)
    is_key_block = is_new or chosen != state.configuration
    if is_key_block:
        state = msgspec.structs.replace(state, configuration=chosen, last_key_block_seqno=state.seqno)
    return rotated(state, is_key_block=is_key_block)


def rotated(state: MasterState, *, is_key_block: bool) -> MasterState:
    """Return the state with every session replaced whose time is over; a key block replaces all. `state` has
    the new configuration.
    """
    shards: list[ShardEntry] = []
    entries = {entry.shard: entry for entry in state.shards}
    merged: set[Shard] = set()
    for entry in state.shards:
        if entry.shard in merged:
            continue
        is_due = entry.plan is not PlanKind.NONE and state.time_ms >= entry.plan_at_ms
        if is_due and entry.plan is PlanKind.SPLIT:
            shards += [_follower(state, child, (entry,)) for child in entry.shard.children]
        elif is_due:
            left, right = entry.shard.parent.children
            both = entries[left], entries[right]
            merged |= {left, right}
            if len(sources_of(entry.shard.parent, both)) <= PREVIOUS_MAX:
                shards.append(_follower(state, entry.shard.parent, both))
            else:  # it would stand upon too many blocks; each goes on alone, until it has one of its own
                shards += [_follower(state, one.shard, (one,)) for one in both]
        elif is_key_block or state.time_ms >= entry.session.ends_ms:
            follower = _follower(state, entry.shard, (entry,))
            shards.append(msgspec.structs.replace(follower, plan=entry.plan, plan_at_ms=entry.plan_at_ms))
        else:
            shards.append(entry)
    state = msgspec.structs.replace(state, shards=in_order(shards))
    if is_key_block or state.time_ms >= state.session.ends_ms:
        session = state.new_session(MASTER_SHARD, state.catchain_seqno + 1)
        state = msgspec.structs.replace(state, session=session)
    return state


def sources_of(shard: Shard, entries: Sequence[ShardEntry]) -> tuple[Source, ...]:
    """Return the last blocks for all parts of a shard. Halves that have the same last block become one part."""
    parts: list[Source] = []
    for entry in entries:
        for source in entry.sources:
            if contains(source.part, shard):
                parts.append(msgspec.structs.replace(source, part=shard))
            elif contains(shard, source.part):
                parts.append(source)
    joined: list[Source] = []
    for source in parts:
        joined.append(source)
        while len(joined) > 1 and _are_halves(joined[-2], joined[-1]):
            last = joined.pop()
            joined[-1] = msgspec.structs.replace(last, part=last.part.parent)
    return tuple(joined)


def contains(outer: Shard, inner: Shard) -> bool:
    """Return whether every account of `inner` is an account of `outer`."""
    shift = 64 - outer.bits
    return outer.bits <= inner.bits and (outer.bits == 0 or outer.prefix >> shift == inner.prefix >> shift)


def _are_halves(left: Source, right: Source) -> bool:
    return (
        left.block_id == right.block_id
        and left.part.prefix != WHOLE_SHARD
        and left.part.parent.children == (left.part, right.part)
    )


def _follower(state: MasterState, shard: Shard, entries: Sequence[ShardEntry]) -> ShardEntry:
    seqno = max(entry.session.catchain_seqno for entry in entries) + 1
    return ShardEntry(
        shard,
        sources_of(shard, entries),
        max(entry.seqno for entry in entries),
        max(entry.time_ms for entry in entries),
        state.new_session(shard, seqno),
    )
