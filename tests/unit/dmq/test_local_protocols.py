"""The two local protocols: what is tolerated from other servers, and what a program is told about its own mistakes."""

from __future__ import annotations

import contextlib
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq import local_notification, local_submission
from stagepost.dmq.local_notification import ReplyMessagesBlocking, ReplyMessagesNonBlocking
from stagepost.dmq.local_submission import (
    AlreadyReceived,
    Expired,
    Invalid,
    Other,
    RejectMessage,
    SubmitMessage,
)
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.message_field import MalformedMessage
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import DecodeError, ErrorCode, RemoteProtocolError
from stagepost.ground.wire.codec import Codec
from stagepost.ground.wire.framing import Framer, ItemLimits
from tests.worlds.ground.strategies import MessageParts, cbor_values, written_head

NOTIFICATION = MiniProtocol.LOCAL_MESSAGE_NOTIFICATION
SUBMISSION = MiniProtocol.LOCAL_MESSAGE_SUBMISSION
every_profile = pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)

FIRST = MessageParts().decoded()
SECOND = MessageParts(body=b"\x99" * 500).decoded()
LISTS = {
    "definite": b"\x82" + FIRST.raw + SECOND.raw,
    "indefinite": b"\x9f" + FIRST.raw + SECOND.raw + b"\xff",
}


class Listener:
    """One side of an instance that reads: framing and codec together, as a conversation has them."""

    def __init__(self, protocol: MiniProtocol, profile: Profile = PROFILES["dmq-node"]) -> None:
        self.codec: Codec = codec_for(profile, protocol)
        self._spec = spec_for(profile, protocol)
        self._framer = Framer()

    def hears(self, data: bytes, state: str) -> Any:
        """The message that is complete with `data`, or None."""
        self._framer.feed(data)
        where = self._spec.state(state)
        limits = ItemLimits(where.message_bytes_max, where.items_max)
        item = self._framer.next_item(limits, headless_third=self.codec.table.headless_third.get(state))
        return None if item is None else self.codec.decode(item, state)


# Blocking replies of other servers


