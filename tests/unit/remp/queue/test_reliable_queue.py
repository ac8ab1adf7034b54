"""One validator's queue: what it announces, tells, takes, forwards and lets go."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import pytest

from stagepost.remp.message import ExternalMessage, Origin, header_of
from stagepost.remp.queue.collation import (
    TWIN_GOES_FIRST,
    ExecutedMessage,
    RefusedMessage,
    Report,
    SkippedMessage,
    UnusedMessage,
)
from stagepost.remp.queue.effects import AskForBody, BroadcastBody, Introduce, QueueEffect, SpeakSoon, Tell
from stagepost.remp.queue.message_cache import LifeWindow, MessageCache
from stagepost.remp.queue.records import (
    ERROR_TEXT_BYTES_MAX,
    Accept,
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
from stagepost.remp.queue.session_switch import Shard, to_forward
from stagepost.remp.queue.state import QueueOptions, QueueSession
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
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from tests.worlds.remp.queue_world import message

FULL_NODE, OTHER_NODE = sha256(b"F").digest(), sha256(b"G").digest()
SEQNO = 10
B1, B2 = BlockId(0, 1 << 63, 1), BlockId(0, 1 << 63, 1, bytes([2]) * 32)
MASTER = BlockId(-1, 1 << 63, 3)
WHOLE = Shard(0, 1 << 63)


def make_queue(
    *,
    size: int = 7,
    seqno: int = SEQNO,
    cache: MessageCache | None = None,
    options: QueueOptions | None = None,
) -> ReliableQueue:
    if cache is None:
        window = LifeWindow()
        window.advance(seqno, 0)
        cache = MessageCache(window)
    return ReliableQueue(QueueSession(seqno, 0, frozenset(range(size)), size), cache, options)


def told(effects: Sequence[QueueEffect]) -> list[str]:
    return [kind_of(effect.status).name for effect in effects if isinstance(effect, Tell)]


def records(queue: ReliableQueue) -> list[Record]:
    """Of our next block, which we hear ourselves."""
    payload = queue.next_payload(0.0)
    if payload is None:
        return []
    queue.block_delivered(queue.session.index, payload, 0.0)
    totals, *others = decode_payload(payload)
    assert isinstance(totals, Totals)
    return others


def hear(queue: ReliableQueue, source: int, *said: Record, now: float = 0.0) -> list[QueueEffect]:
    return queue.block_delivered(source, encode_payload([Totals(), *said], 0), now)


def header(one: ExternalMessage, *, seqno: int = SEQNO, at_ms: int = 5, node: bytes = FULL_NODE) -> Header:
    return header_of(one, Origin(node, 3, at_ms), seqno)


def take(queue: ReliableQueue, count: int = 100) -> list[ExternalMessage]:
    """What is announced, that is everything: there is time for a block of ours before."""
    records(queue)
    return queue.take(0.0, count)[0]


ONE, TWO = message(1), message(2)


# Receiving


def test_a_full_nodes_message_is_announced_broadcast_and_receipted() -> None:
    queue = make_queue()
    effects = queue.offer(ONE, FULL_NODE, 5.0)
    assert told(effects) == ["PutIntoQueue"]
    assert [type(effect) for effect in effects if not isinstance(effect, Tell)] == [SpeakSoon, BroadcastBody]
    (record,) = records(queue)
    assert isinstance(record, Header)
    assert (record.message_id, record.timestamp_ms, record.source_key_id) == (
        ONE.message_id,
        5_000,
        FULL_NODE,
    )
    assert queue.known_ids == {ONE.message_id}


def test_the_same_message_again_is_no_news_but_another_full_node_hears_how_far_it_is() -> None:
    queue = make_queue()
    queue.offer(ONE, FULL_NODE, 0.0)
    records(queue)
    assert queue.offer(ONE, FULL_NODE, 1.0) == []
    assert queue.offer(ONE, OTHER_NODE, 1.0) == [Introduce(OTHER_NODE, ONE.message_id, (New(),))]
    take(queue)
    effects = queue.collated([(ONE.message_id, ExecutedMessage(B1))], 2.0)
    assert {effect.full_node for effect in effects if isinstance(effect, Tell)} == {FULL_NODE, OTHER_NODE}


def test_what_another_validator_announced_first_is_not_announced_again() -> None:
    queue = make_queue()
    queue.offer(ONE, FULL_NODE, 0.0)
    hear(queue, 3, header(ONE))
    assert records(queue) == []


def test_a_header_without_body_makes_us_ask_its_author_then_others() -> None:
    queue = make_queue(size=4)
    effects = hear(queue, 3, header(ONE))
    assert told(effects) == ["PutIntoQueue"]
    assert AskForBody(3, ONE.message_id) in effects
    assert take(queue) == []
    assert queue.tick(1.9) == []
    assert queue.next_wake == 2.0
    asked = [queue.tick(at)[0] for at in (2.0, 4.0)]
    assert asked == [AskForBody(1, ONE.message_id), AskForBody(2, ONE.message_id)]
    assert queue.open_count == 1
    assert queue.tick(5.0) == []
    assert queue.open_count == 0, "nobody has its body"
    assert queue.tick(7.0) == [AskForBody(3, ONE.message_id)], "it is still asked for, seldom"
    queue.body_came(ONE, 7.0)
    assert queue.open_count == 1
    assert queue.tick(8.0) == []
    assert take(queue) == [ONE]


def test_nobody_asks_for_the_zero_id() -> None:
    queue = make_queue()
    nothing = header(ONE)
    zero = Header(bytes(32), *[getattr(nothing, name) for name in nothing.__struct_fields__[1:]])
    assert not any(isinstance(effect, AskForBody) for effect in hear(queue, 3, zero))


def test_a_body_of_which_nobody_has_spoken_is_kept_out() -> None:
    queue = make_queue()
    assert queue.body_came(ONE, 0.0) == []
    assert len(queue.cache) == 0


def test_a_payload_that_cannot_be_understood_says_nothing() -> None:
    queue = make_queue()
    assert queue.block_delivered(3, b"nonsense", 0.0) == []
    payload = encode_payload([Totals(), header(ONE)], 0) + b"x"
    assert queue.block_delivered(3, payload, 0.0) == []
    assert queue.known_ids == frozenset()


def test_a_payload_without_date_and_totals_says_nothing() -> None:
    queue = make_queue()
    for said in ([header(ONE)], []):
        queue.block_delivered(3, encode_payload(said, 0), 0.0)
    assert queue.known_ids == frozenset()


def test_a_full_queue_refuses_what_comes_and_says_so() -> None:
    queue = make_queue(options=QueueOptions(messages_max=1))
    queue.offer(ONE, FULL_NODE, 0.0)
    assert told(queue.offer(TWO, FULL_NODE, 0.0)) == ["RejectedByQueue"]
    assert TWO.message_id not in queue.known_ids
    third = message(3)
    queue.candidate_seen(B1, [ONE.message_id], 0.0)
    assert told(hear(queue, 3, header(third))) == ["RejectedByQueue"], "a candidate holds the only other one"
    queue.shard_committed(B1, [ONE.message_id], 1.0)
    assert told(queue.offer(TWO, FULL_NODE, 1.0)) == ["PutIntoQueue"]


def test_what_only_a_blamed_member_announced_is_announced_by_us() -> None:
    queue = make_queue()
    hear(queue, 3, header(ONE))
    queue.body_came(ONE, 0.0)
    hear(queue, 3, header(TWO))
    hear(queue, 4, header(TWO))
    effects = queue.member_blamed(3, 1.0)
    assert [effect for effect in effects if isinstance(effect, BroadcastBody)] == [
        BroadcastBody(ONE.message_id, ONE.body)
    ]
    assert [record.message_id for record in records(queue) if isinstance(record, Header)] == [ONE.message_id]


# Order and collation


def test_messages_are_taken_by_time_then_id_and_what_others_accepted_goes_first() -> None:
    queue = make_queue()
    ones = [message(number) for number in range(4)]
    for one, at_ms in zip(ones, (30, 10, 10, 20), strict=True):
        hear(queue, 1, header(one, at_ms=at_ms))
        queue.body_came(one, 0.0)
    hear(queue, 2, Accept(ones[0].message_id, ones[0].uid, SEQNO, B1))
    first, second = sorted((ones[1], ones[2]), key=lambda one: one.message_id)
    assert take(queue) == [ones[0], first, second, ones[3]]


def test_the_least_time_that_anybody_announced_counts_for_all() -> None:
    queues = [make_queue(), make_queue()]
    said = [(1, header(ONE, at_ms=20)), (2, header(ONE, at_ms=10)), (1, header(TWO, at_ms=15))]
    for queue, order in zip(queues, (said, said[::-1]), strict=True):
        for source, record in order:
            hear(queue, source, record)
        for one in (ONE, TWO):
            queue.body_came(one, 0.0)
    assert take(queues[0]) == take(queues[1]) == [ONE, TWO]


def test_each_report_of_the_collator_has_its_receipt_and_its_record() -> None:
    queue = make_queue()
    ones = [message(number) for number in range(4)]
    for one in ones:
        queue.offer(one, FULL_NODE, 0.0)
    while records(queue):
        pass
    assert len(take(queue)) == 4
    reports: list[Report] = [
        ExecutedMessage(B1),
        RefusedMessage(B1, "code 52"),
        SkippedMessage(B1),
        UnusedMessage(),
    ]
    effects = queue.collated(zip((one.message_id for one in ones), reports, strict=True), 1.0)
    assert told(effects) == ["IncludedIntoBlock", "RejectedByCollator", "IgnoredByCollator", "PutIntoQueue"]
    assert [type(record) for record in records(queue)] == [Accept, RejectRecord]
    assert {one.message_id for one in take(queue)} == {one.message_id for one in ones[2:]}
    assert queue.status(ones[1].message_id) == Rejected(Level.COLLATOR, "code 52", B1)


def test_records_of_the_collation_can_be_switched_off() -> None:
    queue = make_queue(options=QueueOptions(tells_collation=False))
    queue.offer(ONE, FULL_NODE, 0.0)
    records(queue)
    take(queue)
    queue.collated([(ONE.message_id, RefusedMessage(B1, "no"))], 1.0)
    assert records(queue) == []


@pytest.mark.parametrize(("size", "needed"), [(4, 3), (7, 5), (13, 9), (21, 14)])
def test_two_thirds_of_the_present_validators_stop_the_collation(size: int, needed: int) -> None:
    queue = make_queue(size=size)
    queue.offer(ONE, FULL_NODE, 0.0)
    reject = RejectRecord(ONE.message_id, ONE.uid, SEQNO, "no")
    for source in range(1, needed):
        assert told(hear(queue, source, reject, reject)) == []
        assert told(hear(queue, source, reject)) == [], "one validator counts once"
    assert told(hear(queue, size + 1, reject)) == [], "previous validators do not count"
    assert told(hear(queue, needed, reject)) == ["RejectedByQueue"]
    assert take(queue) == []
    assert queue.rejected_by(ONE.message_id) == frozenset(range(1, needed + 1))


def test_votes_count_also_when_they_come_before_the_message() -> None:
    queue = make_queue(size=4)
    for source in (1, 2, 3):
        hear(queue, source, RejectRecord(ONE.message_id, ONE.uid, SEQNO, "no"))
    assert told(queue.offer(ONE, FULL_NODE, 0.0)) == ["PutIntoQueue", "RejectedByQueue"]


def test_a_second_message_with_the_same_body_is_refused_and_only_one_that_a_block_holds_is_named() -> None:
    queue = make_queue()
    trio = sorted(
        (message(number, account=7, body=b"same") for number in (1, 2, 3)), key=lambda one: one.message_id
    )
    for one in trio[:2]:
        queue.offer(one, FULL_NODE, 0.0)
    records(queue)
    assert "goes first" in (queue.check_candidate([trio[1].message_id]) or "")
    taken, effects = queue.take(0.0, 10)
    assert taken == [trio[0]]
    assert [one.status for one in effects if isinstance(one, Tell)] == [
        Rejected(Level.QUEUE, TWIN_GOES_FIRST)
    ]
    queue.collated([(trio[0].message_id, ExecutedMessage(B1))], 0.0)
    queue.shard_committed(B1, [trio[0].message_id], 0.0)
    queue.offer(trio[2], FULL_NODE, 0.0)
    records(queue)
    taken, effects = queue.take(0.0, 10)
    assert taken == []
    text = f"message {trio[0].message_id.hex()} has the same body for the same account"
    assert [one.status for one in effects if isinstance(one, Tell)] == [Rejected(Level.QUEUE, text, B1)]


# Candidates and blocks


def queued(*ones: ExternalMessage) -> ReliableQueue:
    queue = make_queue()
    for one in ones:
        queue.offer(one, FULL_NODE, 0.0)
    return queue


def test_a_message_in_somebody_elses_candidate_waits_for_its_fate() -> None:
    queue = queued(ONE)
    assert told(queue.candidate_seen(B1, [ONE.message_id], 1.0)) == ["Duplicate"]
    assert take(queue) == []
    assert told(queue.candidate_lost(B1, 2.0)) == ["IgnoredByShardchain", "PutIntoQueue"]
    assert take(queue) == [ONE]


def test_a_committed_block_ends_its_rivals_and_their_messages_come_again() -> None:
    queue = queued(ONE, TWO)
    take(queue, 1)
    mine = (
        queue.entries()[0].message_id if isinstance(queue.entries()[0].status, Accepted) else TWO.message_id
    )
    other = TWO.message_id if mine == ONE.message_id else ONE.message_id
    queue.collated([(mine, ExecutedMessage(B1))], 1.0)
    queue.candidate_seen(B2, [other], 1.0)
    effects = queue.shard_committed(B2, [other], 2.0)
    assert told(effects) == ["IncludedIntoAcceptedBlock", "IgnoredByShardchain", "PutIntoQueue"]
    assert queue.status(other) == Accepted(Level.SHARDCHAIN, B2)
    assert [one.message_id for one in take(queue)] == [mine]


def test_a_refused_candidate_gives_its_messages_back_but_not_the_replayed_one() -> None:
    queue = queued(ONE, TWO)
    queue.candidate_seen(B1, [ONE.message_id, TWO.message_id], 1.0)
    effects = queue.candidate_refused(B1, 2.0, replayed=[TWO.message_id])
    assert told(effects) == ["RejectedByShardchain", "IgnoredByShardchain", "PutIntoQueue"]
    assert take(queue) == [ONE]


def test_the_masterchain_makes_it_final_and_is_told_by_nobody_here() -> None:
    queue = queued(ONE)
    queue.shard_committed(B1, [ONE.message_id], 1.0)
    assert queue.master_committed(B1, MASTER, [ONE], 2.0) == []
    assert queue.status(ONE.message_id) == Accepted(Level.MASTERCHAIN, B1, MASTER)
    assert told(queue.shard_dropped(B1, [ONE.message_id], 3.0)) == []


def test_a_dropped_shard_block_gives_its_messages_back() -> None:
    queue = queued(ONE)
    queue.shard_committed(B1, [ONE.message_id], 1.0)
    assert told(queue.shard_dropped(B2, [ONE.message_id], 2.0)) == [], "another block's fate"
    assert told(queue.shard_dropped(B1, [ONE.message_id], 2.0)) == ["IgnoredByMasterchain", "PutIntoQueue"]
    assert take(queue) == [ONE]


def test_a_message_that_only_the_chain_knows_is_never_collated() -> None:
    queue = make_queue()
    queue.master_committed(B1, MASTER, [ONE], 0.0)
    assert told(hear(queue, 3, header(ONE))) == []
    assert take(queue) == []
    assert queue.check_candidate([ONE.message_id]) is not None


def test_when_a_message_came_to_ourselves_does_not_order_it_if_others_hear_of_it_from_another() -> None:
    """Otherwise two validators would decline each other's blocks for ever."""
    queue = make_queue()
    queue.offer(ONE, FULL_NODE, 0.010)
    hear(queue, 1, header(TWO, at_ms=20))
    queue.body_came(TWO, 0.0)
    hear(queue, 1, header(ONE, at_ms=30))
    assert not records(queue), "ours is not announced any more, so nobody else knows of 10"
    assert queue.check_candidate([TWO.message_id, ONE.message_id]) is None
    assert take(queue) == [TWO, ONE]


