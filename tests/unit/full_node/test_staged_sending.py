"""A full node hands messages over: whom it tells, when, and when it is enough."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from random import Random

import pytest

from stagepost.errors import ErrorCode, StagepostError
from stagepost.full_node.staged_sending import (
    CATCHAINS_KEPT,
    CATCHAINS_KEPT_NEAR_SWITCH,
    DIES_AFTER_FINAL_S,
    ORDER_LASTS_S,
    PAUSE_LONGEST_S,
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    RECEIPTS_PER_SOURCE_MAX,
    ROUND_PAUSE_S,
    Forget,
    ReportSent,
    SendingEffect,
    SendingOptions,
    SendTo,
    StagedSending,
)
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, Rejected, Timeout
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level

ID = sha256(b"a message").digest()
OTHER = sha256(b"another message").digest()


def validators(count: int, name: str = "v") -> tuple[bytes, ...]:
    return tuple(sha256(f"{name}{number}".encode()).digest() for number in range(count))


SEVEN = validators(7)


def sending(options: SendingOptions | None = None, seed: int = 1) -> StagedSending:
    return StagedSending(Random(seed), options)


def receipt(
    source: bytes, status: MessageStatus | None = None, at_ms: int = 1, message_id: bytes = ID
) -> Receipt:
    return Receipt(ExternalMessageId(message_id), status or New(), at_ms, source, "signature")


def told(effects: Sequence[SendingEffect]) -> list[bytes]:
    return [effect.validator for effect in effects if isinstance(effect, SendTo)]


def reports(effects: Sequence[SendingEffect]) -> list[tuple[int, int]]:
    return [(effect.sent_to, effect.total) for effect in effects if isinstance(effect, ReportSent)]


def test_one_validator_at_random_is_told_at_once() -> None:
    firsts = {told(sending(seed=seed).begin(ID, SEVEN, (), 10, 0.0))[0] for seed in range(40)}
    assert firsts == set(SEVEN)


def test_messages_of_one_moment_go_to_the_same_validators_and_later_ones_to_others() -> None:
    one = sending()
    ways: list[list[bytes]] = []
    moment = 5.0
    for number in range(40):
        message_id = sha256(b"%d" % number).digest()
        # Two in each moment: one that begins it, and one at its very end.
        now = moment
        if number % 2:
            moment += ORDER_LASTS_S
            now = moment - 1e-6
        (first,) = told(one.begin(message_id, SEVEN, (), 10, now))
        (second,) = told(one.receipt_came(receipt(first, message_id=message_id), now))
        ways.append([first, second])
    assert ways[::2] == ways[1::2]
    assert {first for first, _ in ways} == set(SEVEN)


def test_without_receipts_the_next_is_told_after_a_pause_of_100_to_200_ms() -> None:
    one = sending()
    one.begin(ID, SEVEN, (), 10, 0.0)
    found = []
    now = 0.0
    for _ in range(6):
        wake = one.next_wake
        assert wake is not None
        assert PAUSE_MIN_S <= wake - now <= PAUSE_MAX_S
        assert one.tick(wake - 0.001) == []
        now = wake
        found += told(one.tick(now))
    assert len(set(found)) == 6


def test_a_receipt_makes_the_next_be_told_at_once_until_more_than_a_third_has_it() -> None:
    one = sending()
    (first,) = told(one.begin(ID, SEVEN, (), 10, 0.0))
    (second,) = told(one.receipt_came(receipt(first), 0.01))
    assert second != first
    (third,) = told(one.receipt_came(receipt(second), 0.02))
    # 3 · 2 is not more than 7, 3 · 3 is.
    effects = one.receipt_came(receipt(third), 0.03)
    assert effects == [ReportSent(ID, 3, 7, 0.0)]
    assert one.next_wake is None
    assert one.tick(100.0) == []


@pytest.mark.parametrize(("size", "enough"), [(1, 1), (2, 1), (3, 2), (4, 2), (6, 3), (7, 3), (21, 8)])
def test_enough_is_one_more_than_a_third(size: int, enough: int) -> None:
    one = sending()
    subset = validators(size)
    one.begin(ID, subset, (), 10, 0.0)
    for source in subset[: enough - 1]:
        assert reports(one.receipt_came(receipt(source), 0.0)) == []
    effects = one.receipt_came(receipt(subset[enough - 1]), 0.0)
    assert len(reports(effects)) == 1
    assert told(effects) == []


def test_who_answered_without_being_told_is_not_told() -> None:
    one = sending()
    (first,) = told(one.begin(ID, SEVEN, (), 10, 0.0))
    unasked = next(source for source in SEVEN if source != first)
    (second,) = told(one.receipt_came(receipt(unasked), 0.01))
    assert second not in (first, unasked)


def test_a_second_receipt_of_the_same_validator_hurries_nobody() -> None:
    one = sending()
    (first,) = told(one.begin(ID, SEVEN, (), 10, 0.0))
    assert len(told(one.receipt_came(receipt(first), 0.01))) == 1
    assert one.receipt_came(receipt(first, Accepted(Level.COLLATOR), 2), 0.02) == []


def test_pauses_grow_with_the_time_that_validators_take_and_shrink_again() -> None:
    one = sending()
    pauses: list[float] = []
    now = 0.0
    for number, answer_s in enumerate([0.01] * 10 + [0.8] * 60 + [5.0] * 60 + [0.01] * 60):
        message_id = sha256(b"%d" % number).digest()
        (first,) = told(one.begin(message_id, SEVEN, (), 10, now))
        history = one.get(message_id)
        assert history is not None
        assert history.next_at is not None
        pauses.append(history.next_at - now)
        one.receipt_came(receipt(first, message_id=message_id), now + answer_s)
        one.finalized(message_id, now + answer_s)
    assert all(PAUSE_MIN_S <= pause <= PAUSE_MAX_S for pause in pauses[:11])
    assert pauses[69] == pytest.approx(1.6, abs=0.05)
    assert max(pauses) == PAUSE_LONGEST_S
    assert pauses[-1] <= PAUSE_MAX_S


def test_when_all_were_told_only_those_who_have_not_answered_are_told_again() -> None:
    one = sending()
    found = told(one.begin(ID, SEVEN, (), 10, 0.0))
    while len(found) < 7:
        wake = one.next_wake
        assert wake is not None
        found += told(one.tick(wake))
    wake = one.next_wake
    assert wake is not None
    assert one.tick(wake) == [ReportSent(ID, 7, 7, 0.0)]
    again_at = one.next_wake
    assert again_at == pytest.approx(wake + ROUND_PAUSE_S)
    answered = found[0]
    one.receipt_came(receipt(answered), wake)
    second_round: list[bytes] = []
    while len(second_round) < 5:
        wake = one.next_wake
        assert wake is not None
        effects = one.tick(wake)
        assert reports(effects) == []
        second_round += told(effects)
    assert answered not in second_round


def test_without_a_link_the_next_is_told_at_once_and_nobody_counts_as_told() -> None:
    one = sending()
    (first,) = told(one.begin(ID, SEVEN, (), 10, 0.0))
    tried = [first]
    while effects := one.not_sent(tried[-1], ID, 0.0):
        assert reports(effects) == []
        tried += told(effects)
    assert sorted(tried) == sorted(SEVEN)
    assert one.next_wake == ROUND_PAUSE_S
    (again,) = told(one.validator_linked(0.5))
    assert again in SEVEN
    assert one.validator_linked(0.6) == []
    (report,) = (effect for effect in one.finalized(ID, 0.9) if isinstance(effect, ReportSent))
    assert (report.sent_to, report.since) == (1, 0.5)


NEXT = validators(4, "next")


def test_near_a_switch_the_coming_session_is_told_at_once_and_is_no_condition() -> None:
    one = sending()
    now_set = validators(4)
    first, *beside = told(one.begin(ID, now_set, (*NEXT, *now_set[:2]), 10, 0.0))
    assert first in now_set
    assert sorted(beside) == sorted(NEXT), "members of both get it as members of the session at work"
    # Those that follow answer early: nothing comes of it.
    for source in NEXT:
        assert one.receipt_came(receipt(source), 0.01) == []
    (second,) = told(one.receipt_came(receipt(first), 0.02))
    assert reports(one.receipt_came(receipt(second), 0.03)) == [(2, 4)]


def test_a_coming_member_without_a_link_hurries_nobody() -> None:
    one = sending()
    one.begin(ID, validators(4), NEXT, 10, 0.0)
    assert one.not_sent(NEXT[0], ID, 0.0) == []


def test_after_a_switch_the_new_session_decides_and_those_told_early_are_not_told_again() -> None:
    one = sending()
    now_set = validators(4)
    one.begin(ID, now_set, NEXT[:3], 10, 0.0)
    one.receipt_came(receipt(now_set[0]), 0.1)
    effects = one.move(ID, NEXT, validators(1, "third"), 5.0)
    assert told(effects) == list(validators(1, "third")), "the early ones have it, and answer now"
    wake = one.next_wake
    assert wake is not None
    assert wake > 5.0
    assert told(one.tick(wake)) == [NEXT[3]], "the one that has not got it goes first"
    one.receipt_came(receipt(NEXT[0]), 5.3)
    effects = one.receipt_came(receipt(NEXT[1]), 5.3)
    assert reports(effects) == [(4, 4)]
    assert one.next_wake is None


def test_a_switch_to_strangers_sends_at_once_and_to_those_who_answered_ends_the_sending() -> None:
    one = sending()
    now_set = validators(4)
    one.begin(ID, now_set, (), 10, 0.0)
    assert len(told(one.move(ID, NEXT, (), 1.0))) == 1
    one.receipt_came(receipt(now_set[0]), 1.1)
    one.receipt_came(receipt(now_set[1]), 1.1)
    assert reports(one.move(ID, now_set, (), 1.2)) == [(2, 4)] or one.next_wake is None
    assert one.move(ID, NEXT, NEXT, 2.0) == [], "enough of an earlier session have it"
    assert one.move(OTHER, NEXT, (), 2.0) == []


def test_a_message_in_processing_is_an_error_to_whoever_sends_it_again() -> None:
    one = sending()
    one.begin(ID, SEVEN, (), 10, 0.0)
    with pytest.raises(StagepostError, match="in processing already") as caught:
        one.begin(ID, SEVEN, (), 10, 0.1)
    assert caught.value.code is ErrorCode.MSG_DUPLICATE
    assert told(one.begin(OTHER, SEVEN, (), 10, 0.1))


def test_as_many_messages_as_the_limit_says_are_in_processing_and_no_more() -> None:
    one = sending(SendingOptions(messages_max=1))
    one.begin(ID, SEVEN, (), 10, 0.0)
    with pytest.raises(StagepostError) as caught:
        one.begin(OTHER, SEVEN, (), 10, 0.0)
    assert caught.value.code is ErrorCode.QUEUE_FULL


def test_without_validators_nothing_is_begun() -> None:
    one = sending()
    with pytest.raises(StagepostError) as caught:
        one.begin(ID, (), (), 10, 0.0)
    assert caught.value.code is ErrorCode.NOT_READY
    assert ID not in one


def test_a_receipt_is_repeated_if_source_and_bytes_are_the_same() -> None:
    one = sending()
    one.begin(ID, SEVEN, (), 10, 0.0)
    first, second = SEVEN[:2]
    assert not one.is_repeated(receipt(first))
    one.receipt_came(receipt(first), 0.0)
    assert one.is_repeated(receipt(first))
    assert not one.is_repeated(receipt(second))
    assert not one.is_repeated(receipt(first, at_ms=2))
    assert not one.is_repeated(receipt(first, Timeout()))
    assert not one.is_repeated(receipt(first, message_id=OTHER))


def test_more_receipts_of_one_source_than_anybody_needs_count_as_repeated() -> None:
    one = sending()
    one.begin(ID, SEVEN, (), 10, 0.0)
    source = SEVEN[0]
    for number in range(RECEIPTS_PER_SOURCE_MAX):
        assert not one.is_repeated(receipt(source, at_ms=number))
        one.receipt_came(receipt(source, at_ms=number), 0.0)
    assert one.is_repeated(receipt(source, at_ms=RECEIPTS_PER_SOURCE_MAX))


def test_a_history_dies_100_s_after_the_end() -> None:
    one = sending()
    one.begin(ID, SEVEN, (), 10, 0.0)
    one.finalized(ID, 1.0)
    assert one.next_wake == 1.0 + DIES_AFTER_FINAL_S
    assert one.tick(1.0 + DIES_AFTER_FINAL_S - 0.001) == []
    assert ID in one
    assert one.tick(1.0 + DIES_AFTER_FINAL_S) == [Forget(ID)]
    assert ID not in one


def test_a_validator_that_refuses_the_message_does_not_count_and_the_next_is_told() -> None:
    one = sending()
    (first,) = told(one.begin(ID, SEVEN, (), 10, 0.0))
    refusal = Rejected(Level.QUEUE, "it may announce no more")
    found = told(one.receipt_came(receipt(first, refusal), 0.01))
    for number in range(3):
        assert len(found) == 1, "the next one is told at once"
        effects = one.receipt_came(receipt(found[0]), 0.02 + number * 0.01)
        found = told(effects)
    assert reports(effects) == [(4, 7)], "three have taken it, the fourth has not"


def test_a_validator_that_refused_may_take_the_message_in_a_later_round() -> None:
    one = sending()
    (first,) = told(one.begin(ID, SEVEN[:1], (), 10, 0.0))
    one.receipt_came(receipt(first, Rejected(Level.QUEUE, "later")), 0.01)
    history = one.get(ID)
    assert history is not None
    assert history.answered == set()
    one.receipt_came(receipt(first, New(), 2), 3.0)
    assert history.is_with_enough


def test_one_refusal_is_no_end_and_that_of_all_is() -> None:
    one = sending()
    one.begin(ID, SEVEN, (), 10, 0.0)
    for source in SEVEN[:-1]:
        one.receipt_came(receipt(source, Rejected(Level.COLLATOR, "no")), 1.0)
    history = one.get(ID)
    assert history is not None
    assert history.dies_at is None
    one.receipt_came(receipt(SEVEN[-1], Timeout()), 2.0)
    assert history.dies_at == 2.0 + DIES_AFTER_FINAL_S


@pytest.mark.parametrize(
    ("coming", "kept"), [((), CATCHAINS_KEPT), (validators(1, "next"), CATCHAINS_KEPT_NEAR_SWITCH)]
)
def test_a_history_is_dropped_when_the_masterchain_has_gone_on(coming: tuple[bytes, ...], kept: int) -> None:
    one = sending()
    one.begin(ID, SEVEN, coming, 10, 0.0)
    one.finalized(ID, 1.0)
    assert one.master_advanced(10 + kept - 1) == []
    assert one.master_advanced(10 + kept) == [ID]
    one.begin(ID, SEVEN, (), 10 + kept, 2.0)
    assert Forget(ID) not in one.tick(1.0 + DIES_AFTER_FINAL_S), "the timer of an earlier life"
    assert ID in one
