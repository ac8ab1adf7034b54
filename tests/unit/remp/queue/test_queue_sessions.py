"""What a queue owes to sessions before and after it: ages, hearsay, blame, shards, and what full nodes were told."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import pytest

from stagepost.remp.message import ExternalMessage, Origin, header_of
from stagepost.remp.queue import message_cache
from stagepost.remp.queue.collation import ExecutedMessage
from stagepost.remp.queue.effects import BroadcastBody, Introduce, QueueEffect, Tell
from stagepost.remp.queue.message_cache import LET_GO_CATCHAINS, LifeWindow, MessageCache
from stagepost.remp.queue.records import (
    Digest,
    Header,
    Ids,
    Record,
    RejectRecord,
    Totals,
    decode_payload,
    encode_payload,
)
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.queue.session_switch import to_forward
from stagepost.remp.queue.state import QueueSession
from stagepost.remp.receipts.message_status import Accepted, Ignored, New, Rejected, kind_of
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId, Shard
from tests.worlds.remp.queue_world import message

FULL_NODE, OTHER_NODE = sha256(b"F").digest(), sha256(b"G").digest()
SEQNO = 10
BLOCK = BlockId(0, 1 << 63, 1, bytes([1]) * 32)
MASTER = BlockId(-1, 1 << 63, 3)
WHOLE = Shard(0, 1 << 63)
ONE, TWO = message(1), message(2)


def make_queue(
    *, seqno: int = SEQNO, cache: MessageCache | None = None, shard: Shard | None = None
) -> ReliableQueue:
    if cache is None:
        cache = MessageCache(LifeWindow())
        cache.advance(seqno, 0)
    return ReliableQueue(QueueSession(seqno, 0, frozenset(range(4)), 4, shard), cache)


def told(effects: Sequence[QueueEffect]) -> list[str]:
    return [kind_of(effect.status).name for effect in effects if isinstance(effect, Tell)]


def hear(queue: ReliableQueue, source: int, *said: Record, now: float = 0.0) -> list[QueueEffect]:
    return queue.block_delivered(source, encode_payload([Totals(), *said], 0), now)


def said(queue: ReliableQueue) -> list[Record]:
    """In our next block, which we hear ourselves."""
    payload = queue.next_payload(0.0)
    if payload is None:
        return []
    queue.block_delivered(queue.session.index, payload, 0.0)
    totals, *others = decode_payload(payload)
    assert isinstance(totals, Totals)
    return others


def take(queue: ReliableQueue, now: float, count: int) -> list[ExternalMessage]:
    """After a block of ours: what nobody has announced is not taken."""
    said(queue)
    return queue.take(now, count)[0]


def header(one: ExternalMessage, *, seqno: int = SEQNO, node: bytes = FULL_NODE) -> Header:
    return header_of(one, Origin(node, 3, 5), seqno)


def ids(*ones: ExternalMessage) -> tuple[Ids, ...]:
    return tuple(Ids(one.message_id, one.uid) for one in ones)


# Ages


def test_a_message_lives_from_the_catchain_that_is_present_when_it_comes() -> None:
    queue = make_queue()
    queue.cache.advance(SEQNO + 2, 10_000)
    queue.offer(ONE, FULL_NODE, 11.0)
    (record,) = said(queue)
    assert isinstance(record, Header)
    assert record.masterchain_seqno == SEQNO + 2, "the session is older than that"
    assert queue.cache.advance(SEQNO + 3, 20_000).total == 0
    assert queue.cache.advance(SEQNO + 4, 30_000).total == 1


@pytest.mark.parametrize("order", [(SEQNO, SEQNO + 1), (SEQNO + 1, SEQNO)])
def test_of_two_announcements_the_later_catchain_counts_whoever_was_heard_first(
    order: tuple[int, int],
) -> None:
    queue = make_queue()
    for source, seqno in enumerate(order, start=1):
        hear(queue, source, header(ONE, seqno=seqno))
    queue.lives_over(queue.cache.advance(SEQNO + 2, 10_000).messages, 10.0)
    assert queue.known_ids == {ONE.message_id}
    queue.lives_over(queue.cache.advance(SEQNO + 3, 20_000).messages, 20.0)
    assert queue.known_ids == frozenset()


def test_what_is_final_is_remembered_from_its_master_block_on() -> None:
    queue = make_queue()
    queue.offer(ONE, FULL_NODE, 0.0)
    queue.cache.advance(SEQNO + 1, 10_000)
    queue.master_committed(BLOCK, MASTER, [ONE], 11.0)
    queue.cache.advance(SEQNO + 2, 20_000)
    # Somebody announces it again: everybody still knows that it stands in the chain.
    hear(queue, 2, header(ONE, seqno=SEQNO + 2))
    assert take(queue, 21.0, 10) == []
    assert queue.status(ONE.message_id) == Accepted(Level.MASTERCHAIN, BLOCK, MASTER)


def test_a_master_block_that_rotates_counts_for_the_catchain_that_it_begins() -> None:
    queue = make_queue()
    queue.master_committed(BLOCK, MASTER, [ONE], 1.0, masterchain_seqno=SEQNO + 1)
    queue.cache.advance(SEQNO + 2, 20_000)
    assert queue.status(ONE.message_id) is not None
    queue.cache.advance(SEQNO + 3, 30_000)
    assert queue.status(ONE.message_id) is None


def test_full_nodes_hear_no_more_of_what_they_were_told_is_over() -> None:
    queue = make_queue()
    assert told(hear(queue, 1, header(ONE))) == ["PutIntoQueue"]
    gone = queue.cache.advance(SEQNO + 2, 10_000)
    assert told(queue.lives_over(gone.messages, 10.0)) == ["Timeout"]
    assert told(hear(queue, 2, header(ONE, seqno=SEQNO + 1))) == []
    assert queue.known_ids == {ONE.message_id}, "it lives again, as with all others"
    assert queue.cache.was_let_go(ONE.message_id)
    for seqno in range(SEQNO + 3, SEQNO + 4):
        queue.lives_over(queue.cache.advance(seqno, 20_000).messages, 20.0)
    last = SEQNO + 3 + LET_GO_CATCHAINS
    queue.lives_over(queue.cache.advance(last, 20_000).messages, 20.0)
    assert queue.cache.was_let_go(ONE.message_id)
    assert told(hear(queue, 2, header(ONE, seqno=last))) == [], "a liar announces it anew"
    queue.cache.advance(last + LET_GO_CATCHAINS + 3, 30_000)
    queue.cache.advance(last + 2 * LET_GO_CATCHAINS + 4, 40_000)
    assert not queue.cache.was_let_go(ONE.message_id), "nothing is kept for ever"


def test_what_is_final_and_forgotten_is_not_told_as_new_when_a_liar_announces_it_again() -> None:
    queue = make_queue()
    hear(queue, 1, header(ONE))
    queue.shard_committed(BLOCK, [ONE.message_id], 1.0)
    queue.master_committed(BLOCK, MASTER, [ONE], 1.0)
    queue.lives_over(queue.cache.advance(SEQNO + 3, 10_000).messages, 10.0)
    assert queue.status(ONE.message_id) is None
    assert told(hear(queue, 2, header(ONE, seqno=SEQNO + 3))) == []


def test_messages_that_are_over_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_cache, "LET_GO_MAX", 2)
    cache = make_queue().cache
    cache.note_let_go([bytes([number]) * 32 for number in range(2)])
    cache.advance(SEQNO + 1, 1_000)
    assert cache.was_let_go(bytes(32)), "so many fit"
    cache.note_let_go([bytes([2]) * 32])
    cache.advance(SEQNO + 2, 2_000)
    assert not cache.was_let_go(bytes(32))
    assert cache.was_let_go(bytes([2]) * 32), "those of the oldest catchain go first"


def test_votes_outlive_a_message_that_another_announces_later() -> None:
    queue = make_queue()
    hear(queue, 1, header(ONE), RejectRecord(ONE.message_id, ONE.uid, SEQNO, "no"))
    queue.lives_over(queue.cache.advance(SEQNO + 2, 10_000).messages, 10.0)
    hear(queue, 2, header(ONE, seqno=SEQNO + 1))
    assert queue.rejected_by(ONE.message_id) == {1}


# Further full nodes


def test_a_further_full_node_hears_of_it_from_the_beginning() -> None:
    queue = make_queue()
    queue.offer(ONE, FULL_NODE, 0.0)
    take(queue, 0.0, 10)
    introduced = queue.offer(ONE, OTHER_NODE, 1.0)
    assert introduced == [Introduce(OTHER_NODE, ONE.message_id, (New(),))], (
        "what the collator took is in the queue"
    )
    queue.collated([(ONE.message_id, ExecutedMessage(BLOCK))], 1.0)
    third = sha256(b"H").digest()
    statuses = New(), Accepted(Level.COLLATOR, BLOCK)
    assert hear(queue, 2, header(ONE, node=third)) == [Introduce(third, ONE.message_id, statuses)]


def test_what_was_returned_is_in_the_queue_for_a_further_full_node() -> None:
    queue = make_queue()
    queue.offer(ONE, FULL_NODE, 0.0)
    queue.candidate_seen(BLOCK, [ONE.message_id], 1.0)
    queue.candidate_lost(BLOCK, 2.0)
    assert queue.offer(ONE, OTHER_NODE, 3.0) == [Introduce(OTHER_NODE, ONE.message_id, (New(),))]


# Hearsay


def test_hearsay_does_not_silence_what_a_full_node_hands_over() -> None:
    queue = make_queue()
    hear(queue, 3, Digest(SEQNO, ids(ONE), ids(TWO)))
    for one in (ONE, TWO):
        assert told(queue.offer(one, FULL_NODE, 1.0)) == ["IgnoredByQueue", "PutIntoQueue"]
        assert queue.status(one.message_id) == Ignored(Level.QUEUE)
    records = said(queue)
    assert [type(record) for record in records] == [Header, Header]
    assert {record.account for record in records if isinstance(record, Header)} == {ONE.account, TWO.account}
    assert {record.source_key_id for record in records if isinstance(record, Header)} == {FULL_NODE}
    assert len(take(queue, 2.0, 10)) == 2


def test_what_an_announcement_says_takes_the_place_of_hearsay() -> None:
    queue = make_queue()
    hear(queue, 3, Digest(SEQNO, ids(ONE)))
    hear(queue, 2, header(ONE))
    queue.body_came(ONE, 1.0)
    following = to_forward(queue, SEQNO + 1, WHOLE, lambda _: False)
    assert following.records == (header(ONE),)


def test_what_only_a_blamed_member_called_processed_is_forgotten() -> None:
    queue = make_queue()
    hear(queue, 3, Digest(SEQNO, ids(ONE, TWO)))
    hear(queue, 2, Digest(SEQNO, ids(TWO)))
    queue.member_blamed(3, 1.0)
    assert queue.known_ids == {TWO.message_id}
    assert queue.status(ONE.message_id) is None
    hear(queue, 3, Digest(SEQNO, ids(ONE)))
    assert queue.known_ids == {TWO.message_id}, "nor is it believed later"


def test_blame_takes_nothing_away_that_is_ours() -> None:
    queue = make_queue()
    queue.offer(ONE, FULL_NODE, 0.0)
    hear(queue, 3, Digest(SEQNO, ids(ONE)))
    queue.member_blamed(3, 1.0)
    assert queue.known_ids == {ONE.message_id}


def test_a_blamed_member_announces_nothing_in_vain() -> None:
    queue = make_queue()
    queue.member_blamed(0, 0.0)
    queue.member_blamed(3, 0.0)
    hear(queue, 3, header(ONE))
    assert said(queue) == []


def test_what_we_knew_and_others_call_processed_is_handed_on_from_here_too() -> None:
    first = make_queue()
    first.offer(ONE, FULL_NODE, 0.0)
    first.master_committed(BLOCK, MASTER, [ONE], 1.0)
    second = make_queue(cache=first.cache)
    hear(second, 3, Digest(SEQNO, (), ids(ONE)))
    assert second.known_ids == {ONE.message_id}
    assert to_forward(second, SEQNO + 1, WHOLE, lambda _: False).records == (Digest(SEQNO, (), ids(ONE)),)


@pytest.mark.parametrize("older", [ONE, TWO])
def test_a_message_that_another_queue_opened_has_its_age_here(older: ExternalMessage) -> None:
    """Order by age, after a restart, messages that this queue knows from digests and an earlier one by header."""
    earlier = make_queue()
    later = make_queue(cache=earlier.cache)
    hear(later, 3, Digest(SEQNO, ids(ONE, TWO)))
    for one in (ONE, TWO):
        at_ms = 3 if one is older else 4
        hear(earlier, 2, header_of(one, Origin(FULL_NODE, 3, at_ms), SEQNO))
        earlier.body_came(one, 1.0)
    assert later.take(2.0, 10)[0] == [older, TWO if older is ONE else ONE]


# The switch


def test_a_queue_that_ends_sets_free_what_waited_for_its_blocks() -> None:
    queue = make_queue()
    for one in (ONE, TWO):
        queue.offer(one, FULL_NODE, 0.0)
    (taken,) = take(queue, 0.0, 1)
    other = TWO if taken is ONE else ONE
    queue.candidate_seen(BLOCK, [other.message_id], 1.0)
    assert told(queue.session_ended(2.0)) == ["IgnoredByShardchain", "PutIntoQueue"]
    assert {one.message_id for one in take(queue, 3.0, 10)} == {ONE.message_id, TWO.message_id}


def test_what_was_handed_on_stands_in_the_next_queue_before_any_block_tells_of_it() -> None:
    first = make_queue()
    first.offer(ONE, FULL_NODE, 0.0)
    handed = to_forward(first, SEQNO, WHOLE, lambda _: False)
    second = make_queue(cache=first.cache)
    effects = second.forward_into(handed.records, handed.bodies, 1.0)
    assert BroadcastBody(ONE.message_id, ONE.body) in effects
    assert second.known_ids == {ONE.message_id}
    again = to_forward(second, SEQNO, WHOLE, lambda _: False)
    assert again.bodies == (ONE,), "also if this session ends at once"


def test_handing_on_a_second_time_says_only_what_is_new() -> None:
    first = make_queue()
    first.offer(ONE, FULL_NODE, 0.0)
    first.offer(TWO, FULL_NODE, 0.0)
    first.master_committed(BLOCK, MASTER, [TWO], 1.0)
    second = make_queue(cache=first.cache)
    handed = to_forward(first, SEQNO, WHOLE, second.known_ids.__contains__)
    second.forward_into(handed.records, handed.bodies, 1.0)
    later = message(3)
    hear(first, 2, header(later))
    first.body_came(later, 2.0)
    again = to_forward(first, SEQNO, WHOLE, second.known_ids.__contains__)
    assert again.records == (header(later),)


def test_what_another_drops_from_our_queue_is_announced_again_if_that_one_is_blamed() -> None:
    first = make_queue()
    first.offer(ONE, FULL_NODE, 0.0)
    second = make_queue(cache=first.cache)
    handed = to_forward(first, SEQNO, WHOLE, lambda _: False)
    second.forward_into(handed.records, handed.bodies, 1.0)
    hear(second, 3, header(ONE))
    assert said(second) == [], "somebody else has said it"
    second.member_blamed(3, 2.0)
    assert [type(record) for record in said(second)] == [Header]


# Shards


def test_a_queue_collates_for_its_own_shard_alone() -> None:
    left, right = WHOLE.children
    ones = [message(number) for number in range(12)]
    queue = make_queue(shard=left)
    for one in ones:
        queue.offer(one, FULL_NODE, 0.0)
    foreign = next(one for one in ones if right.holds(0, one.account))
    assert "another shard" in (queue.check_candidate([foreign.message_id]) or "")
    taken = take(queue, 1.0, 20)
    assert taken
    assert all(left.holds(0, one.account) for one in taken)


def test_digests_go_to_the_child_that_holds_the_account() -> None:
    ones = [message(number) for number in range(12)]
    queue = make_queue()
    for one in ones:
        queue.offer(one, FULL_NODE, 0.0)
    queue.master_committed(BLOCK, MASTER, ones, 1.0)
    for child in WHOLE.children:
        (digest,) = to_forward(queue, SEQNO + 1, child, lambda _: False).records
        assert isinstance(digest, Digest)
        assert {one.message_id for one in digest.accepted} == {
            one.message_id for one in ones if child.holds(0, one.account)
        }


def test_hearsay_without_an_account_goes_to_both_children() -> None:
    queue = make_queue()
    hear(queue, 3, Digest(SEQNO, ids(ONE)))
    assert queue.status(ONE.message_id) == Rejected(Level.QUEUE, "rejected in an earlier session")
    for child in WHOLE.children:
        assert to_forward(queue, SEQNO + 1, child, lambda _: False).records == (Digest(SEQNO, ids(ONE)),)
