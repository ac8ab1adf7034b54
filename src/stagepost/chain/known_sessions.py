"""Sessions of a chain as the parts above know them: those at work now, and those that are foreseen to follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from stagepost.chain.configuration import ChainValidator
from stagepost.chain.master_state import (
    MASTER_SHARD,
    MasterState,
    PlanKind,
    SessionEntry,
    ShardEntry,
    session_facts,
    subset,
)
from stagepost.chain.rotation import contains
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.sessions import SessionFacts
from stagepost.remp.shard import BlockId

Previous = Mapping[bytes, tuple[SessionFacts, ...]]
"""The sessions whose work a session continues, by its id."""


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


def followers(state: MasterState, shard: Shard, now_ms: int, ahead_ms: int) -> list[LedgerSession]:
    """Return the sessions that follow a shard's session, or the masterchain's, if it ends within `ahead_ms`;
    nearest first, none twice.
    """
    entry = state.entry_of(shard)
    if shard == MASTER_SHARD:
        ends_ms, session = _master_end(state), state.session
        shards: Sequence[Shard] = (shard,)
    elif entry is not None:
        ends_ms, session = _end_of(state, entry), entry.session
        shards = _next_shards(entry, now_ms + ahead_ms)
    else:
        return []
    if ends_ms > now_ms + ahead_ms:
        return []
    following = state.configuration.next
    is_set_next = following is not None and following.from_ms <= now_ms + ahead_ms
    found: dict[bytes, LedgerSession] = {}
    for one in shards:
        seqno = _next_seqno(state, one, session)
        choices = [(seqno, False)] + ([(seqno, True), (seqno + 1, True)] if is_set_next else [])
        for catchain_seqno, of_next in choices:
            members = subset(state.configuration, one, catchain_seqno, of_next=of_next)
            foreseen = _foreseen(state, one, catchain_seqno, members, ends_ms)
            found.setdefault(foreseen.session_id, foreseen)
    return list(found.values())


def _next_shards(entry: ShardEntry, until_ms: int) -> Sequence[Shard]:
    if entry.plan is PlanKind.NONE or entry.plan_at_ms > until_ms:
        return (entry.shard,)
    return entry.shard.children if entry.plan is PlanKind.SPLIT else (entry.shard.parent,)


def _next_seqno(state: MasterState, shard: Shard, session: SessionEntry) -> int:
    merged = [
        entry.session.catchain_seqno
        for entry in state.shards
        if shard != MASTER_SHARD and contains(shard, entry.shard)
    ]
    return max([session.catchain_seqno, *merged]) + 1


def _foreseen(
    state: MasterState, shard: Shard, catchain_seqno: int, members: tuple[ChainValidator, ...], from_ms: int
) -> LedgerSession:
    facts = session_facts(
        state.network, state.configuration, shard, catchain_seqno, state.last_key_block_seqno, members
    )
    lifetime_ms = state.configuration.shard_lifetime_ms
    return LedgerSession(
        facts,
        tuple(one.public_key for one in members),
        state.catchain_seqno,
        (),
        0,
        from_ms,
        (from_ms // lifetime_ms + 1) * lifetime_ms,
    )


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
