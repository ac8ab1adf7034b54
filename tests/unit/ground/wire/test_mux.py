"""Segments against the header table: fields, edges, cuts at every byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stagepost.errors import DecodeError, ErrorCode, LocalProtocolError
from stagepost.ground.wire.mux import (
    PROTOCOL_NUMBER_MAX,
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    SEGMENT_PAYLOAD_BYTES_MAX,
    SEGMENT_PAYLOAD_BYTES_SENT_MAX,
    Direction,
    Segment,
    SegmentHeader,
    SegmentReader,
    decode_header,
    encode_header,
    lane_name,
    lane_number,
    split_payload,
)

VECTORS = json.loads(
    (Path(__file__).parents[3] / "vectors" / "dmq" / "derived-wire-examples.json").read_text(encoding="utf-8")
)["segments"]
ACCEPTED = [vector for vector in VECTORS if "expect" not in vector]
REFUSED = [vector for vector in VECTORS if "expect" in vector]

LANE = lane_number(11, Direction.RESPONDER)


def read_all(*pieces: bytes) -> list[Segment]:
    segments: list[Segment] = []
    reader = SegmentReader(segments.append)
    for piece in pieces:
        reader.feed(piece)
    return segments


@pytest.mark.parametrize("vector", ACCEPTED, ids=lambda vector: vector["id"])
def test_published_example_is_read_and_written(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    raw = bytes.fromhex(vector["header_hex"] + vector["payload_hex"])

    header = decode_header(raw)
    (segment,) = read_all(raw)

    assert header.timestamp_us == segment.timestamp_us == fields["timestamp_us"]
    assert header.protocol == segment.protocol == fields["protocol"]
    assert header.direction is segment.direction is Direction[fields["direction"].upper()]
    assert header.length == len(segment.payload) == fields["length"]
    assert segment.payload.hex() == vector["payload_hex"]
    assert segment.encode() == raw


@pytest.mark.parametrize("vector", REFUSED, ids=lambda vector: vector["id"])
def test_published_example_is_refused(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["header_hex"] + vector["payload_hex"])

    with pytest.raises(DecodeError):
        decode_header(raw)
    with pytest.raises(DecodeError):
        read_all(raw)


def test_direction_bit_is_the_highest_of_the_lane() -> None:
    assert lane_number(14, Direction.INITIATOR) == 0x000E
    assert lane_number(14, Direction.RESPONDER) == 0x800E
    assert Direction.INITIATOR.opposite is Direction.RESPONDER
    assert Direction.RESPONDER.opposite is Direction.INITIATOR
    assert lane_name(0x800E) == "mini-protocol 14, sent by the responder"


def test_protocol_number_has_fifteen_bits() -> None:
    assert lane_number(PROTOCOL_NUMBER_MAX, Direction.RESPONDER) == 0xFFFF
    for protocol in (-1, PROTOCOL_NUMBER_MAX + 1):
        with pytest.raises(LocalProtocolError, match=r"outside 0\.\.32767"):
            lane_number(protocol, Direction.INITIATOR)


def test_timestamp_keeps_its_low_32_bits() -> None:
    assert decode_header(encode_header(0x1_2345_6789, LANE, 1)).timestamp_us == 0x2345_6789


def test_length_is_one_to_65535() -> None:
    for length in (1, SEGMENT_PAYLOAD_BYTES_MAX):
        assert decode_header(encode_header(0, LANE, length)) == SegmentHeader(0, LANE, length)
    for length in (0, SEGMENT_PAYLOAD_BYTES_MAX + 1):
        with pytest.raises(LocalProtocolError, match=r"1\.\.65535"):
            encode_header(0, LANE, length)


def test_header_cut_short_names_offset_and_size() -> None:
    with pytest.raises(DecodeError, match="at offset 3 cut short: 7 of 8 bytes") as caught:
        decode_header(bytes(10), 3)

    assert caught.value.offset == 3
    assert caught.value.code is ErrorCode.CBOR_TRUNCATED


@pytest.mark.parametrize(
    ("size", "lengths"),
    [
        (0, []),
        (1, [1]),
        (SEGMENT_PAYLOAD_BYTES_SENT_MAX, [12_288]),
        (SEGMENT_PAYLOAD_BYTES_SENT_MAX + 1, [12_288, 1]),
        (30_000, [12_288, 12_288, 5_424]),
    ],
)
def test_payload_is_split_at_what_we_send(size: int, lengths: list[int]) -> None:
    payload = bytes(index % 251 for index in range(size))

    segments = read_all(*split_payload(payload, LANE, 7))

    assert [len(segment.payload) for segment in segments] == lengths
    assert b"".join(segment.payload for segment in segments) == payload
    assert all(segment.lane == LANE and segment.timestamp_us == 7 for segment in segments)


def test_largest_segment_is_accepted_in_one_piece_and_in_many() -> None:
    payload = bytes(SEGMENT_PAYLOAD_BYTES_MAX)
    (raw,) = split_payload(payload, LANE, 0, SEGMENT_PAYLOAD_BYTES_MAX)

    assert len(raw) == SEGMENT_BYTES_MAX
    assert [segment.payload for segment in read_all(raw)] == [payload]
    assert [len(one.payload) for one in read_all(raw[:5], raw[5:40_000], raw[40_000:] + raw)] == [
        65_535,
        65_535,
    ]


def test_stream_cut_at_every_byte_gives_the_same_segments() -> None:
    stream = b"".join(
        [
            Segment(1, lane_number(0, Direction.INITIATOR), b"propose").encode(),
            Segment(2, LANE, b"x").encode(),
            Segment(3, LANE, bytes(range(100))).encode(),
        ]
    )
    whole = read_all(stream)

    assert len(whole) == 3
    for cut in range(len(stream) + 1):
        assert read_all(stream[:cut], stream[cut:]) == whole
    assert read_all(*(stream[index : index + 1] for index in range(len(stream)))) == whole


def test_zero_length_is_refused_at_its_offset_after_what_came_before() -> None:
    segments: list[Segment] = []
    reader = SegmentReader(segments.append)

    with pytest.raises(DecodeError, match=r"offset 10 \(mini-protocol 11, .*has length 0") as caught:
        reader.feed(Segment(0, LANE, b"ab").encode() + bytes.fromhex("00000000000b0000") + b"more")

    assert [segment.payload for segment in segments] == [b"ab"]
    assert caught.value.offset == 10
    assert caught.value.code is ErrorCode.PROTOCOL_SIZE


def test_reader_knows_when_a_segment_is_started_and_not_complete() -> None:
    raw = Segment(0, LANE, b"abc").encode()
    reader = SegmentReader(lambda segment: None)

    before = reader.is_mid_segment
    during = [(reader.feed(bytes((byte,))), reader.is_mid_segment, reader.offset) for byte in raw[:-1]]
    after = (reader.feed(raw[-1:]), reader.is_mid_segment, reader.offset)

    assert not before
    assert during == [(True, True, 0)] * 10
    assert after == (False, False, 11)
    assert reader.bytes_received == 11


def test_header_is_shown_before_its_body_arrives() -> None:
    shown: list[SegmentHeader] = []
    reader = SegmentReader(lambda segment: None, shown.append)
    raw = Segment(9, LANE, b"abc").encode()

    reader.feed(raw[: SEGMENT_HEADER_BYTES - 1])
    assert shown == []
    reader.feed(raw[SEGMENT_HEADER_BYTES - 1 : SEGMENT_HEADER_BYTES])
    assert shown == [SegmentHeader(9, LANE, 3)]


def test_space_is_never_empty() -> None:
    reader = SegmentReader(lambda segment: None)
    (raw,) = split_payload(bytes(SEGMENT_PAYLOAD_BYTES_MAX), LANE, 0, SEGMENT_PAYLOAD_BYTES_MAX)

    reader.feed(Segment(0, LANE, b"a").encode() + raw[:-1])

    assert len(reader.space()) == 1