def test_what_nobody_has_announced_is_not_taken_for_its_place_is_not_known() -> None:
    queue = make_queue()
    hear(queue, 1, header(TWO, at_ms=20))
    queue.body_came(TWO, 0.0)
    queue.offer(ONE, FULL_NODE, 0.010)
    assert queue.has_unannounced([ONE.message_id, TWO.message_id])
    assert queue.take(0.0, 10)[0] == [TWO]
    had_more = queue.has_collatable
    records(queue)
    assert not queue.has_unannounced([ONE.message_id, TWO.message_id])
    assert (had_more, queue.has_collatable) == (False, True)
    assert queue.take(0.0, 10)[0] == [ONE]


@pytest.mark.parametrize(
    ("times_of_one", "times_of_two", "is_wrong"),
    [
        ((10,), (20,), True),
        ((10,), (10,), False),  # decided by the ids, see below
        ((10, 30), (20,), False),
        ((10,), (20, 5), False),
        ((10, 19), (20, 40), True),
        ((10, 20), (20, 40), False),
    ],
)
def test_a_candidate_is_out_of_order_only_if_it_is_so_by_every_announcement(
    times_of_one: tuple[int, ...], times_of_two: tuple[int, ...], is_wrong: bool
) -> None:
    """Its author may have heard any of them, and no others, when he made it."""
    first, second = sorted((ONE, TWO), key=lambda one: one.message_id, reverse=True)
    queue = make_queue()
    for one, times in ((first, times_of_one), (second, times_of_two)):
        for source, at_ms in enumerate(times, start=1):
            hear(queue, source, header(one, at_ms=at_ms))
        queue.body_came(one, 0.0)
    fault = queue.check_candidate([second.message_id, first.message_id])
    assert (fault is not None) == is_wrong, fault


