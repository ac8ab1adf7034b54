"""What a puller does next: the order of actions, every limit at its edge, and whom a refusal harms."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stagepost.dmq.downloads import LEASE_S, STUCK_S, Downloads
from stagepost.dmq.mempool import Mempool
from stagepost.dmq.message import FIVE_AND_FOUR, DmqMessage, MessageLayout
from stagepost.dmq.outcome import ACCEPTED, Outcome, rejected
from stagepost.dmq.peer_standing import CLAIM_DELAY_MAX_S, CLOCKS_DIFFER_MAX_S, RETRY_MAX_S
from stagepost.dmq.pulling import (
    ASK_AGAIN_S,
    BYTES_IN_FLIGHT_MAX,
    CHUNK_BITS,
    CHUNKS_MAX,
    AnnouncedIndexes,
    AskIds,
    FetchMessages,
    PullCore,
    Sleep,
    Submit,
)
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import MessageId
from tests.worlds.dmq.pulling_world import a_message, announced, legacy, messages


def holding(*held: DmqMessage) -> Mempool:
    mempool = Mempool()
    for message in held:
        mempool.add(message, 0, "test")
    return mempool


def a_peer(
    name: str = "peer",
    downloads: Downloads | None = None,
    held: Mempool | None = None,
    *,
    layouts: frozenset[MessageLayout] = frozenset({MessageLayout.FIVE}),
) -> PullCore:
    table = Downloads() if downloads is None else downloads
    return PullCore(name, table, Mempool() if held is None else held, now=0, layouts=layouts)


def announce(peer: PullCore, offered: Sequence[DmqMessage], now: float = 0) -> AskIds:
    """Let the peer ask, and answer with these."""
    return announce_ids(peer, [announced(message) for message in offered], now)


def announce_ids(peer: PullCore, ids: Sequence[MessageIdAndSize], now: float = 0) -> AskIds:
    asked = peer.next_action(now)
    assert isinstance(asked, AskIds)
    peer.ids_arrived(ids, now)
    return asked


def fetched(peer: PullCore, now: float = 0) -> tuple[MessageId, ...]:
    action = peer.next_action(now)
    assert isinstance(action, FetchMessages)
    return action.ids


def deliver(peer: PullCore, offered: Sequence[DmqMessage], now: float = 0) -> Submit:
    """Let the peer fetch all of these in one batch, and give them."""
    ids = fetched(peer, now)
    assert ids == tuple(message.message_id for message in offered)
    peer.messages_arrived(ids, offered, now)
    action = peer.next_action(now)
    assert isinstance(action, Submit)
    return action


def judge(peer: PullCore, offered: Sequence[DmqMessage], outcome: Outcome, now: float = 0) -> None:
    peer.submitted(offered, [outcome] * len(offered), now)


def relay(peer: PullCore, message: DmqMessage, outcome: Outcome, now: float = 0) -> None:
    """Announced, fetched and judged, all at one moment."""
    announce(peer, [message], now)
    deliver(peer, [message], now)
    judge(peer, [message], outcome, now)


def refusal(code: ErrorCode, retry_after_s: float | None = None) -> Outcome:
    return rejected(code, "refused", retry_after_s)


# The order of actions


def test_the_first_thing_is_to_wait_for_ids() -> None:
    assert a_peer().next_action(0) == AskIds(blocking=True, acknowledged=0, requested=33)


def test_submitting_comes_before_fetching_and_fetching_before_asking() -> None:
    peer = a_peer()
    first, second = messages(2)
    announce(peer, [first])
    assert fetched(peer) == (first.message_id,)
    announce(peer, [second], now=ASK_AGAIN_S)
    peer.messages_arrived([first.message_id], [first], now=1)

    assert peer.next_action(1) == Submit((first,))
    assert peer.next_action(1) == FetchMessages((second.message_id,))
    assert peer.next_action(1) == AskIds(blocking=False, acknowledged=0, requested=33)
    assert peer.next_action(1) == Sleep(None)


def test_nothing_to_do_is_a_sleep_without_a_timer() -> None:
    peer = a_peer()
    peer.next_action(0)

    assert peer.next_action(0) == Sleep(None)


# Acknowledging


def test_all_settled_is_acknowledged_by_the_next_blocking_request() -> None:
    peer = a_peer()
    offered = messages(3)
    announce(peer, offered)
    deliver(peer, offered)

    judge(peer, offered, ACCEPTED)

    assert peer.next_action(0) == AskIds(blocking=True, acknowledged=3, requested=33)
    assert peer.unacknowledged == 0


def test_held_ids_are_acknowledged_without_download() -> None:
    offered = messages(2)
    peer = a_peer(held=holding(*offered))

    announce(peer, offered)

    assert peer.next_action(0) == AskIds(blocking=True, acknowledged=2, requested=33)


def test_acknowledging_is_strictly_in_order() -> None:
    peer = a_peer(held=holding(a_message(1), a_message(2)))
    announce(peer, [a_message(1), a_message(0), a_message(2)])

    assert fetched(peer) == (a_message(0).message_id,)

    # The third is settled as well, but its turn comes after the second.
    assert peer.next_action(0) == AskIds(blocking=False, acknowledged=1, requested=33)


def test_nothing_is_acknowledged_while_its_fate_is_unknown() -> None:
    peer = a_peer()
    offered = messages(1)
    announce(peer, offered)

    for _ in range(2):  # requested, then being judged
        assert not isinstance(peer.next_action(0), AskIds)
        if peer.batches_outstanding:
            peer.messages_arrived([offered[0].message_id], offered, now=0)

    assert peer.unacknowledged == 1
    judge(peer, offered, ACCEPTED)
    assert peer.next_action(0) == AskIds(blocking=True, acknowledged=1, requested=33)


@pytest.mark.parametrize("is_valid", [True, False])
def test_an_id_that_is_judged_for_another_peer_waits_for_the_judgement(is_valid: bool) -> None:
    downloads, held = Downloads(), Mempool()
    quick, slow = a_peer("quick", downloads, held), a_peer("slow", downloads, held)
    message = a_message(1)
    announce(quick, [message])
    announce(slow, [message])
    deliver(quick, [message])
    assert slow.next_action(0.1) == Sleep(ASK_AGAIN_S)
    assert slow.unacknowledged == 1

    if is_valid:
        held.add(message, 0, "test")
    judge(quick, [message], ACCEPTED if is_valid else refusal(ErrorCode.KES_SIGNATURE), now=0.1)
    assert isinstance(slow.next_action(0.1), AskIds if is_valid else FetchMessages)

    assert slow.unacknowledged == (0 if is_valid else 1)
    assert slow.batches_outstanding == (0 if is_valid else 1)


def test_an_id_mentioned_twice_shares_one_fate() -> None:
    peer = a_peer()
    message = a_message(1)
    announce(peer, [message, message])
    assert peer.score.points(0) == 1

    deliver(peer, [message], now=0.1)
    judge(peer, [message], ACCEPTED, now=0.1)

    assert peer.next_action(0.1) == AskIds(blocking=True, acknowledged=2, requested=33)


@pytest.mark.parametrize("brings_it", [True, False])
def test_announcing_again_what_we_hold_costs_a_point(brings_it: bool) -> None:
    held = Mempool()
    peer = a_peer(held=held)
    message = a_message(1)
    if brings_it:
        announce(peer, [message])
        deliver(peer, [message])
        held.add(message, 0, "test")
        judge(peer, [message], ACCEPTED)
    else:
        held.add(message, 0, "test")
        announce(peer, [message])
    assert peer.score.points(0) == 0

    announce(peer, [message])

    assert peer.score.points(0) == 1
    assert peer.next_action(0) == AskIds(blocking=True, acknowledged=1, requested=33)


def test_an_older_message_announced_again_costs_a_point_and_may_still_hide_a_newer_one() -> None:
    newer = a_message(1)
    shadow = legacy(newer.message_id)
    peer = a_peer(held=holding(shadow), layouts=FIVE_AND_FOUR)
    relay(peer, shadow, refusal(ErrorCode.MSG_DUPLICATE))

    announce(peer, [newer])

    assert peer.score.points(0) == 1
    assert fetched(peer, now=0.1) == (newer.message_id,)


def test_announced_indexes_are_remembered_in_bounded_memory() -> None:
    indexes = AnnouncedIndexes()
    count = CHUNK_BITS * CHUNKS_MAX
    assert all(indexes.add(index) for index in range(count))
    assert not indexes.add(0)
    assert not indexes.add(count - 1)

    assert indexes.add(count)

    assert not indexes.add(CHUNK_BITS)
    assert indexes.add(0)  # the oldest chunk had to go


# The window


def test_the_window_is_filled_up_to_132_and_not_further() -> None:
    peer = a_peer()
    offered = messages(132)
    asked = []
    for start in range(0, 132, 33):
        asked.append(announce(peer, offered[start : start + 33]))
        fetched(peer)

    assert [ask.requested for ask in asked] == [33] * 4
    assert [ask.blocking for ask in asked] == [True, False, False, False]
    assert peer.unacknowledged == 132
    assert peer.next_action(0) == Sleep(None)


def test_the_last_request_asks_for_no_more_than_there_is_room() -> None:
    peer = a_peer()
    offered = messages(131)
    for start in range(0, 131, 33):
        announce(peer, offered[start : start + 33])
        fetched(peer)

    # The last reply was one short, so the next request waits a little.
    assert peer.next_action(0) == Sleep(ASK_AGAIN_S)
    assert peer.next_action(ASK_AGAIN_S) == AskIds(blocking=False, acknowledged=0, requested=1)


def test_after_a_full_reply_more_is_asked_for_at_once() -> None:
    peer = a_peer()
    announce(peer, messages(33))
    fetched(peer)

    announce(peer, messages(33, first=100))

    assert isinstance(peer.next_action(0), FetchMessages)
    assert peer.next_action(0) == AskIds(blocking=False, acknowledged=0, requested=33)


def test_after_a_short_reply_we_ask_again_only_after_a_while_or_with_something_to_acknowledge() -> None:
    peer = a_peer()
    offered = messages(2)
    announce(peer, offered)
    fetched(peer)
    assert peer.next_action(0.1) == Sleep(ASK_AGAIN_S)

    peer.messages_arrived([message.message_id for message in offered], offered[:1], now=0.1)
    assert isinstance(peer.next_action(0.1), Submit)
    judge(peer, offered[:1], ACCEPTED, now=0.1)

    assert peer.next_action(0.1) == AskIds(blocking=True, acknowledged=2, requested=33)


def test_a_supplier_that_says_nothing_new_in_no_time_is_not_asked_in_a_circle() -> None:
    peer = a_peer()
    announce(peer, [], now=0)

    assert peer.next_action(0.01) == Sleep(ASK_AGAIN_S)
    assert isinstance(peer.next_action(ASK_AGAIN_S), AskIds)


def test_after_a_long_wait_without_news_we_ask_again_at_once() -> None:
    peer = a_peer()
    assert isinstance(peer.next_action(0), AskIds)
    peer.ids_arrived((), now=17)

    assert peer.next_action(17) == AskIds(blocking=True, acknowledged=0, requested=33)


# Fetching


def test_a_batch_has_at_most_33_messages_and_four_batches_are_on_their_way() -> None:
    peer = a_peer()
    offered = messages(132)
    sizes = []
    for start in range(0, 132, 33):
        announce(peer, offered[start : start + 33])
        sizes.append(len(fetched(peer)))

    assert sizes == [33, 33, 33, 29]  # the fourth reaches the limit of bytes
    assert peer.batches_outstanding == 4


def test_a_batch_has_at_most_33_messages_however_many_are_free() -> None:
    downloads = Downloads()
    leaving, peer = a_peer("leaving", downloads), a_peer("peer", downloads)
    offered = messages(66)
    for start in (0, 33):
        announce(leaving, offered[start : start + 33])
        fetched(leaving)
        announce(peer, offered[start : start + 33])
    leaving.leave()

    assert len(fetched(peer)) == 33
    assert len(fetched(peer)) == 33


def test_a_fifth_batch_waits_for_the_first() -> None:
    peer = a_peer()
    offered = messages(5)
    for now, message in enumerate(offered[:4]):
        announce(peer, [message], now)
        fetched(peer, now)
    announce(peer, offered[4:], now=4)
    assert not isinstance(peer.next_action(4), FetchMessages)
    assert peer.batches_outstanding == 4

    peer.messages_arrived([offered[0].message_id], offered[:1], now=5)
    assert isinstance(peer.next_action(5), Submit)

    assert fetched(peer, now=5) == (offered[4].message_id,)


def test_bytes_in_flight_may_pass_the_limit_by_one_message() -> None:
    peer = a_peer()
    size = 2_800
    ids = [MessageIdAndSize(MessageId(bytes([number]) * 32), size) for number in range(66)]
    announce_ids(peer, ids[:33])
    assert len(fetched(peer)) == 33
    assert peer.bytes_in_flight == BYTES_IN_FLIGHT_MAX

    announce_ids(peer, ids[33:])
    assert isinstance(peer.next_action(0), AskIds)
    assert peer.bytes_in_flight == BYTES_IN_FLIGHT_MAX


def test_one_byte_below_the_limit_there_is_room_for_one_more() -> None:
    peer = a_peer()
    ids = [MessageIdAndSize(MessageId(bytes([number]) * 32), 2_800) for number in range(35)]
    ids[0] = MessageIdAndSize(ids[0].message_id, 2_799)
    announce_ids(peer, ids[:33])
    fetched(peer)

    announce_ids(peer, ids[33:])

    assert fetched(peer) == (ids[33].message_id,)
    assert peer.bytes_in_flight == BYTES_IN_FLIGHT_MAX - 1 + 2_800


@pytest.mark.parametrize(("size", "is_fetched"), [(2_832, True), (2_833, False), (2**32 - 1, False)])
def test_what_is_announced_as_too_large_is_never_fetched(size: int, is_fetched: bool) -> None:
    peer = a_peer()
    announce_ids(peer, [MessageIdAndSize(MessageId(b"x" * 32), size)])

    assert isinstance(peer.next_action(0), FetchMessages if is_fetched else AskIds)
    assert peer.score.points(0) == (0 if is_fetched else 1)


def test_an_omitted_message_is_settled_and_counted_for_this_peer_and_free_for_others() -> None:
    downloads = Downloads()
    liar, honest = a_peer("liar", downloads), a_peer("honest", downloads)
    message = a_message(1)
    announce(liar, [message])
    announce(honest, [message])
    ids = fetched(liar)

    liar.messages_arrived(ids, (), now=0.1)

    assert liar.score.points(0.1) == 1
    assert liar.bytes_in_flight == 0
    assert liar.next_action(0.1) == AskIds(blocking=True, acknowledged=1, requested=33)
    assert fetched(honest, now=0.1) == (message.message_id,)


def test_a_second_peer_takes_over_from_one_that_never_serves_after_600_ms() -> None:
    downloads = Downloads()
    silent, other = a_peer("silent", downloads), a_peer("other", downloads)
    message = a_message(1)
    announce(silent, [message])
    announce(other, [message])
    fetched(silent)
    assert other.next_action(0.3) == AskIds(blocking=False, acknowledged=0, requested=33)
    other.ids_arrived((), now=0.5)

    assert other.next_action(STUCK_S - 0.001) == Sleep(STUCK_S)
    assert fetched(other, now=STUCK_S) == (message.message_id,)


def test_a_second_peer_takes_over_from_one_that_is_too_busy_after_250_ms() -> None:
    downloads = Downloads()
    busy, other = a_peer("busy", downloads), a_peer("other", downloads)
    for number in range(4):
        announce(busy, [a_message(number)], now=number)
        fetched(busy, now=number)
    shared = a_message(9)
    announce(busy, [shared], now=10)
    announce(other, [shared], now=10)
    assert not isinstance(busy.next_action(10), FetchMessages)
    assert not isinstance(other.next_action(10), FetchMessages)

    assert fetched(other, now=10 + LEASE_S) == (shared.message_id,)


def test_a_peer_with_the_worst_score_waits_250_ms_longer() -> None:
    peer = a_peer()
    for _ in range(900):
        peer.score.rejected(now=0)
    announce(peer, messages(1))

    assert peer.next_action(0) == Sleep(CLAIM_DELAY_MAX_S)
    assert isinstance(peer.next_action(CLAIM_DELAY_MAX_S - 0.001), Sleep)
    assert isinstance(peer.next_action(CLAIM_DELAY_MAX_S), FetchMessages)


def test_what_another_peer_brought_meanwhile_is_not_submitted_again() -> None:
    held = Mempool()
    peer = a_peer(held=held)
    message = a_message(1)
    announce(peer, [message])
    ids = fetched(peer)
    held.add(message, 0, "test")

    peer.messages_arrived(ids, [message], now=0)

    assert peer.next_action(0) == AskIds(blocking=True, acknowledged=1, requested=33)
    assert peer.score.points(0) == 0


# Layouts


def test_an_id_held_in_the_older_layout_says_nothing_about_the_newer() -> None:
    message = a_message(1)
    shadow = legacy(message.message_id)
    for layouts in (frozenset({MessageLayout.FIVE}), FIVE_AND_FOUR):
        peer = a_peer(held=holding(shadow), layouts=layouts)

        announce(peer, [message])

        assert fetched(peer) == (message.message_id,)


def test_an_older_message_that_we_have_is_fetched_again_and_costs_its_peer_nothing() -> None:
    shadow = legacy(b"s" * 32)
    peer = a_peer(held=holding(shadow), layouts=FIVE_AND_FOUR)

    relay(peer, shadow, refusal(ErrorCode.MSG_DUPLICATE))

    assert peer.score.points(0) == 0
    assert peer.next_action(0) == AskIds(blocking=True, acknowledged=1, requested=33)


# Refusals


@pytest.mark.parametrize(
    "code",
    [ErrorCode.MSG_BAD_ID, ErrorCode.KES_PERIOD, ErrorCode.OPCERT_SIGNATURE, ErrorCode.KES_SIGNATURE],
)
def test_what_no_honest_relay_accepts_ends_the_connection(code: ErrorCode) -> None:
    peer = a_peer()

    relay(peer, a_message(1), refusal(code))

    assert peer.fault is not None
    assert peer.fault.code is code
    assert peer.fault.message_id == a_message(1).message_id


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.MSG_DUPLICATE,
        ErrorCode.MSG_EXPIRED,
        ErrorCode.POOL_UNKNOWN,
        ErrorCode.POOL_NOT_ELIGIBLE,
    ],
)
def test_what_the_table_ignores_costs_one_point_and_is_settled(code: ErrorCode) -> None:
    peer = a_peer()

    relay(peer, a_message(1), refusal(code))

    assert peer.fault is None
    assert peer.score.points(0) == 1
    assert peer.next_action(0) == AskIds(blocking=True, acknowledged=1, requested=33)


def test_the_rest_of_a_batch_counts_although_one_message_ends_the_connection() -> None:
    peer = a_peer()
    offered = messages(3)
    announce(peer, offered)
    deliver(peer, offered)

    peer.submitted(offered, [ACCEPTED, refusal(ErrorCode.KES_SIGNATURE), ACCEPTED], now=0)

    assert peer.fault is not None
    assert peer.next_action(0) == AskIds(blocking=True, acknowledged=3, requested=33)


@pytest.mark.parametrize("code", [ErrorCode.NOT_READY, ErrorCode.QUEUE_FULL, ErrorCode.STORAGE_UNAVAILABLE])
def test_our_own_trouble_costs_the_peer_nothing_and_the_message_is_tried_again(code: ErrorCode) -> None:
    peer = a_peer()
    message = a_message(1)
    relay(peer, message, refusal(code))
    assert peer.score.points(0) == 0
    now, waits = 0.0, []
    for _ in range(7):
        assert peer.unacknowledged == 1
        action = peer.next_action(now)
        while not isinstance(action, Sleep):
            assert action == AskIds(blocking=False, acknowledged=0, requested=33)
            peer.ids_arrived((), now)
            action = peer.next_action(now)
        due = next(at for at in (1, 3, 7, 15, 31, 61, 91) if at > now)
        waits.append(due - now)
        assert not isinstance(peer.next_action(due - 0.001), Submit)
        if not isinstance(peer.next_action(due - 0.001), Sleep):
            peer.ids_arrived((), due - 0.001)
        assert peer.next_action(due) == Submit((message,))
        judge(peer, [message], refusal(code), now=due)
        now = due

    assert waits == [1, 2, 4, 8, 16, RETRY_MAX_S, RETRY_MAX_S]


def test_a_message_that_is_tried_again_is_acknowledged_once_it_is_accepted() -> None:
    peer = a_peer()
    message = a_message(1)
    relay(peer, message, refusal(ErrorCode.STORAGE_UNAVAILABLE))

    assert peer.next_action(1) == Submit((message,))
    judge(peer, [message], ACCEPTED, now=1)

    assert peer.next_action(1) == AskIds(blocking=True, acknowledged=1, requested=33)


def test_nobody_else_downloads_what_waits_for_our_own_trouble_to_end() -> None:
    downloads = Downloads()
    first, second = a_peer("first", downloads), a_peer("second", downloads)
    message = a_message(1)
    announce(second, [message])
    announce(first, [message])
    ids = fetched(first, now=LEASE_S)
    first.messages_arrived(ids, [message], LEASE_S)
    first.next_action(LEASE_S)
    judge(first, [message], refusal(ErrorCode.QUEUE_FULL), now=LEASE_S)

    assert not isinstance(second.next_action(0.5), FetchMessages)

    first.leave()
    assert isinstance(second.next_action(0.5), FetchMessages)


def test_the_ceiling_of_the_score_ends_the_connection() -> None:
    peer = a_peer()
    offered = messages(2)
    announce(peer, offered)
    deliver(peer, offered)
    for _ in range(898):
        peer.score.rejected(now=0)

    faults = []
    for message in offered:
        judge(peer, [message], refusal(ErrorCode.POOL_UNKNOWN))
        faults.append(peer.fault)

    assert faults[0] is None
    assert faults[1] is not None
    assert faults[1].code is ErrorCode.POOL_UNKNOWN


# Refusals that also befall honest relays


def test_too_frequent_is_tried_again_when_nothing_proves_the_relay_wrong() -> None:
    peer = a_peer()
    first, second = a_message(1, pool=7), a_message(2, pool=7)
    relay(peer, first, ACCEPTED)

    relay(peer, second, refusal(ErrorCode.MSG_TOO_FREQUENT, retry_after_s=4), now=55)

    assert peer.fault is None
    assert peer.score.points(55) == 0
    assert peer.next_action(59) == Submit((second,))


def test_a_relay_that_had_nothing_and_then_two_messages_of_a_pool_is_cut_off() -> None:
    peer = a_peer()
    announce(peer, [], now=100)  # it says that it has nothing more
    relay(peer, a_message(1, pool=7), ACCEPTED, now=110)

    relay(peer, a_message(2, pool=7), refusal(ErrorCode.MSG_TOO_FREQUENT, 50), now=159)

    assert peer.fault is not None
    assert peer.fault.code is ErrorCode.MSG_TOO_FREQUENT


def test_a_relay_that_may_have_had_a_minute_between_them_is_not_cut_off() -> None:
    peer = a_peer()
    announce(peer, [], now=100)
    relay(peer, a_message(1, pool=7), ACCEPTED, now=110)

    relay(peer, a_message(2, pool=7), refusal(ErrorCode.MSG_TOO_FREQUENT, 10), now=160)

    assert peer.fault is None


def test_a_relay_of_another_pools_message_is_not_cut_off() -> None:
    peer = a_peer()
    announce(peer, [], now=100)
    relay(peer, a_message(1, pool=7), ACCEPTED, now=110)

    relay(peer, a_message(2, pool=8), refusal(ErrorCode.MSG_TOO_FREQUENT, 10), now=111)

    assert peer.fault is None


def test_a_copy_that_waits_for_its_pools_time_does_not_keep_others_from_theirs() -> None:
    downloads = Downloads()
    forger, honest = a_peer("forger", downloads), a_peer("honest", downloads)
    message = a_message(1)
    announce(forger, [message])
    announce(honest, [message])
    deliver(forger, [message])

    judge(forger, [message], refusal(ErrorCode.MSG_TOO_FREQUENT, 30))

    assert fetched(honest) == (message.message_id,)


def test_a_full_window_gives_up_messages_that_wait_for_their_pools_time() -> None:
    peer = a_peer()
    offered = [a_message(number, pool=7) for number in range(132)]
    for start in range(0, 132, 33):
        batch = offered[start : start + 33]
        announce(peer, batch)
        deliver(peer, batch)
        judge(peer, batch, refusal(ErrorCode.MSG_TOO_FREQUENT, 60))
    assert peer.unacknowledged == 132

    assert peer.next_action(0) == AskIds(blocking=False, acknowledged=1, requested=1)
    assert peer.score.points(0) == 1


def test_a_full_window_waits_for_our_own_trouble_to_end() -> None:
    peer = a_peer()
    offered = messages(132)
    for start in range(0, 132, 33):
        batch = offered[start : start + 33]
        announce(peer, batch)
        deliver(peer, batch)
        judge(peer, batch, refusal(ErrorCode.QUEUE_FULL))

    assert peer.next_action(0) == Sleep(1)


def test_an_older_certificate_number_ends_the_connection_only_if_the_relay_announced_the_newer_first() -> (
    None
):
    lower, higher = a_message(1, issue_number=5), a_message(2, issue_number=6)
    overtaken, wrong = a_peer(), a_peer()

    relay(overtaken, lower, refusal(ErrorCode.OPCERT_COUNTER))
    relay(wrong, higher, ACCEPTED)
    relay(wrong, lower, refusal(ErrorCode.OPCERT_COUNTER), now=1)

    assert overtaken.fault is None
    assert overtaken.score.points(0) == 1
    assert wrong.fault is not None
    assert wrong.fault.code is ErrorCode.OPCERT_COUNTER


def test_an_expiry_a_little_too_far_ahead_is_tried_for_as_long_as_clocks_may_differ() -> None:
    peer = a_peer()
    message = a_message(1)
    relay(peer, message, refusal(ErrorCode.MSG_EXPIRY_TOO_FAR))
    for now in range(1, 5):
        assert peer.next_action(now) == Submit((message,))
        judge(peer, [message], refusal(ErrorCode.MSG_EXPIRY_TOO_FAR), now=now)
        assert peer.fault is None

    assert peer.next_action(CLOCKS_DIFFER_MAX_S) == Submit((message,))
    judge(peer, [message], refusal(ErrorCode.MSG_EXPIRY_TOO_FAR), now=CLOCKS_DIFFER_MAX_S)

    assert peer.fault is not None
    assert peer.fault.code is ErrorCode.MSG_EXPIRY_TOO_FAR


# Leaving


def test_a_pool_beyond_its_share_gives_way_in_a_full_window_and_its_relay_is_not_blamed() -> None:
    peer = a_peer()
    offered = messages(132)
    beyond = rejected(ErrorCode.QUEUE_FULL, "this pool has its share", gives_way=True)
    for start in range(0, 132, 33):
        batch = offered[start : start + 33]
        announce(peer, batch)
        deliver(peer, batch)
        judge(peer, batch, beyond)

    assert peer.next_action(0.5) == AskIds(blocking=False, acknowledged=1, requested=1)
    assert peer.score.points(0.5) == 0


def test_a_peer_that_leaves_leaves_nothing_behind() -> None:
    downloads = Downloads()
    leaving, staying = a_peer("leaving", downloads), a_peer("staying", downloads)
    offered = messages(4)
    announce(leaving, offered[:2])
    deliver(leaving, offered[:2])
    leaving.submitted(offered[:2], [refusal(ErrorCode.QUEUE_FULL)] * 2, now=0)
    announce(leaving, offered[2:], now=ASK_AGAIN_S)
    fetched(leaving, now=ASK_AGAIN_S)
    announce(staying, offered)

    leaving.leave()

    assert len(downloads) == 4
    assert fetched(staying, now=ASK_AGAIN_S) == tuple(message.message_id for message in offered)
    staying.leave()
    assert len(downloads) == 0
