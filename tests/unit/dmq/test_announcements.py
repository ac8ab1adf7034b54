"""The window of message submission: each published rule at its edge, and two windows that never disagree."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepost.dmq.announcements import IDS_REQUESTED_MAX, Announcements, Violation, WindowRules
from stagepost.dmq.profiles import PROFILES
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import MessageId
from tests.worlds.ground.spec_checks import window_faults

SEED_RULES = PROFILES["seed"].window


def an_id(number: int) -> MessageId:
    return MessageId(number.to_bytes(32, "big"))


def announced(first: int, count: int, size: int = 1_000) -> list[MessageIdAndSize]:
    return [MessageIdAndSize(an_id(first + index), size) for index in range(count)]


def a_window(outstanding: int = 0, rules: WindowRules | None = None) -> Announcements:
    """A window in which ids 0, 1, … are announced and not acknowledged."""
    window = Announcements(rules)
    if outstanding:
        assert window.request_ids(blocking=True, acknowledged=0, requested=outstanding) is None
        assert window.reply_ids(announced(0, outstanding)) is None
    return window


def rule_of(violation: Violation | None) -> tuple[str, ErrorCode] | None:
    return None if violation is None else (violation.rule, violation.code)


def asked(
    window: Announcements, acknowledged: int, requested: int, *, blocking: bool = False
) -> Violation | None:
    return window.request_ids(blocking=blocking, acknowledged=acknowledged, requested=requested)


# The requester


def test_no_more_is_acknowledged_than_is_outstanding() -> None:
    assert rule_of(asked(a_window(5), 6, 1)) == ("AckedTooManySigIds", ErrorCode.PROTOCOL_WINDOW)
    assert rule_of(asked(a_window(), 1, 1)) == ("AckedTooManySigIds", ErrorCode.PROTOCOL_WINDOW)
    assert asked(a_window(5), 4, 1) is None
    assert asked(a_window(5), 5, 1, blocking=True) is None


def test_at_most_132_ids_are_outstanding_after_a_request() -> None:
    assert asked(a_window(100), 0, 32) is None
    assert asked(a_window(132), 1, 1) is None
    assert asked(a_window(), 0, 132, blocking=True) is None
    assert rule_of(asked(a_window(100), 0, 33)) == ("RequestedTooManySigIds", ErrorCode.PROTOCOL_WINDOW)
    assert rule_of(asked(a_window(132), 1, 2)) == ("RequestedTooManySigIds", ErrorCode.PROTOCOL_WINDOW)
    assert rule_of(asked(a_window(), 0, 133, blocking=True)) == (
        "RequestedTooManySigIds",
        ErrorCode.PROTOCOL_WINDOW,
    )


def test_four_requests_of_the_usual_33_fill_the_window() -> None:
    assert 4 * IDS_REQUESTED_MAX == 132


def test_ids_that_earlier_requests_may_still_bring_count_as_outstanding() -> None:
    window = a_window(1)
    assert asked(window, 0, 100) is None

    assert rule_of(asked(window, 0, 32)) == ("RequestedTooManySigIds", ErrorCode.PROTOCOL_WINDOW)
    assert asked(window, 0, 31) is None


def test_a_blocking_request_asks_for_at_least_one() -> None:
    assert rule_of(asked(a_window(), 0, 0, blocking=True)) == ("RequestedNothing", ErrorCode.PROTOCOL_REQUEST)
    assert rule_of(asked(a_window(2), 2, 0, blocking=True)) == (
        "RequestedNothing",
        ErrorCode.PROTOCOL_REQUEST,
    )
    assert asked(a_window(), 0, 1, blocking=True) is None


def test_a_non_blocking_request_acknowledges_or_asks_for_at_least_one() -> None:
    assert rule_of(asked(a_window(2), 0, 0)) == ("RequestedNothing", ErrorCode.PROTOCOL_REQUEST)
    assert asked(a_window(2), 1, 0) is None
    assert asked(a_window(2), 0, 1) is None


def test_a_blocking_request_needs_an_empty_window() -> None:
    assert rule_of(asked(a_window(2), 1, 5, blocking=True)) == ("RequestBlocking", ErrorCode.PROTOCOL_REQUEST)
    assert asked(a_window(2), 2, 5, blocking=True) is None


def test_a_non_blocking_request_needs_a_window_that_is_not_empty() -> None:
    assert rule_of(asked(a_window(2), 2, 5)) == ("RequestNonBlocking", ErrorCode.PROTOCOL_REQUEST)
    assert rule_of(asked(a_window(), 0, 5)) == ("RequestNonBlocking", ErrorCode.PROTOCOL_REQUEST)
    assert asked(a_window(2), 1, 5) is None


def test_ids_that_are_only_hoped_for_do_not_fill_the_window() -> None:
    # The supplier may answer the first request with nothing; then its window is empty at the second.
    window = a_window(1)
    assert asked(window, 0, 5) is None

    assert rule_of(asked(window, 1, 5)) == ("RequestNonBlocking", ErrorCode.PROTOCOL_REQUEST)


def test_only_ids_in_the_window_are_requested() -> None:
    window = a_window(3)
    assert rule_of(window.request_messages([an_id(7)])) == (
        "RequestedUnavailableSig",
        ErrorCode.PROTOCOL_WINDOW,
    )
    assert window.request_messages([an_id(0), an_id(2)]) is None


def test_an_acknowledged_id_cannot_be_requested_any_more() -> None:
    window = a_window(3)
    assert asked(window, 1, 1) is None

    assert rule_of(window.request_messages([an_id(0)])) == (
        "RequestedUnavailableSig",
        ErrorCode.PROTOCOL_WINDOW,
    )
    assert window.request_messages([an_id(1)]) is None


def test_acknowledging_takes_the_oldest_first() -> None:
    window = a_window(3)
    assert asked(window, 2, 1) is None

    assert window.unacknowledged == 1
    assert window.request_messages([an_id(2)]) is None
    assert window.request_messages([an_id(1)]) is not None


def test_an_id_announced_twice_is_available_until_its_last_announcement_is_acknowledged() -> None:
    window = a_window(1)
    assert asked(window, 0, 2) is None
    assert window.reply_ids(announced(0, 1)) is None
    assert window.unacknowledged == 2

    assert asked(window, 1, 1) is None
    assert window.request_messages([an_id(0)]) is None


# The supplier


def test_a_reply_has_at_most_as_many_ids_as_were_requested() -> None:
    window = Announcements()
    assert asked(window, 0, 3, blocking=True) is None

    assert rule_of(window.reply_ids(announced(0, 4))) == ("SigIdsNotRequested", ErrorCode.PROTOCOL_WINDOW)
    assert window.reply_ids(announced(0, 3)) is None


def test_the_reply_to_a_blocking_request_is_not_empty() -> None:
    window = Announcements()
    assert asked(window, 0, 3, blocking=True) is None

    violation = window.reply_ids([])

    assert violation is not None
    assert violation.code is ErrorCode.PROTOCOL_WINDOW
    assert window.reply_ids(announced(0, 1)) is None


def test_the_reply_to_a_non_blocking_request_may_be_empty() -> None:
    window = a_window(1)
    assert asked(window, 0, 3) is None

    assert window.reply_ids([]) is None


def test_no_news_answers_a_blocking_request() -> None:
    window = Announcements()
    assert asked(window, 0, 3, blocking=True) is None
    window.reply_no_ids()

    assert (window.ids_due, window.unacknowledged) == (0, 0)
    assert asked(window, 0, 3, blocking=True) is None


def a_window_with_request(*numbers: int) -> Announcements:
    window = a_window(5)
    assert window.request_messages([an_id(number) for number in numbers]) is None
    return window


def test_every_returned_message_was_requested() -> None:
    window = a_window_with_request(1, 2)

    assert rule_of(window.reply_messages(announced(3, 1))) == ("SigNotRequested", ErrorCode.PROTOCOL_WINDOW)


def test_messages_may_come_in_any_order_and_some_may_be_missing() -> None:
    for numbers in ([2, 1], [1], []):
        window = a_window_with_request(1, 2)
        assert window.reply_messages([MessageIdAndSize(an_id(number), 1_000) for number in numbers]) is None


@pytest.mark.parametrize(
    ("size", "fits"), [(967, False), (968, True), (1_000, True), (1_032, True), (1_033, False)]
)
def test_the_real_size_is_within_32_bytes_of_the_announced_one(size: int, fits: bool) -> None:
    violation = a_window_with_request(1).reply_messages([MessageIdAndSize(an_id(1), size)])

    assert rule_of(violation) == (None if fits else ("TxSizeError", ErrorCode.PROTOCOL_SIZE))


def test_replies_are_matched_to_requests_in_order() -> None:
    window = a_window_with_request(1)
    assert window.request_messages([an_id(2)]) is None

    assert window.reply_messages(announced(2, 1)) is not None
    assert window.reply_messages(announced(1, 1)) is None
    assert window.reply_messages(announced(2, 1)) is None


def test_a_message_requested_before_its_id_was_acknowledged_may_still_come() -> None:
    window = a_window_with_request(0)
    assert asked(window, 1, 1) is None

    assert window.reply_messages(announced(0, 1)) is None


# Refusals and relaxations


def test_a_refused_request_changes_nothing() -> None:
    window = a_window(100)
    for acknowledged, requested, blocking in ((101, 1, False), (0, 33, False), (0, 0, False), (1, 1, True)):
        assert asked(window, acknowledged, requested, blocking=blocking) is not None
        assert (window.unacknowledged, window.ids_due) == (100, 0)
    assert window.request_messages([an_id(200)]) is not None

    assert asked(window, 0, 32) is None


def test_the_documents_allow_asking_either_way_at_any_fill() -> None:
    assert asked(a_window(2, SEED_RULES), 0, 5, blocking=True) is None
    assert asked(a_window(0, SEED_RULES), 0, 5) is None
    assert asked(a_window(2, SEED_RULES), 2, 5) is None


def test_the_documents_allow_an_empty_reply_to_a_blocking_request() -> None:
    window = Announcements(SEED_RULES)
    assert asked(window, 0, 5, blocking=True) is None

    assert window.reply_ids([]) is None


def test_the_documents_relax_no_other_rule() -> None:
    assert rule_of(asked(a_window(5, SEED_RULES), 6, 1)) == ("AckedTooManySigIds", ErrorCode.PROTOCOL_WINDOW)
    assert rule_of(asked(a_window(100, SEED_RULES), 0, 33)) == (
        "RequestedTooManySigIds",
        ErrorCode.PROTOCOL_WINDOW,
    )
    assert rule_of(asked(a_window(2, SEED_RULES), 0, 0)) == ("RequestedNothing", ErrorCode.PROTOCOL_REQUEST)
    assert rule_of(asked(a_window(2, SEED_RULES), 2, 0, blocking=True)) == (
        "RequestedNothing",
        ErrorCode.PROTOCOL_REQUEST,
    )
    assert a_window(2, SEED_RULES).request_messages([an_id(9)]) is not None


@pytest.mark.parametrize("name", ["dmq-node", "gouroboros"])
def test_running_nodes_relax_nothing(name: str) -> None:
    assert PROFILES[name].window == WindowRules(132, True, False)


@given(st.sampled_from(sorted(PROFILES)), st.integers(0, 2**32))
@settings(max_examples=300)
def test_a_puller_and_a_supplier_never_disagree(profile: str, seed: int) -> None:
    rules = PROFILES[profile].window

    assert window_faults(Announcements(rules), Announcements(rules), Random(seed)) == []
