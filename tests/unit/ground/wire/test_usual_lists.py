"""Lists that are read in one pass, and messages that are known whole, mean what the long way says they mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq.message import NETWORK_SIZES
from stagepost.dmq.message_field import MessageField
from stagepost.dmq.profiles import DMQ_NODE, PROFILES, MiniProtocol, Profile
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.dmq.submission import (
    IDS_IN_LIST_MAX,
    MessageIdAndSize,
    ReplyMessageIds,
    ReplyMessages,
    UsualAnnouncements,
)
from stagepost.errors import ProtocolError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.wire.codec import CONSTANT_BYTES_MAX, Codec, CodecTable, Dialect
from stagepost.ground.wire.framing import Framer, ItemLimits
from stagepost.ground.wire.layout import Layout, ListOf
from tests.worlds.dmq.pool_signers import Signer

SUBMISSION = MiniProtocol.MESSAGE_SUBMISSION
WAYS = [(profile, version) for profile in PROFILES.values() for version in (1, 2)]
MESSAGES = tuple(Signer().sign(number) for number in range(3))
IDS = tuple(MessageIdAndSize(message.message_id, len(message.raw)) for message in MESSAGES)
REPLIES: dict[str, list[Any]] = {
    "MessageIdsBlocking": [ReplyMessageIds(IDS[:count]) for count in (1, 2, 3)],
    "MessageIdsNonBlocking": [ReplyMessageIds(IDS), ReplyMessageIds(())],
    "Messages": [ReplyMessages(MESSAGES[:count]) for count in (0, 1, 3)],
}
LIMITS = ItemLimits(bytes_max=98_000)


def long_way(profile: Profile, protocol: MiniProtocol, version: int) -> Codec:
    """The same codec without any short way."""
    table = codec_for(profile, protocol, version).table
    spec = spec_for(profile, protocol, version)
    said_in: dict[str, list[type[object]]] = {}
    for edge in spec.edges:
        said_in.setdefault(edge.source.name, []).append(edge.message)
    dialects = [
        Dialect(dialect.name, tuple(map(without_usual, dialect.layouts))) for dialect in table.dialects
    ]
    plain = CodecTable(table.protocol, said_in, dialects)
    assert not plain.usual
    plain.constants.clear()
    return Codec(plain, codec_for(profile, protocol, version).speaks.name)


def without_usual(layout: Layout) -> Layout:
    fields = tuple(
        (name, replace(field, usual=None) if isinstance(field, ListOf) else field)
        for name, field in layout.fields
    )
    return replace(layout, fields=fields)


def outcome(codec: Codec, data: bytes, state: str) -> object:
    try:
        return codec.decode(data, state), codec.speaks.name, codec.is_settled
    except ProtocolError as fault:
        return fault.code, fault.offset, fault.text


def framed(data: bytes) -> list[bytes] | ProtocolError:
    framer = Framer()
    framer.feed(data)
    items = []
    try:
        while (item := framer.next_item(LIMITS)) is not None:
            items.append(item)
    except ProtocolError as fault:
        return fault
    return [*items, framer.take_rest()]


@pytest.mark.parametrize(("profile", "version"), WAYS, ids=lambda way: getattr(way, "name", str(way)))
def test_every_reply_is_read_the_same_by_both_ways_and_most_by_the_short_one(
    profile: Profile, version: int
) -> None:
    recognised = 0
    for state, replies in REPLIES.items():
        for dialect in codec_for(profile, SUBMISSION, version).table.dialects:
            for reply in replies:
                data = Codec(codec_for(profile, SUBMISSION, version).table, dialect.name).encode(reply)
                short, long = (
                    codec_for(profile, SUBMISSION, version),
                    long_way(profile, SUBMISSION, version),
                )
                recognised += short.decode_usual(data, state, LIMITS.items_max) is not None
                assert outcome(codec_for(profile, SUBMISSION, version), data, state) == outcome(
                    long, data, state
                )

    assert recognised >= 12


@given(st.data())
def test_whatever_is_changed_leads_to_the_same_message_or_fault(data: st.DataObject) -> None:
    state = data.draw(st.sampled_from(sorted(REPLIES)))
    reply = data.draw(st.sampled_from(REPLIES[state]))
    profile, version = data.draw(st.sampled_from(WAYS))
    codec = codec_for(profile, SUBMISSION, version)
    written = bytearray(codec.encode(reply))
    # Heads and ends are where the ways could part; most bytes are contents.
    heads = [0, 1, 2, 3, 4, 5, 37, 38, 39, 40, len(written) - 1, len(written) - 2]
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.sampled_from(heads) | st.integers(0, len(written) - 1)) % len(written)
        written[at] = data.draw(
            st.sampled_from([0x00, 0x18, 0x19, 0x1A, 0x80, 0x82, 0x9F, 0xFF]) | st.integers(0, 255)
        )
    changed = bytes(written)
    changed = changed[: data.draw(st.sampled_from([len(changed), len(changed) - 1, len(changed) - 38]))]
    changed += data.draw(st.sampled_from([b"", b"", b"\xff", b"\x00", changed]))

    found = codec.decode_usual(changed, state, LIMITS.items_max)

    assert outcome(codec_for(profile, SUBMISSION, version), changed, state) == outcome(
        long_way(profile, SUBMISSION, version), changed, state
    )
    if found is not None:
        assert framed(changed) == [changed, b""], "the short way saw a message where the stream has none"


@pytest.mark.parametrize("size", [255, 256, 65_535, 65_536])
def test_sizes_outside_the_usual_are_read_by_the_long_way(size: int) -> None:
    codec = codec_for(DMQ_NODE, SUBMISSION, 2)
    reply = ReplyMessageIds((MessageIdAndSize(MessageId(b"\x11" * 32), size),))
    data = codec.encode(reply)

    assert (codec.decode_usual(data, "MessageIdsBlocking", 4_096) is not None) == (256 <= size <= 65_535)
    assert codec.decode(data, "MessageIdsBlocking") == reply


def test_a_size_in_a_longer_form_than_needed_is_no_usual_one() -> None:
    data = b"\x82\x58\x20" + b"\x11" * 32 + b"\x19\x00\xff"

    assert UsualAnnouncements().read_all(data, 0, len(data)) is None


@pytest.mark.parametrize("count", [IDS_IN_LIST_MAX, IDS_IN_LIST_MAX + 1])
def test_a_list_may_be_as_long_by_either_way(count: int) -> None:
    data = codec_for(DMQ_NODE, SUBMISSION, 2).encode(ReplyMessageIds(IDS[:1] * count))
    short = outcome(codec_for(DMQ_NODE, SUBMISSION, 2), data, "MessageIdsBlocking")

    assert short == outcome(long_way(DMQ_NODE, SUBMISSION, 2), data, "MessageIdsBlocking")
    assert isinstance(short, tuple)
    assert isinstance(short[0], ReplyMessageIds) == (count <= IDS_IN_LIST_MAX)


def test_the_limit_on_items_holds_for_the_short_way() -> None:
    codec = codec_for(DMQ_NODE, SUBMISSION, 2)
    data = codec.encode(ReplyMessages(MESSAGES))
    items = 3 + 13 * len(MESSAGES)  # the reply, its tag and its list; then the messages

    assert codec.decode_usual(data, "Messages", items) == ReplyMessages(MESSAGES)
    assert codec.decode_usual(data, "Messages", items - 1) is None


@pytest.mark.parametrize("sizes", [NETWORK_SIZES, None])
def test_messages_of_any_size_are_never_read_by_the_short_way(sizes: Any) -> None:
    field = MessageField(DMQ_NODE.message_layouts, sizes)
    raw = MESSAGES[0].raw

    assert (field.read_all(raw, 0, len(raw)) is not None) == (sizes is not None)


@pytest.mark.parametrize(
    ("profile", "protocol"),
    [(profile, protocol) for profile in PROFILES.values() for protocol in profile.numbers],
    ids=lambda part: getattr(part, "name", str(part)),
)
def test_messages_that_are_known_whole_are_those_of_the_long_way(
    profile: Profile, protocol: MiniProtocol
) -> None:
    codec = codec_for(profile, protocol)
    for state, data in codec.table.constants:
        assert len(data) <= CONSTANT_BYTES_MAX
        short = outcome(codec_for(profile, protocol), data, state)
        assert short == outcome(long_way(profile, protocol, 1), data, state)
        assert isinstance(short, tuple)
        assert isinstance(short[2], bool), "refused"


def test_requests_for_notifications_are_known_whole() -> None:
    table = codec_for(DMQ_NODE, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION).table

    assert {("Idle", b"\x82\x00\xf4"), ("Idle", b"\x82\x00\xf5")} <= set(table.constants)
