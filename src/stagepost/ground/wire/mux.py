"""Multiplexer segments: the eight-byte header, cutting a payload into segments, and reading them back.

Segment borders carry no meaning for the mini-protocols above; `mux_queues` holds the queue of each
mini-protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct

import msgspec

from stagepost.errors import DecodeError, ErrorCode, LocalProtocolError

SEGMENT_HEADER_BYTES = 8
SEGMENT_PAYLOAD_BYTES_MAX = 65_535
SEGMENT_PAYLOAD_BYTES_SENT_MAX = 12_288
SEGMENT_BYTES_MAX = SEGMENT_HEADER_BYTES + SEGMENT_PAYLOAD_BYTES_MAX
SEGMENT_COMPLETION_TIMEOUT_S = 30.0
PROTOCOL_NUMBER_MAX = 0x7FFF

_HEADER = Struct(">IHH")
_TIMESTAMP_MASK = 0xFFFF_FFFF


class Direction(IntEnum):
    """Side of a mini-protocol instance that sent a segment: the one that opened it, or the other."""

    INITIATOR = 0
    RESPONDER = 1

    @property
    def opposite(self) -> Direction:
        return Direction(1 - self)


def lane_number(protocol: int, direction: Direction) -> int:
    """Return a mini-protocol number and a direction as the one 16-bit word that stands in the header."""
    if not 0 <= protocol <= PROTOCOL_NUMBER_MAX:
        raise LocalProtocolError(
            f"mini-protocol number {protocol} is outside 0..{PROTOCOL_NUMBER_MAX}",
            limit=PROTOCOL_NUMBER_MAX,
            found=protocol,
        )
    return protocol | direction << 15


def lane_name(lane: int) -> str:
    """Return the name of a lane for errors and traces."""
    return f"mini-protocol {lane & PROTOCOL_NUMBER_MAX}, sent by the {Direction(lane >> 15).name.lower()}"


class SegmentHeader(msgspec.Struct, frozen=True, gc=False):
    """Header of a segment. The sender's clock is for its own statistics: nothing here relies on it."""

    timestamp_us: int
    lane: int
    length: int

    @property
    def protocol(self) -> int:
        return self.lane & PROTOCOL_NUMBER_MAX

    @property
    def direction(self) -> Direction:
        return Direction(self.lane >> 15)


class Segment(msgspec.Struct, frozen=True, gc=False):
    timestamp_us: int
    lane: int
    payload: bytes

    @property
    def protocol(self) -> int:
        return self.lane & PROTOCOL_NUMBER_MAX

    @property
    def direction(self) -> Direction:
        return Direction(self.lane >> 15)

    def encode(self) -> bytes:
        return encode_header(self.timestamp_us, self.lane, len(self.payload)) + self.payload


def encode_header(timestamp_us: int, lane: int, length: int) -> bytes:
    """Return the eight bytes of a header. Only the low 32 bits of `timestamp_us` are sent."""
    if not 1 <= length <= SEGMENT_PAYLOAD_BYTES_MAX:
        raise LocalProtocolError(
            f"a segment carries 1..{SEGMENT_PAYLOAD_BYTES_MAX} bytes, not {length}",
            limit=SEGMENT_PAYLOAD_BYTES_MAX,
            found=length,
        )
    return _HEADER.pack(timestamp_us & _TIMESTAMP_MASK, lane, length)


def decode_header(data: bytes | bytearray | memoryview, at: int = 0) -> SegmentHeader:
    """Return the header that begins at index `at` of `data`."""
    if len(data) - at < SEGMENT_HEADER_BYTES:
        raise DecodeError(
            f"segment header at offset {at} cut short: {len(data) - at} of {SEGMENT_HEADER_BYTES} bytes",
            code=ErrorCode.CBOR_TRUNCATED,
            offset=at,
        )
    timestamp_us, lane, length = _HEADER.unpack_from(data, at)
    if length == 0:
        raise _zero_length(lane, at)
    return SegmentHeader(timestamp_us, lane, length)


def split_payload(
    payload: bytes, lane: int, timestamp_us: int, payload_bytes_max: int = SEGMENT_PAYLOAD_BYTES_SENT_MAX
) -> Iterator[bytes]:
    """Yield `payload` as whole segments, headers included; nothing for an empty payload: zero length is never
    sent."""
    for start in range(0, len(payload), payload_bytes_max):
        piece = payload[start : start + payload_bytes_max]
        yield encode_header(timestamp_us, lane, len(piece)) + piece