@every_profile
@pytest.mark.parametrize("messages", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize(
    ("head", "third"), [(b"\x82", b""), (b"\x83", b""), (b"\x83", b"\xf4"), (b"\x83", b"\xf5")]
)
def test_every_published_form_of_a_blocking_reply_is_read(
    profile: Profile, messages: bytes, head: bytes, third: bytes
) -> None:
    listener = Listener(NOTIFICATION, profile)

    reply = listener.hears(head + b"\x02" + messages + third, "BusyBlocking")

    assert reply == ReplyMessagesBlocking((FIRST, SECOND))


@every_profile
def test_a_blocking_reply_is_written_with_two_elements(profile: Profile) -> None:
    raw = codec_for(profile, NOTIFICATION).encode(ReplyMessagesBlocking((FIRST,)))

    assert raw[:2] == b"\x82\x02"
    assert len(cbor2.loads(raw)) == 2


@pytest.mark.parametrize("third", [b"", b"\xf4", b"\xf5"], ids=["never", "false", "true"])
@pytest.mark.parametrize("together", [True, False], ids=["with the next message", "in a piece of its own"])
@pytest.mark.parametrize("messages", LISTS.values(), ids=LISTS)
def test_a_boolean_that_comes_later_or_never_does_not_disturb_what_follows(
    messages: bytes, together: bool, third: bytes
) -> None:
    listener = Listener(NOTIFICATION)
    following = b"\x83\x01\x9f" + FIRST.raw + b"\xff\xf5"
    assert listener.hears(b"\x83\x02" + messages, "BusyBlocking") == ReplyMessagesBlocking((FIRST, SECOND))

    if not together and third:
        assert listener.hears(third, "BusyNonBlocking") is None
        third = b""
    heard = listener.hears(third + following, "BusyNonBlocking")

    assert heard == ReplyMessagesNonBlocking((FIRST,), True)
    assert listener.hears(b"\x83\x02" + messages, "BusyBlocking") == ReplyMessagesBlocking((FIRST, SECOND))


def test_a_tolerated_reply_is_complete_at_its_last_message_wherever_the_bytes_are_cut() -> None:
    whole = b"\x83\x02" + LISTS["indefinite"]
    for cut in range(1, len(whole)):
        listener = Listener(NOTIFICATION)
        assert listener.hears(whole[:cut], "BusyBlocking") is None
        assert listener.hears(whole[cut:], "BusyBlocking") == ReplyMessagesBlocking((FIRST, SECOND))


def test_two_tolerated_replies_behind_each_other_are_two_replies() -> None:
    listener = Listener(NOTIFICATION)
    reply = b"\x83\x02\x81" + FIRST.raw

    for data in (reply + reply, b"", reply + b"\xf4" + reply, b""):
        assert listener.hears(data, "BusyBlocking") == ReplyMessagesBlocking((FIRST,))


def test_only_one_boolean_is_tolerated() -> None:
    listener = Listener(NOTIFICATION)
    listener.hears(b"\x83\x02\x81" + FIRST.raw, "BusyBlocking")

    with pytest.raises(DecodeError):
        listener.hears(b"\xf4\xf4", "BusyBlocking")


@pytest.mark.parametrize("third", [b"\x00", b"\x80", b"\xf6", b"\x41\x00"])
def test_a_third_element_that_is_no_boolean_is_refused(third: bytes) -> None:
    listener = Listener(NOTIFICATION)
    listener.hears(b"\x83\x02\x81" + FIRST.raw + third, "BusyBlocking")

    with pytest.raises(RemoteProtocolError):
        listener.hears(b"\x81\x03", "BusyNonBlocking")


@every_profile
@pytest.mark.parametrize("raw", ["820280", "82029fff", "830280", "83029fff", "830280f4", "83029ffff5"])
def test_an_empty_blocking_reply_is_refused(profile: Profile, raw: str) -> None:
    with pytest.raises(DecodeError):
        Listener(NOTIFICATION, profile).hears(bytes.fromhex(raw), "BusyBlocking")


@pytest.mark.parametrize("raw", ["830180f4", "83019ffff4"])
def test_an_empty_non_blocking_reply_is_normal(raw: str) -> None:
    heard = Listener(NOTIFICATION).hears(bytes.fromhex(raw), "BusyNonBlocking")

    assert heard == ReplyMessagesNonBlocking((), False)


@pytest.mark.parametrize("raw", ["820180", "82019fff", "840180f4f4", "830180f6"])
def test_a_non_blocking_reply_has_exactly_a_list_and_a_boolean(raw: str) -> None:
    with pytest.raises(DecodeError):
        Listener(NOTIFICATION).hears(bytes.fromhex(raw), "BusyNonBlocking")


@pytest.mark.parametrize(("raw", "state"), [("830180f4", "BusyBlocking"), ("8202", "BusyNonBlocking")])
def test_a_reply_of_the_other_kind_is_the_peers_fault(raw: str, state: str) -> None:
    data = bytes.fromhex(raw) + (b"" if state == "BusyBlocking" else b"\x81" + FIRST.raw)

    with pytest.raises(RemoteProtocolError):
        Listener(NOTIFICATION).hears(data, state)


def test_a_reply_of_a_thousand_messages_is_read_and_one_more_is_not() -> None:
    thousand = written_head(4, 1_000) + FIRST.raw * 1_000
    heard = Listener(NOTIFICATION).hears(b"\x83\x01" + thousand + b"\xf4", "BusyNonBlocking")
    assert len(heard.messages) == 1_000

    for head, state, tail in ((b"\x83\x01", "BusyNonBlocking", b"\xf4"), (b"\x82\x02", "BusyBlocking", b"")):
        more = b"\x9f" + FIRST.raw * 1_001 + b"\xff"
        with pytest.raises(DecodeError) as caught:
            Listener(NOTIFICATION).hears(head + more + tail, state)
        assert (caught.value.code, caught.value.limit) == (ErrorCode.CBOR_LIMIT, 1_000)


def test_we_send_a_hundred_messages_at_a_time() -> None:
    assert (local_notification.MESSAGES_SENT_MAX, local_notification.MESSAGES_ACCEPTED_MAX) == (100, 1_000)


def test_the_older_layout_in_a_notification_is_read_in_the_documents_profile_only() -> None:
    legacy = MessageParts(elements=4).raw()
    raw = b"\x82\x02\x81" + legacy

    heard = Listener(NOTIFICATION, PROFILES["seed"]).hears(raw, "BusyBlocking")

    assert heard.messages[0].raw == legacy
    for name in ("dmq-node", "gouroboros"):
        with pytest.raises(DecodeError):
            Listener(NOTIFICATION, PROFILES[name]).hears(raw, "BusyBlocking")


# Reject reasons

REASONS = {
    "820282006161": Invalid("a"),
    "82028101": AlreadyReceived(),
    "82028102": Expired(),
    "820282036162": Other("b"),
}
TOLERATED = {
    "8202820160": AlreadyReceived(),
    "820282016178": AlreadyReceived(),
    "8202820260": Expired(),
    "820282026178": Expired(),
}


@every_profile
@pytest.mark.parametrize(("raw", "reason"), REASONS.items())
def test_reasons_are_written_and_read_as_tabled(profile: Profile, raw: str, reason: Any) -> None:
    listener = Listener(SUBMISSION, profile)

    assert listener.hears(bytes.fromhex(raw), "Busy") == RejectMessage(reason)
    assert listener.codec.encode(RejectMessage(reason)).hex() == raw


@every_profile
@pytest.mark.parametrize(("raw", "reason"), TOLERATED.items())
def test_reasons_without_text_are_read_with_one_and_written_without(
    profile: Profile, raw: str, reason: Any
) -> None:
    listener = Listener(SUBMISSION, profile)

    assert listener.hears(bytes.fromhex(raw), "Busy") == RejectMessage(reason)
    assert listener.codec.encode(RejectMessage(reason)).hex() in REASONS


@pytest.mark.parametrize(
    "raw",
    [
        "82028100",
        "8202820000",
        "820283006161f4",
        "82028103",
        "8202820160" + "00",
        "8202820100",
        "82028104",
        "820280",
    ],
)
def test_reasons_of_another_form_are_refused(raw: str) -> None:
    with pytest.raises(DecodeError):
        codec_for(PROFILES["dmq-node"], SUBMISSION).decode(bytes.fromhex(raw), "Busy")


# Submitting what is no message


def submitted(item: bytes, profile: str = "dmq-node") -> Any:
    return Listener(SUBMISSION, PROFILES[profile]).hears(b"\x82\x00" + item, "Idle")


def test_a_message_is_handed_over_as_it_came() -> None:
    assert submitted(FIRST.raw) == SubmitMessage(FIRST)


MALFORMED = {
    "a number": b"\x05",
    "a boolean": b"\xf5",
    "a text": b"\x65hello",
    "an empty array": b"\x80",
    "a nested array": b"\x81\x81\x80",
    "four elements": MessageParts(elements=4).raw(),
    "an indefinite array": b"\x9f" + FIRST.raw[1:] + b"\xff",
    "a toy": bytes.fromhex("854301020383430001020a1864440001020384430102030405410646000102030405"),
    "a short signature": MessageParts(kes_signature=bytes(447)).raw(),
    "a late expiry": MessageParts(expires_at=2**32).raw(),
    "a number longer than needed": b"\x18\x05",
}


@pytest.mark.parametrize("item", MALFORMED.values(), ids=MALFORMED)
def test_well_formed_cbor_that_is_no_message_is_named_and_not_fatal(item: bytes) -> None:
    heard = submitted(item)

    assert isinstance(heard, SubmitMessage)
    assert isinstance(heard.message, MalformedMessage)
    assert heard.message.raw == item
    assert heard.message.code is ErrorCode.CBOR_INVALID
    assert heard.message.text


@pytest.mark.parametrize("size", [0, 89, 2_001])
def test_a_body_of_wrong_size_is_named_by_its_own_code(size: int) -> None:
    heard = submitted(MessageParts(body=bytes(size)).raw())

    assert isinstance(heard.message, MalformedMessage)
    assert heard.message.code is ErrorCode.MSG_BODY_SIZE
    assert f"{size} bytes" in heard.message.text
    assert "90 to 2000" in heard.message.text


def test_the_older_layout_is_a_message_in_the_documents_profile_only() -> None:
    item = MessageParts(elements=4).raw()

    assert isinstance(submitted(item, "seed").message, DmqMessage)
    for name in ("dmq-node", "gouroboros"):
        assert isinstance(submitted(item, name).message, MalformedMessage)


NOT_CBOR = {
    "a break": b"\xff",
    "a reserved head": b"\x1c",
    "a break inside a message": FIRST.raw[:35] + b"\xff" + FIRST.raw[36:],
    "a map": b"\xa0",
    "a tag": b"\xc1\x00",
    "a float": b"\xf9\x00\x00",
    "null": b"\xf6",
}


@pytest.mark.parametrize("item", NOT_CBOR.values(), ids=NOT_CBOR)
def test_what_is_no_cbor_of_ours_is_fatal(item: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        submitted(item)
    assert caught.value.code is ErrorCode.CBOR_INVALID


def test_the_codec_alone_tells_no_cbor_from_no_message() -> None:
    codec = codec_for(PROFILES["dmq-node"], SUBMISSION)
    for data in (b"\x82\x00", b"\x82\x00\xff", b"\x82\x00\x42a", b"\x82\x00" + FIRST.raw[:-1]):
        with pytest.raises(DecodeError):
            codec.decode(data, "Idle")
    with pytest.raises(DecodeError):
        codec.decode(b"\x82\x00" + FIRST.raw + b"\x00", "Idle")


def test_two_things_where_one_message_belongs_are_refused() -> None:
    with pytest.raises(DecodeError):
        Listener(SUBMISSION).hears(b"\x83\x00" + FIRST.raw + FIRST.raw, "Idle")


@given(cbor_values().filter(lambda value: not isinstance(value, dict)))
def test_any_value_submitted_is_a_malformed_message_or_a_decode_error(value: Any) -> None:
    item = cbor2.dumps(value)
    with contextlib.suppress(DecodeError):
        heard = submitted(item)
        assert isinstance(heard.message, MalformedMessage)
        assert heard.message.raw == item


@given(st.binary(min_size=1, max_size=60))
def test_any_bytes_submitted_are_a_malformed_message_or_unfinished_or_a_decode_error(data: bytes) -> None:
    try:
        heard = submitted(data)
    except DecodeError:
        return
    assert heard is None or isinstance(heard.message, MalformedMessage)


def test_a_malformed_message_is_written_as_it_came() -> None:
    heard = submitted(b"\x65hello")

    assert codec_for(PROFILES["dmq-node"], SUBMISSION).encode(heard) == b"\x82\x00\x65hello"


def test_local_submission_has_four_messages_with_the_documents_numbers() -> None:
    codec = codec_for(PROFILES["seed"], SUBMISSION)

    assert codec.encode(SubmitMessage(FIRST))[1] == 0
    assert codec.encode(local_submission.AcceptMessage()) == b"\x81\x01"
    assert codec.encode(RejectMessage(Expired()))[1] == 2
    assert codec.encode(local_submission.Done()) == b"\x81\x03"
