"""Making and checking of shard blocks: a pure step from a state to the next one, and reports on the messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import islice

import msgspec

from stagepost.chain.accounts import Transfer
from stagepost.chain.configuration import Configuration, Ordering
from stagepost.chain.declined import DeclinedCandidate, Rule
from stagepost.chain.execution import Execution, MasterView
from stagepost.chain.message_values import ReadMessage
from stagepost.chain.messages import read_message
from stagepost.chain.shard_block import ShardBlock, decode_shard_block
from stagepost.chain.shard_state import ShardState
from stagepost.errors import DecodeError
from stagepost.remp.ledger import CollatedBlock, DryRun
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.collation import ExecutedMessage, RefusedMessage, Report, SkippedMessage
from stagepost.remp.shard import BlockId

CLOCK_AHEAD_MS_MAX = 5_000
"""Milliseconds that a block may be dated ahead of our clock, at most: as much as clocks may differ."""

STAYS_IN_QUEUE = frozenset({Rule.WRONG_SHARD, Rule.OVER_LIMIT})
"""Rules under which another block may still include the message; under any other rule no similar block would.
"""


class AppliedBlock(msgspec.Struct, frozen=True):
    """A block that follows from its parent, and what it leads to."""

    block_id: BlockId
    block: ShardBlock
    payload: bytes
    state: ShardState
    messages: tuple[ExternalMessage, ...]
    transfers: tuple[Transfer, ...]
    weight: int

    @property
    def message_ids(self) -> tuple[bytes, ...]:
        return tuple(message.message_id for message in self.messages)


def order_hash(previous: Sequence[BlockId], message_id: bytes) -> bytes:
    """Return the sort key of a message in a block that is ordered by hash: nobody can know it before the
    parent is known.
    """
    return sha256(b"".join(block_id.root_hash for block_id in previous) + message_id).digest()


def make_block(
    state: ShardState,
    session_id: bytes,
    configuration: Configuration,
    view: MasterView,
    messages: Iterable[ExternalMessage],
    now_ms: int,
) -> tuple[AppliedBlock, CollatedBlock]:
    """Make a block. `messages` is read until the first message that does not fit, and no further."""
    time_ms = max(now_ms, state.time_ms + 1, view.time_ms)
    execution = Execution(state, configuration, view, time_ms)
    if configuration.ordering is Ordering.HASH:
        some = islice(messages, configuration.limits.messages_max)
        messages = sorted(some, key=lambda one: order_hash(state.previous, one.message_id))
    taken: list[ReadMessage] = []
    faults: list[tuple[bytes, DeclinedCandidate | None]] = []
    for message in messages:
        try:
            read = read_message(message.body, takes_cells=configuration.takes_cells)
        except DecodeError as error:
            faults.append((message.message_id, DeclinedCandidate(Rule.BAD_MESSAGE, error.text)))
            continue
        fault = execution.take(read)
        faults.append((message.message_id, fault))
        if fault is None:
            taken.append(read)
        elif fault.rule is Rule.OVER_LIMIT:
            break
    after = execution.finished()
    block = ShardBlock(
        session_id,
        state.shard,
        after.seqno,
        state.previous,
        view.block_id,
        time_ms,
        configuration.ordering,
        tuple(read.external.body for read in taken),
        after.hash,
    )
    payload = block.encode()
    applied = _applied(block, payload, after, taken, execution)
    reports = tuple((message_id, _report(applied.block_id, fault)) for message_id, fault in faults)
    return applied, CollatedBlock(applied.block_id, payload, reports)


def check_block(
    state: ShardState,
    session_id: bytes,
    configuration: Configuration,
    views: Mapping[int, MasterView],
    payload: bytes,
    now_ms: int | None,
) -> AppliedBlock | DeclinedCandidate:
    """Return the applied block upon `state`, or why it cannot stand there. `now_ms`: the clock when the
    candidate was first seen; without it, the block's time is not compared with a clock.
    """
    try:
        block = decode_shard_block(payload)
    except DecodeError as error:
        return DeclinedCandidate(Rule.MALFORMED, error.text)
    view = views.get(block.master.seqno)
    fault = _fault_in_header(block, state, session_id, configuration, view, now_ms)
    if fault is not None:
        return fault
    assert view is not None, "a block without a known master block has a fault"
    try:
        messages = [read_message(data, takes_cells=configuration.takes_cells) for data in block.messages]
    except DecodeError as error:
        return DeclinedCandidate(Rule.BAD_MESSAGE, error.text)
    fault = _fault_in_order(block, messages)
    if fault is not None:
        return fault
    execution = Execution(state, configuration, view, block.time_ms)
    for message in messages:
        fault = execution.take(message)
        if fault is not None:
            return fault
    after = execution.finished()
    if after.hash != block.state_hash:
        return DeclinedCandidate(
            Rule.WRONG_STATE,
            f"its messages lead to the state {after.hash.hex()}, it says {block.state_hash.hex()}",
        )
    return _applied(block, payload, after, messages, execution)


def dry_run(
    state: ShardState, configuration: Configuration, view: MasterView, message: ReadMessage, now_ms: int
) -> DryRun:
    """Execute a block with this message alone."""
    time_ms = max(now_ms, state.time_ms + 1, view.time_ms)
    execution = Execution(state, configuration, view, time_ms)
    fault = execution.take(message)
    return DryRun(fault.text) if fault is not None else DryRun(None, execution.fullness)


def _applied(
    block: ShardBlock,
    payload: bytes,
    after: ShardState,
    messages: Sequence[ReadMessage],
    execution: Execution,
) -> AppliedBlock:
    block_id = block.block_id(payload)
    return AppliedBlock(
        block_id,
        block,
        payload,
        msgspec.structs.replace(after, previous=(block_id,)),
        tuple(message.external for message in messages),
        tuple(execution.transfers),
        execution.weight,
    )


def _report(block_id: BlockId, fault: DeclinedCandidate | None) -> Report:
    if fault is None:
        return ExecutedMessage(block_id)
    return SkippedMessage(block_id) if fault.rule in STAYS_IN_QUEUE else RefusedMessage(block_id, fault.text)


def _fault_in_header(
    block: ShardBlock,
    state: ShardState,
    session_id: bytes,
    configuration: Configuration,
    view: MasterView | None,
    now_ms: int | None,
) -> DeclinedCandidate | None:
    if block.session_id != session_id:
        return DeclinedCandidate(
            Rule.WRONG_SESSION, f"it is of session {block.session_id.hex()}, not of {session_id.hex()}"
        )
    if block.shard != state.shard:
        return DeclinedCandidate(
            Rule.WRONG_SHARD, f"it is of shard {block.shard.prefix:016x}, not of {state.shard.prefix:016x}"
        )
    if block.ordering is not configuration.ordering:
        return DeclinedCandidate(
            Rule.BAD_ORDER, f"it is ordered by {block.ordering.name}, not by {configuration.ordering.name}"
        )
    if block.previous != state.previous or block.seqno != state.seqno + 1:
        return DeclinedCandidate(
            Rule.WRONG_PARENT,
            f"it has number {block.seqno} and stands upon {_names(block.previous)}; "
            f"{state.seqno + 1} upon {_names(state.previous)} was asked for",
        )
    if view is None or view.block_id != block.master:
        return DeclinedCandidate(
            Rule.UNKNOWN_MASTER, f"it refers to master block {block.master.seqno}, which is not final here"
        )
    if block.master.seqno < state.master_seqno:
        return DeclinedCandidate(
            Rule.WRONG_PARENT,
            f"it refers to master block {block.master.seqno}, its parent to {state.master_seqno} already",
        )
    if session_id not in view.sessions:
        return DeclinedCandidate(
            Rule.WRONG_SESSION, f"its session has ended before master block {block.master.seqno}"
        )
    if block.time_ms <= state.time_ms or block.time_ms < view.time_ms:
        return DeclinedCandidate(
            Rule.WRONG_TIME,
            f"it is of {block.time_ms} ms; its parent is of {state.time_ms}, its master block of {view.time_ms}",
        )
    return fault_by_clock(block.time_ms, now_ms, configuration)


def fault_by_clock(
    time_ms: int, now_ms: int | None, configuration: Configuration
) -> DeclinedCandidate | None:
    """Return why a block of `time_ms` is not voted for when it is first seen at `now_ms`; None if it may be,
    or if no clock counts. Clocks only keep the chain's time near real time: nothing that a quorum has voted for
    is held against them, or everybody would stop after an outage.
    """
    behind_max_ms = configuration.behind_max_ms
    if now_ms is None or now_ms - behind_max_ms <= time_ms <= now_ms + CLOCK_AHEAD_MS_MAX:
        return None
    return DeclinedCandidate(
        Rule.WRONG_TIME,
        f"it is of {time_ms} ms, and it was {now_ms} when it was first seen here; at most {CLOCK_AHEAD_MS_MAX} ahead "
        f"and {behind_max_ms} behind is allowed",
    )


def _fault_in_order(block: ShardBlock, messages: Sequence[ReadMessage]) -> DeclinedCandidate | None:
    """Return a fault in the order by hash within each account; the queue checks its own order."""
    if block.ordering is not Ordering.HASH:
        return None
    last: dict[bytes, bytes] = {}
    for message in messages:
        external = message.external
        place = order_hash(block.previous, external.message_id)
        if place < last.get(external.account, b""):
            return DeclinedCandidate(
                Rule.BAD_ORDER, f"message {external.message_id.hex()} stands behind one that it goes before"
            )
        last[external.account] = place
    return None


def _names(block_ids: Sequence[BlockId]) -> str:
    return ", ".join(f"{one.seqno}:{one.root_hash.hex()[:16]}" for one in block_ids)
