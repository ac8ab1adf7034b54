"""A codec reads by state, follows the dialect that the peer shows, and names what it cannot place."""

from __future__ import annotations

import cbor2
import msgspec
import pytest

from stagepost.errors import DecodeError, ErrorCode, LocalProtocolError, RemoteProtocolError
from stagepost.ground.wire.codec import Codec, CodecTable, Dialect
from stagepost.ground.wire.layout import Layout, Unsigned


class Ask(msgspec.Struct, frozen=True):
    number: int


class Answer(msgspec.Struct, frozen=True):
    number: int


class End(msgspec.Struct, frozen=True):
    pass


NUMBER = (("number", Unsigned(8)),)
OLD = Dialect("old", (Layout(Ask, 0, NUMBER), Layout(Answer, 1, NUMBER), Layout(End, 2)))
NEW = Dialect("new", (Layout(Ask, 0, NUMBER), Layout(Answer, 7, NUMBER)))
SAID_IN: dict[str, list[type[object]]] = {"Asking": [Ask, End], "Answering": [Answer]}


def a_codec(speaks: str = "old", dialects: tuple[Dialect, ...] = (OLD, NEW)) -> Codec:
    return Codec(CodecTable("Talk", SAID_IN, dialects), speaks)


def test_one_dialect_is_settled_from_the_start() -> None:
    assert a_codec(dialects=(OLD,)).is_settled


def test_what_dialects_share_shows_neither() -> None:
    codec = a_codec()

    assert codec.decode(cbor2.dumps([0, 5]), "Asking") == Ask(5)

    assert not codec.is_settled
    assert codec.speaks is OLD


@pytest.mark.parametrize(("tag", "shown"), [(1, OLD), (7, NEW)])
def test_what_only_one_dialect_writes_settles_it(tag: int, shown: Dialect) -> None:
    for speaks in ("old", "new"):
        codec = a_codec(speaks)
        assert codec.decode(cbor2.dumps([tag, 5]), "Answering") == Answer(5)
        assert codec.is_settled
        assert codec.speaks is shown


def test_a_settled_codec_still_reads_the_other_dialect_and_does_not_follow_it() -> None:
    codec = a_codec()
    codec.decode(cbor2.dumps([7, 5]), "Answering")

    assert codec.decode(cbor2.dumps([1, 6]), "Answering") == Answer(6)

    assert codec.encode(Answer(6)) == cbor2.dumps([7, 6])


def test_a_message_that_failed_to_decode_settles_nothing() -> None:
    codec = a_codec()
    for broken in (cbor2.dumps([7, "x"]), cbor2.dumps([7, 1]) + b"\x00"):
        with pytest.raises(DecodeError):
            codec.decode(broken, "Answering")

    assert not codec.is_settled


def test_a_message_of_another_state_is_named_with_the_state_where_it_belongs() -> None:
    with pytest.raises(RemoteProtocolError, match="belongs in Answering") as caught:
        a_codec().decode(cbor2.dumps([7, 5]), "Asking")

    assert not isinstance(caught.value, DecodeError)
    assert (caught.value.code, caught.value.state) == (ErrorCode.PROTOCOL_STATE, "Asking")


@pytest.mark.parametrize("value", [[9, 5], [0], [0, 1, 2], [2, 1]])
def test_a_tag_or_length_that_no_state_knows_is_invalid(value: list[int]) -> None:
    with pytest.raises(DecodeError) as caught:
        a_codec().decode(cbor2.dumps(value), "Asking")

    assert caught.value.code is ErrorCode.CBOR_INVALID


@pytest.mark.parametrize("data", ["", "80", "9f0005ff", "a0", "05", "821801f4", "8118", "8220f5"])
def test_what_is_no_tagged_array_is_invalid(data: str) -> None:
    with pytest.raises(DecodeError):
        a_codec().decode(bytes.fromhex(data), "Asking")


def test_a_message_that_the_spoken_dialect_lacks_is_our_own_fault() -> None:
    with pytest.raises(LocalProtocolError, match="End cannot be said in dialect new"):
        a_codec("new").encode(End())


def test_two_meanings_of_one_head_in_one_state_are_a_mistake_of_the_table() -> None:
    muddled = Dialect("muddled", (Layout(End, 0, ()), Layout(Ask, 1, NUMBER)))
    clashing = Dialect("clashing", (Layout(Ask, 0, ()),))

    with pytest.raises(LocalProtocolError, match="means two things"):
        CodecTable("Talk", SAID_IN, (muddled, clashing))