def test_what_the_blamed_announce_may_be_heard_by_some_of_us_only() -> None:
    queue = make_queue()
    for source, one, at_ms in ((1, ONE, 30), (2, ONE, 15), (1, TWO, 20)):
        hear(queue, source, header(one, at_ms=at_ms))
    for one in (ONE, TWO):
        queue.body_came(one, 0.0)
    assert queue.check_candidate([ONE.message_id, TWO.message_id]) is None
    queue.member_blamed(2, 0.0)
    assert "behind a later one" in (queue.check_candidate([ONE.message_id, TWO.message_id]) or "")
    assert take(queue) == [TWO, ONE]


def test_a_candidate_is_declined_for_repeats_unknown_messages_and_wrong_order() -> None:
    queue = make_queue()
    for one, at_ms in ((ONE, 10), (TWO, 20)):
        hear(queue, 1, header(one, at_ms=at_ms))
        queue.body_came(one, 0.0)
    ids = [ONE.message_id, TWO.message_id]
    assert queue.check_candidate(ids) is None
    assert "behind a later one" in (queue.check_candidate(ids[::-1]) or "")
    assert "twice" in (queue.check_candidate([*ids, ids[0]]) or "")
    assert "not known" in (queue.check_candidate([sha256(b"?").digest()]) or "")
    queue.shard_committed(B1, ids[:1], 1.0)
    assert "included before" in (queue.check_candidate(ids) or "")


