"""The validator's state machine: every row of the table, and that nothing else changes anything."""

from __future__ import annotations

import pytest

from stagepost.remp.queue.message_states import (
    BELOW_SHARD,
    CLOSED,
    COLLATABLE,
    FINAL,
    OPEN,
    RULES,
    Event,
    after,
    is_collatable,
    is_open,
    place_of,
)
from stagepost.remp.receipts.message_status import (
    Accepted,
    Duplicate,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    Timeout,
    kind_of,
)
from stagepost.remp.receipts.status import Level, is_legal_step
from stagepost.remp.shard import BlockId

B, OTHER, M = BlockId(0, 1 << 63, 5), BlockId(0, 1 << 63, 6), BlockId(-1, 1 << 63, 7)
NEW = New()
TAKEN = Accepted(Level.QUEUE)
INCLUDED = Accepted(Level.COLLATOR, B)
IN_SHARD = Accepted(Level.SHARDCHAIN, B)
IN_MASTER = Accepted(Level.MASTERCHAIN, B, M)
BACK = Ignored(Level.COLLATOR, B)
REJECTED = Rejected(Level.COLLATOR, "no", B)
EVERY: list[MessageStatus] = [
    NEW, TAKEN, INCLUDED, IN_SHARD, IN_MASTER, Duplicate(B), Timeout(),
    *(Ignored(level, B) for level in list(Level)[1:]), *(Rejected(level, "no", B) for level in list(Level)[1:]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "event", "expected"),
    [
        (NEW, Event.TAKEN_BY_COLLATOR, TAKEN),
        (BACK, Event.TAKEN_BY_COLLATOR, Accepted(Level.QUEUE, B)),
        (NEW, Event.UID_IS_TAKEN, Rejected(Level.QUEUE, "why")),
        (BACK, Event.OVERLOAD, Rejected(Level.QUEUE, "why", B)),
        (TAKEN, Event.OVERLOAD, Rejected(Level.QUEUE, "why")),
        (NEW, Event.LIFE_OVER, Timeout()),
        (INCLUDED, Event.LIFE_OVER, Timeout()),
        (Duplicate(B), Event.LIFE_OVER, Timeout()),
        (TAKEN, Event.REFUSED_BY_CONTRACT, Rejected(Level.COLLATOR, "why")),
        (TAKEN, Event.LEFT_OUT, Ignored(Level.COLLATOR)),
        (INCLUDED, Event.SHARD_COMMITTED, IN_SHARD),
        (NEW, Event.SHARD_COMMITTED, Accepted(Level.SHARDCHAIN)),
        (Duplicate(B), Event.SHARD_COMMITTED, IN_SHARD),
        (INCLUDED, Event.OTHER_COMMITTED, Ignored(Level.SHARDCHAIN, B)),
        (INCLUDED, Event.SEEN_IN_CANDIDATE, Duplicate(B)),
        (Duplicate(B), Event.CANDIDATE_LOST, Ignored(Level.SHARDCHAIN, B)),
        (Duplicate(B), Event.CANDIDATE_REFUSED, Ignored(Level.SHARDCHAIN, B)),
        (INCLUDED, Event.CANDIDATE_REFUSED, Ignored(Level.SHARDCHAIN, B)),
        (INCLUDED, Event.REPLAY_FOUND, Rejected(Level.SHARDCHAIN, "why", B)),
        (IN_SHARD, Event.DROPPED_BY_MASTER, Ignored(Level.MASTERCHAIN, B)),
        (NEW, Event.FORWARDED, Ignored(Level.COLLATOR)),
        (INCLUDED, Event.FORWARDED, Ignored(Level.SHARDCHAIN, B)),
        (IN_SHARD, Event.FORWARDED, Ignored(Level.MASTERCHAIN, B)),
        (NEW, Event.MOST_REJECT, Rejected(Level.QUEUE, "why")),
    ],
)
def test_an_event_leads_where_the_table_says(
    before: MessageStatus, event: Event, expected: MessageStatus
) -> None:
    change = after(before, event, error="why")
    assert change is not None
    assert change.status == expected


def test_a_new_block_takes_the_place_of_the_old_one() -> None:
    change = after(Duplicate(B), Event.SHARD_COMMITTED, block_id=OTHER)
    assert change is not None
    assert change.status == Accepted(Level.SHARDCHAIN, OTHER)


@pytest.mark.parametrize("before", EVERY, ids=lambda status: kind_of(status).name)
def test_the_masterchain_has_the_last_word_and_nothing_leaves_it(before: MessageStatus) -> None:
    change = after(before, Event.MASTER_COMMITTED, block_id=B, master_id=M)
    if before == IN_MASTER:
        assert change is None
    else:
        assert change is not None
        assert change.status == IN_MASTER
        assert change.told == (), "the full node tells of it, once"
    assert all(after(IN_MASTER, event) is None for event in Event)


@pytest.mark.parametrize("before", [Timeout(), REJECTED, Rejected(Level.QUEUE, "no")])
def test_what_is_closed_is_changed_by_nothing_but_the_masterchain(before: MessageStatus) -> None:
    assert [event for event in Event if after(before, event)] == [Event.MASTER_COMMITTED]


def test_a_step_back_is_told_and_so_is_the_new_entry_into_the_queue() -> None:
    change = after(TAKEN, Event.LEFT_OUT, block_id=B)
    assert change is not None
    assert change.told == (Ignored(Level.COLLATOR, B), NEW)


def test_that_the_collator_took_it_is_told_to_nobody() -> None:
    change = after(NEW, Event.TAKEN_BY_COLLATOR)
    assert change is not None
    assert change.told == ()


@pytest.mark.parametrize("before", EVERY, ids=lambda status: kind_of(status).name)
def test_what_is_told_is_always_a_legal_step(before: MessageStatus) -> None:
    """From what a full node heard last, where it heard of the state at all."""
    for event in Event:
        change = after(before, event, block_id=OTHER, error="why")
        if change is None or not change.told:
            continue
        # A full node hears of no taking, so what it heard last is that the message is in the queue.
        heard = kind_of(NEW if before == TAKEN or is_collatable(before) else before)
        for status in change.told:
            assert kind_of(status).is_emitted, "it is read and understood, but never said"
            assert is_legal_step(heard, kind_of(status)), (kind_of(before).name, event)
            heard = kind_of(status)


def test_the_groups_of_states_hang_together() -> None:
    assert COLLATABLE < BELOW_SHARD < OPEN
    assert not OPEN & CLOSED
    assert FINAL not in OPEN | CLOSED
    assert {place_of(status) for status in EVERY} == OPEN | CLOSED | {FINAL}
    assert is_open(NEW)
    assert not is_open(Timeout())
    assert {rule.event for rule in RULES} == set(Event)
