"""The states of one message at a validator, and how events change them: the state machine, as data.

Only some changes are reported to the full node. A step back (Ignored) puts the message into the queue again,
and that is reported as well, so that every PutIntoQueue is followed by something that closes it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from stagepost.remp.receipts.message_status import (
    Accepted,
    Duplicate,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    Timeout,
    block_of,
)
from stagepost.remp.receipts.status import Level, Status
from stagepost.remp.shard import UNKNOWN_BLOCK, BlockId

Place = tuple[Status, Level]

IN_QUEUE: Place = (Status.NEW, Level.QUEUE)
TAKEN: Place = (Status.ACCEPTED, Level.QUEUE)
INCLUDED: Place = (Status.ACCEPTED, Level.COLLATOR)
IN_SHARD: Place = (Status.ACCEPTED, Level.SHARDCHAIN)
FINAL: Place = (Status.ACCEPTED, Level.MASTERCHAIN)
ELSEWHERE: Place = (Status.DUPLICATE, Level.QUEUE)
OUT_OF_TIME: Place = (Status.TIMEOUT, Level.QUEUE)
RETURNED = frozenset(
    (Status.IGNORED, level) for level in (Level.QUEUE, Level.COLLATOR, Level.SHARDCHAIN, Level.MASTERCHAIN)
)
REFUSED = frozenset(
    (Status.REJECTED, level) for level in (Level.QUEUE, Level.COLLATOR, Level.SHARDCHAIN, Level.MASTERCHAIN)
)
COLLATABLE = RETURNED | {IN_QUEUE}
BELOW_SHARD = COLLATABLE | {TAKEN, INCLUDED, ELSEWHERE}
OPEN = BELOW_SHARD | {IN_SHARD}
CLOSED = REFUSED | {OUT_OF_TIME}
ENTERING = frozenset({IN_QUEUE, (Status.IGNORED, Level.QUEUE)})
"""Statuses with which a message enters a queue."""


class Event(Enum):
    TAKEN_BY_COLLATOR = "taken by the collator"
    UID_IS_TAKEN = "its body was accepted before, or belongs to a smaller id"
    OVERLOAD = "the queue is full"
    LIFE_OVER = "its life is over"
    EXECUTED = "executed, in a candidate"
    REFUSED_BY_CONTRACT = "refused by contract or executor"
    LEFT_OUT = "left out of the block"
    SHARD_COMMITTED = "a shard block with it is committed"
    OTHER_COMMITTED = "another block stands in its block's place"
    SEEN_IN_CANDIDATE = "found in somebody else's candidate"
    CANDIDATE_LOST = "that candidate came to nothing"
    CANDIDATE_REFUSED = "its candidate was refused by validators"
    REPLAY_FOUND = "validators refused a candidate because of it"
    MASTER_COMMITTED = "a master block commits it"
    DROPPED_BY_MASTER = "its shard block was dropped by the masterchain"
    FORWARDED = "forwarded into a new session"
    MOST_REJECT = "two thirds of the validators have refused it"


class PlaceRule(NamedTuple):
    sources: frozenset[Place]
    event: Event
    target: Place
    is_told: bool = True


_ALL = OPEN | CLOSED
RULES: tuple[PlaceRule, ...] = (
    PlaceRule(COLLATABLE, Event.TAKEN_BY_COLLATOR, TAKEN, is_told=False),
    PlaceRule(COLLATABLE, Event.UID_IS_TAKEN, (Status.REJECTED, Level.QUEUE)),
    PlaceRule(COLLATABLE | {TAKEN}, Event.OVERLOAD, (Status.REJECTED, Level.QUEUE)),
    PlaceRule(BELOW_SHARD, Event.LIFE_OVER, OUT_OF_TIME),
    PlaceRule(frozenset({TAKEN}), Event.EXECUTED, INCLUDED),
    PlaceRule(frozenset({TAKEN}), Event.REFUSED_BY_CONTRACT, (Status.REJECTED, Level.COLLATOR)),
    PlaceRule(frozenset({TAKEN}), Event.LEFT_OUT, (Status.IGNORED, Level.COLLATOR)),
    PlaceRule(BELOW_SHARD, Event.SHARD_COMMITTED, IN_SHARD),
    PlaceRule(frozenset({INCLUDED}), Event.OTHER_COMMITTED, (Status.IGNORED, Level.SHARDCHAIN)),
    PlaceRule(BELOW_SHARD - {ELSEWHERE}, Event.SEEN_IN_CANDIDATE, ELSEWHERE),
    PlaceRule(frozenset({ELSEWHERE}), Event.CANDIDATE_LOST, (Status.IGNORED, Level.SHARDCHAIN)),
    PlaceRule(frozenset({INCLUDED, ELSEWHERE}), Event.CANDIDATE_REFUSED, (Status.IGNORED, Level.SHARDCHAIN)),
    PlaceRule(BELOW_SHARD, Event.REPLAY_FOUND, (Status.REJECTED, Level.SHARDCHAIN)),
    PlaceRule(frozenset({IN_SHARD}), Event.DROPPED_BY_MASTER, (Status.IGNORED, Level.MASTERCHAIN)),
    PlaceRule(frozenset({IN_QUEUE, TAKEN, ELSEWHERE}), Event.FORWARDED, (Status.IGNORED, Level.COLLATOR)),
    PlaceRule(frozenset({INCLUDED}), Event.FORWARDED, (Status.IGNORED, Level.SHARDCHAIN)),
    PlaceRule(frozenset({IN_SHARD}), Event.FORWARDED, (Status.IGNORED, Level.MASTERCHAIN)),
    PlaceRule(COLLATABLE, Event.MOST_REJECT, (Status.REJECTED, Level.QUEUE)),
    # The masterchain has the last word. The full node itself reports it, once, so validators do not.
    PlaceRule(_ALL, Event.MASTER_COMMITTED, FINAL, is_told=False),
)

_TABLE = {(source, rule.event): rule for rule in RULES for source in rule.sources}


def place_of(status: MessageStatus) -> Place:
    return status.status, status.level


class Change(NamedTuple):
    status: MessageStatus
    told: tuple[MessageStatus, ...]
    """Statuses to report to the full node, in order."""


def after(
    status: MessageStatus,
    event: Event,
    *,
    block_id: BlockId | None = None,
    master_id: BlockId = UNKNOWN_BLOCK,
    error: str = "",
) -> Change | None:
    """Return the change that `event` makes to `status`; None if it changes nothing.

    Without `block_id` the new status names the same block as `status`.
    """
    rule = _TABLE.get((place_of(status), event))
    if rule is None:
        return None
    block = block_of(status) if block_id is None else block_id
    changed = _status_at(rule.target, block, master_id, error)
    if not rule.is_told:
        return Change(changed, ())
    if changed.status is Status.IGNORED:
        return Change(changed, (changed, New()))
    return Change(changed, (changed,))


def _status_at(place: Place, block: BlockId, master: BlockId, error: str) -> MessageStatus:
    status, level = place
    match status:
        case Status.ACCEPTED:
            return Accepted(level, block, master)
        case Status.REJECTED:
            return Rejected(level, error, block)
        case Status.IGNORED:
            return Ignored(level, block)
        case Status.DUPLICATE:
            return Duplicate(block)
        case Status.TIMEOUT:
            return Timeout()
        case _:
            return New()


def is_collatable(status: MessageStatus) -> bool:
    return place_of(status) in COLLATABLE


def is_open(status: MessageStatus) -> bool:
    return place_of(status) in OPEN