# Life


def test_every_message_that_is_open_after_its_time_is_closed() -> None:
    queue = make_queue()
    queue.offer(ONE, FULL_NODE, 0.0)
    hear(queue, 3, header(TWO), now=1.0)
    assert queue.next_wake == 3.0, "first the search for the second body"
    assert told(queue.tick(239.9)) == []
    assert told(queue.tick(240.0)) == ["Timeout"]
    assert told(queue.tick(241.0)) == ["Timeout"]
    assert queue.open_count == 0
    assert take(queue) == []


def test_what_is_in_a_shard_block_does_not_time_out() -> None:
    queue = queued(ONE)
    queue.shard_committed(B1, [ONE.message_id], 1.0)
    assert told(queue.tick(500.0)) == []


def test_what_leaves_the_cache_is_closed_and_not_revived() -> None:
    queue = queued(ONE)
    gone = queue.cache.advance(SEQNO + 2, 100_000)
    assert told(queue.lives_over(gone.messages, 100.0)) == ["Timeout"]
    assert told(hear(queue, 3, header(ONE, seqno=SEQNO))) == []
    assert queue.known_ids == frozenset()


def test_a_header_from_a_future_that_nobody_can_have_seen_is_passed_over() -> None:
    queue = make_queue()
    assert told(hear(queue, 3, header(ONE, seqno=SEQNO + 1))) == ["PutIntoQueue"]
    assert told(hear(queue, 3, header(TWO, seqno=SEQNO + 2))) == []


