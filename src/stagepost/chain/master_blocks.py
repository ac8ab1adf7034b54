"""Making and checking of master blocks: a pure step from a state to the next one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from stagepost.chain.configuration import Configuration, fault_in_change
from stagepost.chain.declined import DeclinedCandidate, Rule
from stagepost.chain.master_block import COMMIT_BLOCKS_MAX, COMMITTED_MAX, MasterBlock, decode_master_block
from stagepost.chain.master_state import MasterState, ShardEntry, in_order, still_due
from stagepost.chain.rotation import Plan, configured, planned
from stagepost.chain.shard_blocks import AppliedBlock, fault_by_clock
from stagepost.chain.shard_state import Due, Source
from stagepost.errors import DecodeError, LocalProtocolError
from stagepost.remp.shard import BlockId


class AppliedMaster(msgspec.Struct, frozen=True):
    """A master block that follows from its parent, with the shard blocks that it commits."""

    block_id: BlockId
    block: MasterBlock
    payload: bytes
    state: MasterState
    commits: tuple[tuple[AppliedBlock, ...], ...]


def make_master_block(
    state: MasterState,
    ready: Iterable[Sequence[AppliedBlock]],
    now_ms: int,
    *,
    plans: Sequence[Plan] = (),
    configuration: Configuration | None = None,
) -> AppliedMaster:
    """Make a master block. `ready`: for each shard the blocks that follow its last committed one. Impossible
    plans are left out.
    """
    commits = _as_fits(ready)
    latest_ms = max((blocks[-1].block.time_ms for blocks in commits), default=0)
    time_ms = max(now_ms, state.time_ms + 1, latest_ms)
    after = _stepped(state, time_ms, commits, (), configuration)
    kept: list[Plan] = []
    for plan in plans:
        attempt = _stepped(state, time_ms, commits, (*kept, plan), configuration)
        if isinstance(attempt, MasterState):
            kept.append(plan)
            after = attempt
    if isinstance(after, DeclinedCandidate):
        raise LocalProtocolError(f"no master block can be made of this: {after.reason}")
    block = MasterBlock(
        state.session.session_id,
        after.seqno,
        state.block_id,
        time_ms,
        tuple(tuple(one.block_id for one in blocks) for blocks in commits),
        tuple(kept),
        b"" if configuration is None else configuration.encode(),
        after.hash,
    )
    return _applied(block, block.encode(), after, commits)


def _as_fits(ready: Iterable[Sequence[AppliedBlock]]) -> tuple[tuple[AppliedBlock, ...], ...]:
    """Return as many of the oldest blocks of each shard as fit, in the order of shards."""
    waiting = [blocks for blocks in ready if blocks]
    share = max(1, min(COMMIT_BLOCKS_MAX, COMMITTED_MAX // max(1, len(waiting))))
    chosen = sorted((tuple(blocks[:share]) for blocks in waiting), key=lambda blocks: blocks[0].block.time_ms)
    return tuple(sorted(chosen[:COMMITTED_MAX], key=lambda blocks: blocks[0].block.shard.prefix))


def provable(
    blocks: Sequence[AppliedBlock], since_ms: int, present: Configuration, wanted: Configuration | None
) -> Sequence[AppliedBlock]:
    """Return those of a shard's next blocks that one master block may commit; `since_ms`: time of the last committed one.

    A proof shows the last block of a commit alone. The first one forgets by the time of the last committed block, and
    remembers enough to prove that a message which expired since was never executed. Each later one forgets by the block
    before it, and that one must not be younger than `proof_window`: after an outage that long the first block stands alone.
    """
    longer_ms = 0 if wanted is None else wanted.expiry_ahead_max_ms - present.expiry_ahead_max_ms
    until_ms = since_ms + present.proof_window_ms - longer_ms
    for count, one in enumerate(blocks, start=1):
        if present.proof_window_ms and one.block.time_ms > until_ms:
            return blocks[:count]
    return blocks


def check_master_block(
    state: MasterState,
    session_id: bytes,
    known: Mapping[BlockId, AppliedBlock],
    payload: bytes,
    now_ms: int | None,
    *,
    wanted: Collection[bytes] | None = (),
) -> AppliedMaster | DeclinedCandidate:
    """Return the applied block upon `state`, or why it cannot stand there.

    `known` holds the shard blocks that their sessions have made final; `wanted` the hashes of configurations
    that this validator is willing to change to, None for all.
    """
    try:
        block = decode_master_block(payload)
        configuration = Configuration.decode(block.configuration) if block.configuration else None
    except DecodeError as error:
        return DeclinedCandidate(Rule.MALFORMED, error.text)
    fault = _fault_in_header(block, state, session_id, now_ms)
    if fault is not None:
        return fault
    if configuration is not None and wanted is not None and configuration.hash not in wanted:
        return DeclinedCandidate(
            Rule.BAD_CONFIGURATION, f"nobody here asked for configuration {configuration.hash.hex()}"
        )
    commits: list[tuple[AppliedBlock, ...]] = []
    for ids in block.commits:
        missing = next((one for one in ids if one not in known), None)
        if missing is not None:
            return DeclinedCandidate(
                Rule.UNKNOWN_BLOCK,
                f"block {missing.seqno} of shard {missing.shard:016x} is not final here: "
                f"{missing.root_hash.hex()}",
            )
        commits.append(tuple(known[one] for one in ids))
    after = _stepped(state, block.time_ms, commits, block.plans, configuration)
    if isinstance(after, DeclinedCandidate):
        return after
    if after.hash != block.state_hash:
        return DeclinedCandidate(
            Rule.WRONG_STATE, f"it leads to the state {after.hash.hex()}, it says {block.state_hash.hex()}"
        )
    return _applied(block, payload, after, tuple(commits))


def _applied(
    block: MasterBlock, payload: bytes, after: MasterState, commits: tuple[tuple[AppliedBlock, ...], ...]
) -> AppliedMaster:
    block_id = block.block_id(payload)
    return AppliedMaster(block_id, block, payload, msgspec.structs.replace(after, block_id=block_id), commits)


def _fault_in_header(
    block: MasterBlock, state: MasterState, session_id: bytes, now_ms: int | None
) -> DeclinedCandidate | None:
    if block.session_id != session_id:
        return DeclinedCandidate(
            Rule.WRONG_SESSION, f"it is of session {block.session_id.hex()}, not of {session_id.hex()}"
        )
    if session_id != state.session.session_id:
        return DeclinedCandidate(Rule.WRONG_SESSION, f"its session ended with master block {state.seqno}")
    if block.previous != state.block_id or block.seqno != state.seqno + 1:
        return DeclinedCandidate(
            Rule.WRONG_PARENT,
            f"it has number {block.seqno} and stands upon {block.previous.root_hash.hex()}; "
            f"{state.seqno + 1} upon {state.block_id.root_hash.hex()} was asked for",
        )
    if block.time_ms <= state.time_ms:
        return DeclinedCandidate(
            Rule.WRONG_TIME, f"it is of {block.time_ms} ms, its parent of {state.time_ms}"
        )
    return fault_by_clock(block.time_ms, now_ms, state.configuration)


def _stepped(
    state: MasterState,
    time_ms: int,
    commits: Sequence[Sequence[AppliedBlock]],
    plans: Sequence[Plan],
    configuration: Configuration | None,
) -> MasterState | DeclinedCandidate:
    """Return the state after a block with this content; its block id is still the parent's."""
    seqno = state.seqno + 1
    entries = {entry.shard: entry for entry in state.shards}
    last_prefix = -1
    for blocks in commits:
        shard = blocks[0].block.shard
        entry = entries.get(shard)
        if entry is None or shard.prefix <= last_prefix:
            return DeclinedCandidate(
                Rule.BAD_COMMIT, f"shard {shard.prefix:016x} is not there, or its commit stands out of order"
            )
        last_prefix = shard.prefix
        committed = _committed(entry, blocks, time_ms)
        if isinstance(committed, DeclinedCandidate):
            return committed
        entries[shard] = committed
    transfers = tuple(transfer for blocks in commits for one in blocks for transfer in one.transfers)
    shards = in_order(entries.values())
    dues = (*state.dues, Due(seqno, transfers)) if transfers else state.dues
    now = msgspec.structs.replace(
        state, seqno=seqno, time_ms=time_ms, shards=shards, dues=still_due(dues, shards)
    )
    with_plans = planned(now, plans)
    if isinstance(with_plans, str):
        return DeclinedCandidate(Rule.BAD_PLAN, with_plans)
    return _configured(with_plans, configuration)


