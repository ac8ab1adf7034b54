"""Sessions of a chain as the parts above know them: those at work now, and those that are foreseen to follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

import msgspec

from stagepost.chain.accounts import WORKCHAIN
from stagepost.chain.master_state import (
    MASTER_SHARD,
    MasterState,
    PlanKind,
    SessionEntry,
    ShardEntry,
    subset,
)
from stagepost.chain.rotation import configured, contains
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.sessions import SessionFacts
from stagepost.remp.shard import WHOLE_SHARD, BlockId

Previous = Mapping[bytes, tuple[SessionFacts, ...]]
"""The sessions whose work a session continues, by its id."""

COMING_MAX = 4
"""Sessions, at most, that a message is told to ahead of time: where sessions live for seconds, many begin soon."""

BLOCK_WITHIN_MS = 1_000
"""Milliseconds within which a master block follows a moment at which sessions end: validators make one at once."""


def shard_session(state: MasterState, entry: ShardEntry, previous: Previous) -> LedgerSession:
    return _session(state, entry.shard, entry.session, entry.tops, _end_of(state, entry), previous)


def master_session(state: MasterState, previous: Previous) -> LedgerSession:
    start = (state.block_id,)
    return _session(state, MASTER_SHARD, state.session, start, _master_end(state), previous)


def previous_of(before: MasterState, after: MasterState) -> dict[bytes, tuple[SessionFacts, ...]]:
    """Return, for every session that `after` has started, the sessions of `before` whose accounts it serves."""
    old = {entry.session.session_id for entry in before.shards}
    found: dict[bytes, tuple[SessionFacts, ...]] = {}
    for entry in after.shards:
        if entry.session.session_id not in old:
            found[entry.session.session_id] = tuple(
                before.facts(one.shard, one.session.catchain_seqno)
                for one in before.shards
                if contains(one.shard, entry.shard) or contains(entry.shard, one.shard)
            )
    if after.session.session_id != before.session.session_id:
        facts = before.facts(MASTER_SHARD, before.catchain_seqno)
        found[after.session.session_id] = (facts,)
    return found


def coming(
    state: MasterState, workchain: int, account: bytes, now_ms: int, until_ms: int
) -> list[LedgerSession]:
    """Return the sessions that serve an account after the one at work, as far as they begin until `until_ms`; nearest
    first, none twice, at most `COMING_MAX`.

    The chain's own rotation is walked forward, one master block after the other. A master block follows a moment at which
    something is due within `BLOCK_WITHIN_MS`: where two moments are closer, one block may do both, or two blocks one each.
    Members are certain then, ids are not: the id of a session names the number of the last key block.
    """
    entry = state.entry_for(workchain, account)
    if entry is None:
        return []
    near = entry.shard if entry.shard.prefix == WHOLE_SHARD else entry.shard.parent
    # Other shards change nothing here, and each of their sessions would have to be drawn.
    shards = tuple(one for one in state.shards if contains(near, one.shard))
    walked = [msgspec.structs.replace(state, shards=shards, dues=())]
    seen = {
        (
            entry.shard,
            entry.session.catchain_seqno,
            subset(state.configuration, entry.shard, entry.session.catchain_seqno),
        )
    }
    found: list[LedgerSession] = []
    while walked and len(found) < COMING_MAX:
        before = walked.pop(0)
        for after in _next_states(before, account, now_ms, until_ms):
            entry = _entry(after, account)
            members = subset(after.configuration, entry.shard, entry.session.catchain_seqno)
            place = entry.shard, entry.session.catchain_seqno, members
            if place not in seen:
                seen.add(place)
                walked.append(after)
                found.append(shard_session(after, entry, {}))
    return sorted(found, key=lambda one: one.from_ms)[:COMING_MAX]


def _next_states(state: MasterState, account: bytes, now_ms: int, until_ms: int) -> Iterator[MasterState]:
    """Return the states after the next master block that changes the session of `account`, for each time that the block
    may have.
    """
    entry = _entry(state, account)
    moments = {entry.session.ends_ms, _next_set_ms(state)}
    if entry.plan is not PlanKind.NONE:
        moments.add(entry.plan_at_ms)
    due = sorted({max(int(one), now_ms, state.time_ms + 1) for one in moments if one <= until_ms})
    for at_ms in due:
        if at_ms <= due[0] + BLOCK_WITHIN_MS:
            block = msgspec.structs.replace(state, seqno=state.seqno + 1, time_ms=at_ms)
            yield configured(block, state.configuration)


def _entry(state: MasterState, account: bytes) -> ShardEntry:
    return next(entry for entry in state.shards if entry.shard.holds(WORKCHAIN, account))


def _session(
    state: MasterState,
    shard: Shard,
    entry: SessionEntry,
    start: tuple[BlockId, ...],
    ends_ms: int,
    previous: Previous,
) -> LedgerSession:
    members = subset(state.configuration, shard, entry.catchain_seqno)
    return LedgerSession(
        state.facts(shard, entry.catchain_seqno),
        tuple(one.public_key for one in members),
        state.catchain_seqno,
        start,
        entry.started_by,
        entry.from_ms,
        ends_ms,
        previous.get(entry.session_id, ()),
    )


def _end_of(state: MasterState, entry: ShardEntry) -> int:
    ends_ms = int(min(entry.session.ends_ms, _next_set_ms(state)))
    return ends_ms if entry.plan is PlanKind.NONE else min(ends_ms, entry.plan_at_ms)


def _master_end(state: MasterState) -> int:
    return int(min(state.session.ends_ms, _next_set_ms(state)))


def _next_set_ms(state: MasterState) -> float:
    following = state.configuration.next
    return inf if following is None else following.from_ms