# The switch


def next_queue(queue: ReliableQueue) -> ReliableQueue:
    """Of the same node, one master catchain later."""
    queue.cache.advance(SEQNO + 1, 100_000)
    return make_queue(seqno=SEQNO + 1, cache=queue.cache)


def test_open_messages_travel_whole_and_processed_ones_as_ids() -> None:
    ones = [message(number) for number in range(4)]
    queue = queued(*ones)
    queue.shard_committed(B1, [ones[0].message_id], 1.0)
    queue.master_committed(B1, MASTER, ones[:1], 1.0)
    take(queue)
    queue.collated([(ones[1].message_id, RefusedMessage(B2, "no"))], 2.0)
    handed = to_forward(queue, SEQNO + 1, WHOLE, lambda _: False)
    headers = [record for record in handed.records if isinstance(record, Header)]
    digests = [record for record in handed.records if isinstance(record, Digest)]
    assert {record.message_id for record in headers} == {one.message_id for one in ones[2:]}
    assert all(record.masterchain_seqno == SEQNO for record in headers), "its age goes with it"
    assert {body.message_id for body in handed.bodies} == {one.message_id for one in ones[2:]}
    assert digests == [
        Digest(SEQNO, (Ids(ones[1].message_id, ones[1].uid),), (Ids(ones[0].message_id, ones[0].uid),))
    ]


