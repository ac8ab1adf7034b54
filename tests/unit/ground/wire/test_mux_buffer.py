"""The reader's buffer: small while little is said, large for what needs it, small again when that is over."""

from __future__ import annotations

import pytest

from stagepost.ground.wire.mux import (
    RESTING_BYTES,
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    SEGMENT_PAYLOAD_BYTES_MAX,
    SMALL_READS_BEFORE_REST,
    Segment,
    SegmentReader,
    encode_header,
)


def a_segment(payload_bytes: int) -> bytes:
    payload = bytes(number % 251 for number in range(payload_bytes))
    return encode_header(0, 11, payload_bytes) + payload


class Reader(SegmentReader):
    """A reader that keeps what it cuts, fed as a socket does: never more at once than there is room for."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        super().__init__(self.segments.append)

    @property
    def buffer_bytes(self) -> int:
        return len(self._view)

    def read(self, data: bytes) -> None:
        while data:
            space = self.space()
            piece, data = data[: len(space)], data[len(space) :]
            space[: len(piece)] = piece
            self.received(len(piece))


def test_a_quiet_connection_keeps_a_small_buffer() -> None:
    reader = Reader()
    for _ in range(1_000):
        reader.read(a_segment(40))

    assert len(reader.segments) == 1_000
    assert reader.buffer_bytes == RESTING_BYTES


@pytest.mark.parametrize(
    "payload_bytes",
    [1, RESTING_BYTES - SEGMENT_HEADER_BYTES - 1, RESTING_BYTES - SEGMENT_HEADER_BYTES, RESTING_BYTES],
)
@pytest.mark.parametrize("cut_at", [1, 7, 8, 9])
def test_a_segment_of_any_size_and_cut_is_whole(payload_bytes: int, cut_at: int) -> None:
    raw = a_segment(payload_bytes)
    reader = Reader()
    for piece in (raw + raw[:cut_at], raw[cut_at:]):
        reader.read(piece)

    assert [segment.payload for segment in reader.segments] == [raw[SEGMENT_HEADER_BYTES:]] * 2
    assert reader.offset == reader.bytes_received == 2 * len(raw)


def test_the_largest_segment_fits() -> None:
    raw = a_segment(SEGMENT_PAYLOAD_BYTES_MAX)
    reader = Reader()
    reader.read(raw + raw)

    assert [segment.payload for segment in reader.segments] == [raw[SEGMENT_HEADER_BYTES:]] * 2
    assert reader.buffer_bytes == SEGMENT_BYTES_MAX


def test_the_buffer_is_small_again_after_so_many_small_reads_and_no_sooner() -> None:
    reader = Reader()
    reader.read(a_segment(20_000))
    reader.read(a_segment(20_000))
    for _ in range(SMALL_READS_BEFORE_REST):
        reader.read(a_segment(40))
        assert reader.buffer_bytes == SEGMENT_BYTES_MAX
    reader.read(a_segment(40))
    reader.read(a_segment(40))

    assert reader.buffer_bytes == RESTING_BYTES
    assert len(reader.segments) == SMALL_READS_BEFORE_REST + 4


def test_a_refused_segment_leaves_the_place_where_it_began() -> None:
    def refuse(_: object) -> None:
        raise ValueError("refused")

    reader = SegmentReader(lambda segment: None, refuse)
    whole, started = a_segment(3_000), a_segment(5_000)[:4_000]
    with pytest.raises(ValueError, match="refused"):
        reader.feed(whole[:2_000])
    assert reader.offset == 0
    calm = Reader()
    calm.feed(whole + started)
    assert calm.offset == len(whole)
    assert calm.is_mid_segment