RESTING_BYTES = 2_048
"""Bytes in the buffer of a quiet connection; thousands of them must fit into memory."""
SMALL_READS_BEFORE_REST = 16
_NOT_SMALL = -1


class SegmentReader:
    """Reader that cuts a byte stream, arriving in arbitrary pieces, into segments.

    The buffer is small while little arrives, since most of many connections are quiet, and has room for the
    largest segment as soon as more comes. Each whole segment goes to `deliver`. A header whose body is still
    on its way goes to `inspect` (again with every further piece), which may raise to refuse the body unread.
    Bytes enter through `feed`, or without a copy by writing into `space()` and then passing the number of
    bytes to `received`.
    """

    def __init__(
        self,
        deliver: Callable[[Segment], None],
        inspect: Callable[[SegmentHeader], None] | None = None,
    ) -> None:
        self._deliver = deliver
        self._inspect = inspect
        self._view = memoryview(bytearray(RESTING_BYTES))
        self._start = 0
        self._end = 0
        self._offset_of_view = 0
        self._small_reads = 0

    @property
    def offset(self) -> int:
        """Offset in the whole stream of the segment that is next or has begun."""
        return self._offset_of_view + self._start

    @property
    def bytes_received(self) -> int:
        return self._offset_of_view + self._end

    @property
    def is_mid_segment(self) -> bool:
        """Return whether a segment has begun and is incomplete; the shell limits how long that may last."""
        return self._start != self._end

    def release(self) -> None:
        """Give the buffer back for good, so that a dead connection does not hold its 64 KiB."""
        self._view = memoryview(b"")

    def space(self) -> memoryview:
        """Return room for the next bytes, never empty: an incomplete segment is always shorter than the
        buffer."""
        start = self._start
        end = self._end
        if start == end:
            self._offset_of_view += start
            self._start = self._end = 0
            if self._small_reads >= SMALL_READS_BEFORE_REST and len(self._view) != RESTING_BYTES:
                self._view = memoryview(bytearray(RESTING_BYTES))
            elif self._small_reads < 0 and len(self._view) == RESTING_BYTES:
                self._view = memoryview(bytearray(SEGMENT_BYTES_MAX))
            return self._view
        if start or len(self._view) == RESTING_BYTES:
            # A segment is incomplete and all of it must fit, so here the buffer becomes a large one.
            kept = self._view[start:end]
            if len(self._view) == RESTING_BYTES:
                self._view = memoryview(bytearray(SEGMENT_BYTES_MAX))
            self._view[: end - start] = kept
            self._offset_of_view += start
            self._start = 0
            self._end = end - start
        return self._view[self._end :]

    def received(self, count: int) -> bool:
        """Take in the `count` bytes written into `space()`; return whether a segment is left incomplete."""
        view = self._view
        start = self._start
        end = self._end = self._end + count
        if count < RESTING_BYTES:
            self._small_reads += 1
        else:
            self._small_reads = _NOT_SMALL  # more was there than a resting buffer takes at once
        # The position moves on before `deliver` runs, so an exception from it leaves the reader in order.
        while end - start >= SEGMENT_HEADER_BYTES:
            timestamp_us, lane, length = _HEADER.unpack_from(view, start)
            if length == 0:
                raise _zero_length(lane, self.offset)
            body = start + SEGMENT_HEADER_BYTES
            if body + length > end:
                if self._inspect is not None:
                    self._inspect(SegmentHeader(timestamp_us, lane, length))
                break
            self._start = start = body + length
            self._deliver(Segment(timestamp_us, lane, view[body:start].tobytes()))
        return start != end

    def feed(self, data: bytes | bytearray | memoryview) -> bool:
        """Take in a piece of any size; return whether a segment is left incomplete."""
        position = 0
        while position < len(data):
            space = self.space()
            count = min(len(space), len(data) - position)
            space[:count] = data[position : position + count]
            self.received(count)
            position += count
        return self.is_mid_segment


def _zero_length(lane: int, offset: int) -> DecodeError:
    return DecodeError(
        f"segment at offset {offset} ({lane_name(lane)}) has length 0; "
        f"a segment carries 1..{SEGMENT_PAYLOAD_BYTES_MAX} bytes",
        code=ErrorCode.PROTOCOL_SIZE,
        advice="the peer must not send empty segments",
        found=0,
        offset=offset,
    )