def test_what_the_next_queue_has_already_is_not_sent_again() -> None:
    queue = queued(ONE, TWO)
    handed = to_forward(queue, SEQNO + 1, WHOLE, lambda message_id: message_id == ONE.message_id)
    assert [body.message_id for body in handed.bodies] == [TWO.message_id]


def test_expired_ones_stay_behind() -> None:
    queue = queued(ONE)
    handed = to_forward(queue, SEQNO + 2, WHOLE, lambda _: False)
    assert (handed.records, handed.bodies, handed.left_behind) == ((), (), 1)
    timed_out = queued(ONE)
    timed_out.tick(240.0)
    assert to_forward(timed_out, SEQNO + 1, WHOLE, lambda _: False).records == ()


def test_a_split_sends_each_message_to_the_child_that_holds_its_account() -> None:
    ones = [message(number) for number in range(20)]
    queue = queued(*ones)
    left, right = WHOLE.children
    parts = [
        {body.message_id for body in to_forward(queue, SEQNO + 1, child, lambda _: False).bodies}
        for child in (left, right)
    ]
    assert parts[0] | parts[1] == {one.message_id for one in ones}
    assert not parts[0] & parts[1]
    assert parts[0]
    assert parts[1]
    assert left.parent == right.parent == WHOLE


@pytest.mark.parametrize("prefix", [1 << 63, 1 << 62, 3 << 62, 0x3800_0000_0000_0000, 0x8100_0000_0000_0000])
def test_children_of_a_shard_share_it_out(prefix: int) -> None:
    shard = Shard(0, prefix)
    left, right = shard.children
    assert left.parent == right.parent == shard
    assert left.bits == right.bits == shard.bits + 1
    for number in range(64):
        account = sha256(b"%d" % number).digest()
        assert shard.holds(0, account) == (left.holds(0, account) or right.holds(0, account))
        assert not (left.holds(0, account) and right.holds(0, account))
        assert not shard.holds(-1, account)


