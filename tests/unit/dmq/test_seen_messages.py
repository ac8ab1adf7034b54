"""What a listener remembers: each message is new once, until no node can show it any more."""

from __future__ import annotations

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.seen_messages import GRACE_S, SeenMessages
from stagepost.dmq.validation import TTL_MAX_S
from tests.worlds.ground.strategies import EXPIRES_AT, a_signed_message

NOW = EXPIRES_AT - TTL_MAX_S


def message_number(number: int, expires_at: int = EXPIRES_AT) -> DmqMessage:
    return a_signed_message(body=number.to_bytes(4, "big") * 25, expires_at=expires_at)


def test_message_is_new_once() -> None:
    seen = SeenMessages()

    assert [seen.note(message_number(number), NOW) for number in (1, 2, 1, 2)] == [True, True, False, False]


def test_message_is_remembered_until_its_end_and_a_little_longer() -> None:
    seen = SeenMessages()
    seen.note(message_number(1), NOW)

    assert not seen.note(message_number(1), EXPIRES_AT + GRACE_S)
    assert seen.note(message_number(1), EXPIRES_AT + GRACE_S + 1)


def test_fast_clock_does_not_make_it_forget_at_once() -> None:
    seen = SeenMessages()
    an_hour_ahead = EXPIRES_AT + 3_600.0
    seen.note(message_number(1), an_hour_ahead)

    assert not seen.note(message_number(1), an_hour_ahead + TTL_MAX_S + GRACE_S)


def test_at_the_limit_the_one_that_ends_soonest_is_forgotten() -> None:
    seen = SeenMessages(count_max=2)
    late, soon, third = (
        message_number(1, EXPIRES_AT + 9),
        message_number(2),
        message_number(3, EXPIRES_AT + 5),
    )
    for message in (late, soon, third):
        assert seen.note(message, NOW)

    assert len(seen) == 2
    assert not seen.note(late, NOW)
    assert not seen.note(third, NOW)
    assert seen.note(soon, NOW)


def test_memory_is_given_back_as_messages_end() -> None:
    seen = SeenMessages()
    for number in range(10):
        seen.note(message_number(number), NOW)
    seen.note(message_number(99, EXPIRES_AT + 10_000), EXPIRES_AT + GRACE_S + 1)

    assert len(seen) == 1