def _committed(
    entry: ShardEntry, blocks: Sequence[AppliedBlock], time_ms: int
) -> ShardEntry | DeclinedCandidate:
    tops, last_ms = entry.tops, entry.time_ms
    for one in blocks:
        if one.block.session_id != entry.session.session_id:
            return DeclinedCandidate(
                Rule.BAD_COMMIT,
                f"block {one.block.seqno} of shard {entry.shard.prefix:016x} is of session "
                f"{one.block.session_id.hex()}, which is not at work",
            )
        if one.block.previous != tops:
            return DeclinedCandidate(
                Rule.BAD_COMMIT,
                f"block {one.block.seqno} of shard {entry.shard.prefix:016x} does not follow the last one",
            )
        if one.block.time_ms <= last_ms:
            return DeclinedCandidate(
                Rule.WRONG_TIME,
                f"block {one.block.seqno} of shard {entry.shard.prefix:016x} is of {one.block.time_ms} ms, "
                f"the one before of {last_ms}",
            )
        tops, last_ms = (one.block_id,), one.block.time_ms
    last = blocks[-1]
    if last.block.time_ms > time_ms:
        return DeclinedCandidate(
            Rule.WRONG_TIME,
            f"block {last.block.seqno} of shard {entry.shard.prefix:016x} is of {last.block.time_ms} ms, "
            f"the master block of {time_ms}",
        )
    source = Source(entry.shard, last.block_id, last.state.master_seqno)
    return msgspec.structs.replace(
        entry, sources=(source,), seqno=last.block.seqno, time_ms=last.block.time_ms
    )


def _configured(state: MasterState, configuration: Configuration | None) -> MasterState | DeclinedCandidate:
    """Return the state with a new configuration, or with the next set when its time has come; then with new
    sessions.
    """
    chosen = configuration or state.configuration
    if configuration is not None:
        fault = fault_in_change(state.configuration, configuration)
        if fault is not None:
            return DeclinedCandidate(Rule.BAD_CONFIGURATION, fault)
    return configured(state, chosen, is_new=configuration is not None)