def test_a_forwarded_message_that_is_unknown_comes_in_as_ignored_by_the_queue() -> None:
    queue = make_queue(seqno=SEQNO + 1)
    effects = hear(queue, 3, header(ONE))
    assert told(effects) == ["IgnoredByQueue", "PutIntoQueue"]
    assert queue.status(ONE.message_id) == Ignored(Level.QUEUE)


@pytest.mark.parametrize(
    ("forgotten", "kinds"),
    [
        (SEQNO - 1, ["IgnoredByQueue", "PutIntoQueue"]),
        (SEQNO, ["PutIntoQueue"]),
        (SEQNO + 1, ["PutIntoQueue"]),
    ],
)
def test_who_may_have_said_that_it_is_in_the_queue_and_forgot_it_says_that_again(
    forgotten: int, kinds: list[str]
) -> None:
    """PutIntoQueue, crash, IgnoredByQueue: a step that no honest validator takes."""
    queue = make_queue(seqno=SEQNO + 1)
    queue.cache.forgotten_seqno = forgotten
    assert told(hear(queue, 3, header(ONE))) == kinds
    hear(queue, 3, Digest(SEQNO, (Ids(TWO.message_id, TWO.uid),)))
    assert told(hear(queue, 4, header(TWO))) == kinds, "also if another says that it was processed"


def test_a_forwarded_message_that_is_in_our_shard_block_comes_back_with_that_block() -> None:
    queue = queued(ONE)
    queue.shard_committed(B1, [ONE.message_id], 1.0)
    following = next_queue(queue)
    assert told(hear(following, 3, header(ONE))) == ["IgnoredByMasterchain", "PutIntoQueue"]
    assert following.status(ONE.message_id) == Ignored(Level.MASTERCHAIN, B1)
    assert take(following) == [ONE]


@pytest.mark.parametrize("end", ["final", "rejected"])
def test_what_we_know_to_be_processed_stays_so_whatever_is_forwarded(end: str) -> None:
    queue = queued(ONE)
    if end == "final":
        queue.master_committed(B1, MASTER, [ONE], 1.0)
    else:
        take(queue)
        queue.collated([(ONE.message_id, RefusedMessage(B1, "no"))], 1.0)
    before = queue.status(ONE.message_id)
    following = next_queue(queue)
    assert told(hear(following, 3, header(ONE))) == []
    assert following.status(ONE.message_id) == before
    assert take(following) == []


