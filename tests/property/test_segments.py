"""Segments hold for any payloads, any cuts and any garbage."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from stagepost.errors import DecodeError, RemoteProtocolError
from stagepost.ground.wire.mux import Direction, Segment, SegmentReader, split_payload
from stagepost.ground.wire.mux_queues import WRITE_BATCH_BYTES_MAX, Demultiplexer, Egress
from stagepost.ground.wire.tl import Reader, Writer

segments = st.lists(
    st.builds(
        Segment, st.integers(0, 2**32 - 1), st.integers(0, 0xFFFF), st.binary(min_size=1, max_size=300)
    ),
    max_size=8,
)
cuts = st.lists(st.integers(0, 3_000), max_size=12)


def pieces_of(stream: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(point, len(stream)) for point in points), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@given(segments, cuts)
def test_segments_survive_any_cut(sent: list[Segment], points: list[int]) -> None:
    received: list[Segment] = []
    reader = SegmentReader(received.append)

    for piece in pieces_of(b"".join(segment.encode() for segment in sent), points):
        reader.feed(piece)

    assert received == sent
    assert not reader.is_mid_segment


@given(st.binary(max_size=2_000), st.integers(0, 0xFFFF), st.integers(1, 700))
def test_split_and_join_are_inverse(payload: bytes, lane: int, payload_bytes_max: int) -> None:
    received: list[Segment] = []
    reader = SegmentReader(received.append)

    for raw in split_payload(payload, lane, 0, payload_bytes_max):
        reader.feed(raw)

    assert b"".join(segment.payload for segment in received) == payload
    assert all(len(segment.payload) <= payload_bytes_max for segment in received)


def outcome(stream: bytes, points: list[int]) -> tuple[bytes, bytes, str | None]:
    """What two registered lanes got, and the error that stopped the rest."""
    demultiplexer = Demultiplexer()
    ours = demultiplexer.register(11, Direction.RESPONDER, 500)
    theirs = demultiplexer.register(11, Direction.INITIATOR, 1_000, payload_bytes_max=200)
    error = None
    try:
        for piece in pieces_of(stream, points):
            demultiplexer.reader.feed(piece)
    except RemoteProtocolError as caught:
        error = f"{caught.code} at {caught.offset}"
    return ours.take(), theirs.take(), error


@given(
    st.lists(
        st.builds(
            Segment,
            st.just(0),
            st.sampled_from([0x000B, 0x800B, 0x800B, 0x000C]),
            st.binary(min_size=1, max_size=250),
        ),
        max_size=8,
    ),
    st.binary(max_size=20),
    cuts,
)
def test_cuts_change_neither_what_is_delivered_nor_what_is_refused(
    sent: list[Segment], garbage: bytes, points: list[int]
) -> None:
    stream = b"".join(segment.encode() for segment in sent) + garbage
    assert outcome(stream, points) == outcome(stream, [])


@given(st.binary(max_size=400), cuts)
def test_garbage_raises_nothing_but_protocol_errors(garbage: bytes, points: list[int]) -> None:
    ours, theirs, error = outcome(garbage, points)

    # Each delivered byte had its place in the garbage behind a header of eight, and an error names code and place.
    assert len(ours) + len(theirs) <= max(0, len(garbage) - 8)
    assert error is None or " at " in error


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=50), st.integers(1, 3_000)), max_size=10
    )
)
def test_every_lane_arrives_in_order_through_fair_batches(writes: list[tuple[int, bytes, int]]) -> None:
    egress = Egress()
    demultiplexer = Demultiplexer()
    lanes = [egress.register(protocol, Direction.INITIATOR) for protocol in range(4)]
    queues = [demultiplexer.register(protocol, Direction.INITIATOR, 2**32) for protocol in range(4)]
    expected = [b"", b"", b"", b""]

    for protocol, text, times in writes:
        egress.put(lanes[protocol], text * times)
        expected[protocol] += text * times
    while not egress.is_empty:
        batch = egress.next_batch(0)
        assert 0 < len(batch) <= WRITE_BATCH_BYTES_MAX
        demultiplexer.reader.feed(batch)

    assert [queue.take() for queue in queues] == expected


@given(st.binary(max_size=600))
def test_tl_bytes_survive(value: bytes) -> None:
    writer = Writer()
    writer.write_bytes(value)
    reader = Reader(writer.written())

    assert reader.read_bytes() == value
    reader.expect_end()
    assert len(writer.written()) % 4 == 0


@given(st.binary(max_size=64))
def test_tl_reader_accepts_only_what_the_writer_writes(garbage: bytes) -> None:
    reader = Reader(garbage)
    try:
        value = reader.read_bytes()
    except DecodeError:
        return
    writer = Writer()
    writer.write_bytes(value)
    assert writer.written() == garbage[: reader.offset]