def test_a_digest_speaks_only_of_what_is_unknown_and_cannot_silence_an_open_message() -> None:
    queue = make_queue(seqno=SEQNO + 1)
    digest = Digest(SEQNO, (Ids(ONE.message_id, ONE.uid),), (Ids(TWO.message_id, TWO.uid),))
    assert told(hear(queue, 3, digest)) == []
    assert isinstance(queue.status(ONE.message_id), Rejected)
    assert isinstance(queue.status(TWO.message_id), Accepted)
    for one in (ONE, TWO):
        queue.body_came(one, 0.0)
    assert take(queue) == []
    # Somebody forwards them as open: the digest may have been a lie.
    for one in (ONE, TWO):
        assert told(hear(queue, 4, header(one))) == ["IgnoredByQueue", "PutIntoQueue"]
    assert sorted(take(queue), key=lambda one: one.message_id) == sorted(
        (ONE, TWO), key=lambda one: one.message_id
    )
    known = queued(ONE)
    hear(known, 3, Digest(SEQNO, (Ids(ONE.message_id, ONE.uid),)))
    assert known.status(ONE.message_id) == New()


def test_a_digest_of_what_has_expired_says_nothing() -> None:
    queue = make_queue(seqno=SEQNO + 2)
    hear(queue, 3, Digest(SEQNO, (Ids(ONE.message_id, ONE.uid),)))
    assert queue.known_ids == frozenset()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_digest_of_a_liar_does_not_prolong_a_life(is_known: bool) -> None:
    queue = queued(ONE) if is_known else make_queue()
    lie = (Ids(ONE.message_id, ONE.uid),)
    hear(queue, 3, Digest(SEQNO + 1, lie, lie))
    hear(queue, 4, header(ONE))
    queue.cache.advance(SEQNO + 1, 100_000)
    assert queue.cache.get(ONE.message_id) is not None
    queue.cache.advance(SEQNO + 2, 200_000)
    assert queue.cache.get(ONE.message_id) is None


def test_handing_over_ends_in_the_next_queue() -> None:
    old = queued(ONE)
    handed = to_forward(old, SEQNO + 1, WHOLE, lambda _: False)
    following = next_queue(old)
    effects = following.forward_into(handed.records, handed.bodies, 2.0)
    assert BroadcastBody(ONE.message_id, ONE.body) in effects
    assert told(effects) == ["IgnoredByCollator", "PutIntoQueue"], "it stands there at once"
    (record,) = records(following)
    assert isinstance(record, Header)
    assert told(hear(following, 0, record)) == []
    assert take(following) == [ONE]


def test_every_path_of_receipts_ends_or_stays_open_in_the_queue() -> None:
    """A run through many events: what was told last is what the status says."""
    queue = queued(ONE)
    heard: list[MessageStatus] = [New()]

    def note(effects: Sequence[QueueEffect]) -> None:
        heard.extend(effect.status for effect in effects if isinstance(effect, Tell))

    note(queue.candidate_seen(B1, [ONE.message_id], 1.0))
    note(queue.candidate_refused(B1, 2.0))
    take(queue)
    note(queue.collated([(ONE.message_id, ExecutedMessage(B2))], 3.0))
    note(queue.candidate_lost(B2, 4.0))
    note(queue.tick(240.0))
    names = [kind_of(status).name for status in heard]
    assert names == [
        "PutIntoQueue", "Duplicate", "IgnoredByShardchain", "PutIntoQueue", "IncludedIntoBlock", "IgnoredByShardchain",
        "PutIntoQueue", "Timeout",
    ]  # fmt: skip
    assert heard[-1] == Timeout()
    assert Duplicate(B1) in heard


@pytest.mark.parametrize("letter", ["x", "é", "𝄞"])
def test_a_long_error_is_cut_in_the_record_and_whole_in_the_receipt(letter: str) -> None:
    error = letter * 2_000
    queue = make_queue()
    queue.offer(ONE, FULL_NODE, 0.0)
    records(queue)
    take(queue)
    effects = queue.collated([(ONE.message_id, RefusedMessage(B1, error))], 1.0)
    statuses = [effect.status for effect in effects if isinstance(effect, Tell)]
    assert statuses == [Rejected(Level.COLLATOR, error, B1)]
    (said,) = records(queue)
    assert isinstance(said, RejectRecord)
    assert error.startswith(said.error)
    assert ERROR_TEXT_BYTES_MAX - 4 < len(said.error.encode()) <= ERROR_TEXT_BYTES_MAX
