"""Queues of a multiplexer, per mini-protocol and direction: bounded queues for received bytes, fair turns for
sent ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stagepost.errors import ErrorCode, LimitExceeded, LocalProtocolError, RemoteProtocolError
from stagepost.ground.wire.mux import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_PAYLOAD_BYTES_MAX,
    SEGMENT_PAYLOAD_BYTES_SENT_MAX,
    Direction,
    Segment,
    SegmentHeader,
    SegmentReader,
    encode_header,
    lane_name,
    lane_number,
    split_payload,
)

# Ingress limits: the number of bytes of one lane that may wait to be read. They are sized so that an honest
# peer, which pipelines only what it was granted, never reaches them.
HANDSHAKE_INGRESS_BYTES_MAX = 5_760  # one handshake message
MESSAGE_SUBMISSION_INGRESS_BYTES_MAX = 101_640  # 33 messages of 2 800 bytes, and a tenth on top
KEEP_ALIVE_INGRESS_BYTES_MAX = 1_408  # 1 280 bytes, and a tenth on top
PEER_SHARING_INGRESS_BYTES_MAX = 5_760  # four full Ethernet frames of 1 440 bytes
LOCAL_INGRESS_BYTES_MAX = 1_048_576  # ours: running nodes set no practical limit on local connections
LOCAL_INGRESS_BYTES_MAX_PUBLISHED = 0xFFFF_FFFF

EGRESS_BYTES_MAX = 0x3FFFF  # a writer waits while its lane holds more than this
WRITE_BATCH_BYTES_MAX = 131_072
SHARED_BATCH_BYTES = SEGMENT_PAYLOAD_BYTES_SENT_MAX * (
    WRITE_BATCH_BYTES_MAX // (SEGMENT_HEADER_BYTES + SEGMENT_PAYLOAD_BYTES_SENT_MAX)
)
SMALL_PIECE_BYTES = 1_024


class Ingress:
    """Received bytes of one lane that are not read yet."""

    __slots__ = ("_first", "_rest", "bytes_max", "lane", "on_arrival", "payload_bytes_max", "queued_bytes")

    def __init__(self, lane: int, bytes_max: int, payload_bytes_max: int) -> None:
        self.lane = lane
        self.bytes_max = bytes_max
        self.payload_bytes_max = payload_bytes_max
        self.queued_bytes = 0
        # Called after bytes came in; a reader that sleeps sets it, and clears it when woken.
        self.on_arrival: Callable[[], None] | None = None
        # The usual case is one segment at a time, handed on without a copy. Further ones are joined at once:
        # kept apart, a flood of two-byte segments would cost twenty times the memory that the limit promises.
        self._first = b""
        self._rest = bytearray()

    def put(self, payload: bytes) -> bool:
        """Queue `payload`; return False, and keep nothing, if that would exceed the limit."""
        queued_bytes = self.queued_bytes + len(payload)
        if queued_bytes > self.bytes_max:
            return False
        if self.queued_bytes:
            self._rest += payload
        else:
            self._first = payload
        self.queued_bytes = queued_bytes
        return True

    def put_back(self, payload: bytes) -> None:
        """Put `payload` back at the front, whatever the limit: it was counted when it came."""
        if payload:
            self._first = payload + self.take()
            self.queued_bytes = len(self._first)

    def take(self) -> bytes:
        """Return everything queued, in order; b"" if nothing is."""
        taken = self._first
        if self._rest:
            taken += self._rest
            self._rest = bytearray()
        self._first = b""
        self.queued_bytes = 0
        return taken


class Demultiplexer:
    """Sorter of segments into the ingress queues registered for them; a segment without a queue is the peer's
    fault."""

    def __init__(self, trace: Callable[[Segment], None] | None = None) -> None:
        self.trace = trace
        self._ingresses: dict[int, Ingress] = {}
        self.reader = SegmentReader(self._deliver, self._inspect)

    def register(
        self,
        protocol: int,
        direction: Direction,
        ingress_bytes_max: int,
        payload_bytes_max: int = SEGMENT_PAYLOAD_BYTES_MAX,
    ) -> Ingress:
        """Accept the peer's data for `protocol` in `direction`, which is the peer's own direction."""
        lane = lane_number(protocol, direction)
        if lane in self._ingresses:
            raise LocalProtocolError(f"{lane_name(lane)}: already registered on this connection")
        ingress = self._ingresses[lane] = Ingress(lane, ingress_bytes_max, payload_bytes_max)
        return ingress

    def unregister(self, ingress: Ingress) -> None:
        """Refuse further data for this lane as an error of the peer; queued bytes can still be taken."""
        if self._ingresses.get(ingress.lane) is ingress:
            del self._ingresses[ingress.lane]

    def _deliver(self, segment: Segment) -> None:
        if self.trace is not None:
            self.trace(segment)
        payload = segment.payload
        ingress = self._ingresses.get(segment.lane)
        if ingress is None or len(payload) > ingress.payload_bytes_max:
            offset = self.reader.offset - len(payload) - SEGMENT_HEADER_BYTES
            raise self.refusal(segment.lane, len(payload), offset)
        if not ingress.put(payload):
            offset = self.reader.offset - len(payload) - SEGMENT_HEADER_BYTES
            raise _overflow(ingress, len(payload), offset)
        if ingress.on_arrival is not None:
            ingress.on_arrival()

    def _inspect(self, header: SegmentHeader) -> None:
        ingress = self._ingresses.get(header.lane)
        if ingress is None or header.length > ingress.payload_bytes_max:
            raise self.refusal(header.lane, header.length, self.reader.offset)
        # Whether the body fits beside the queued bytes shows when it is complete: the reader may catch up
        # until then. A body that does not fit even into the empty queue is refused now.
        if header.length > ingress.bytes_max:
            raise _overflow(ingress, header.length, self.reader.offset)

    def refusal(self, lane: int, length: int, offset: int) -> RemoteProtocolError:
        """Return the error for a refused segment: nobody listens on its lane, or it is longer than the lane
        allows."""
        ingress = self._ingresses.get(lane)
        if ingress is None:
            return RemoteProtocolError(
                f"segment at offset {offset} is for {lane_name(lane)}, which does not run on this connection",
                code=ErrorCode.MUX_UNKNOWN_PROTOCOL,
                advice="check that both sides use the same wire profile",
                found=SegmentHeader(0, lane, length).protocol,
                offset=offset,
            )
        return LimitExceeded(
            f"segment at offset {offset} ({lane_name(lane)}) announces {length} bytes; "
            f"at most {ingress.payload_bytes_max} are accepted",
            code=ErrorCode.MUX_TOO_LARGE,
            limit=ingress.payload_bytes_max,
            found=length,
            offset=offset,
        )


def _overflow(ingress: Ingress, length: int, offset: int) -> LimitExceeded:
    return LimitExceeded(
        f"segment at offset {offset} ({lane_name(ingress.lane)}) brings {length} bytes on top of "
        f"{ingress.queued_bytes} unread ones; at most {ingress.bytes_max} may wait",
        code=ErrorCode.MUX_INGRESS_OVERFLOW,
        advice="the peer must wait for answers before it sends more",
        limit=ingress.bytes_max,
        found=ingress.queued_bytes + length,
        offset=offset,
    )


class SharedBytes(bytes):
    """Message for many connections: it is cut into segments once for all that send it on the same lane."""

    batches: dict[int, list[bytes]]

    def in_batches(self, timestamp_us: int, lane: int) -> list[bytes]:
        """Return segments of full size, as many to a batch as fit. All copies carry the time stamp of the
        first sender."""
        try:
            known = self.batches
        except AttributeError:
            known = self.batches = {}
        batches = known.get(lane)
        if batches is None:
            batches = known[lane] = [
                b"".join(split_payload(self[start : start + SHARED_BATCH_BYTES], lane, timestamp_us))
                for start in range(0, len(self), SHARED_BATCH_BYTES)
            ]
        return batches


class EgressLane:
    """Bytes of one lane that are accepted for sending and not sent yet."""

    __slots__ = ("_pieces", "_sent_of_first", "is_ready", "lane", "on_room", "waiting_bytes")

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.waiting_bytes = 0
        # Large pieces stay as they came, without a copy. Small ones are joined, because each object costs
        # more than they hold. So there are never many, and a list will do: ten thousand connections have five
        # of these each.
        self._pieces: list[bytes | bytearray] = []
        self._sent_of_first = 0
        self.is_ready = False
        # Called when the lane has room again; a writer that sleeps sets it, and clears it when woken.
        self.on_room: Callable[[], None] | None = None

    @property
    def has_room(self) -> bool:
        """Return whether a writer may add its next message, whole; the excess is then at most one message."""
        return self.waiting_bytes <= EGRESS_BYTES_MAX

    def put(self, payload: bytes) -> None:
        pieces = self._pieces
        self.waiting_bytes += len(payload)
        if pieces and len(payload) < SMALL_PIECE_BYTES:
            last = pieces[-1]
            if isinstance(last, bytearray):
                last += payload
                return
            if len(last) < SMALL_PIECE_BYTES and (len(pieces) > 1 or not self._sent_of_first):
                pieces[-1] = bytearray(last)
                pieces[-1] += payload
                return
        pieces.append(payload)

    def take_single(self, timestamp_us: int, payload_bytes_max: int) -> bytes | None:
        """Return the next batch if all that waits is one message, short or shared; None in all other cases."""
        pieces, sent = self._pieces, self._sent_of_first
        if len(pieces) != 1:
            return None
        piece = pieces[0]
        if len(piece) <= payload_bytes_max:
            if sent:
                return None
            pieces.clear()
            self.waiting_bytes = 0
            return encode_header(timestamp_us, self.lane, len(piece)) + piece
        if not isinstance(piece, SharedBytes) or sent % SHARED_BATCH_BYTES:
            return None
        if payload_bytes_max != SEGMENT_PAYLOAD_BYTES_SENT_MAX:
            return None
        batch = piece.in_batches(timestamp_us, self.lane)[sent // SHARED_BATCH_BYTES]
        if self.waiting_bytes <= SHARED_BATCH_BYTES:
            pieces.clear()
            self.waiting_bytes = self._sent_of_first = 0
        else:
            self.waiting_bytes -= SHARED_BATCH_BYTES
            self._sent_of_first = sent + SHARED_BATCH_BYTES
        return batch

    def take(self, count: int, parts: list[bytes | bytearray | memoryview]) -> None:
        """Append the next `count` bytes to `parts`. The lane holds at least as many."""
        pieces = self._pieces
        self.waiting_bytes -= count
        while count:
            first = pieces[0]
            start = self._sent_of_first
            end = min(len(first), start + count)
            count -= end - start
            if end == len(first):
                del pieces[0]
                self._sent_of_first = 0
                parts.append(first if not start else memoryview(first)[start:])
            else:
                self._sent_of_first = end
                parts.append(
                    memoryview(first)[start:end] if isinstance(first, bytes) else bytes(first[start:end])
                )


class Egress:
    """Scheduler that gives every mini-protocol with data to send one segment per turn, so that none starves
    another."""

    def __init__(self, payload_bytes_max: int = SEGMENT_PAYLOAD_BYTES_SENT_MAX) -> None:
        self._payload_bytes_max = payload_bytes_max
        self._lanes: dict[int, EgressLane] = {}
        self._ready: deque[EgressLane] = deque()

    @property
    def is_empty(self) -> bool:
        return not self._ready

    def register(self, protocol: int, direction: Direction) -> EgressLane:
        """Return the lane on which we send; a lane that still drains after an earlier use is taken up again."""
        number = lane_number(protocol, direction)
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = EgressLane(number)
        return lane

    def unregister(self, lane: EgressLane) -> None:
        """Release the lane; the bytes that it still holds are sent nevertheless."""
        if not lane.is_ready:
            self._lanes.pop(lane.lane, None)
        lane.on_room = None

    def put(self, lane: EgressLane, payload: bytes) -> None:
        """Queue `payload` on `lane`. The caller has seen `lane.has_room`."""
        if not payload:
            return
        lane.put(payload)
        if not lane.is_ready:
            lane.is_ready = True
            self._ready.append(lane)

    def next_batch(self, timestamp_us: int) -> bytes:
        """Return whole segments, at most WRITE_BATCH_BYTES_MAX bytes of them, one per ready lane and turn."""
        ready = self._ready
        if len(ready) == 1:
            lane = ready[0]
            batch = lane.take_single(timestamp_us, self._payload_bytes_max)
            if batch is not None:
                if not lane.waiting_bytes:
                    ready.popleft()
                    lane.is_ready = False
                if lane.on_room is not None and lane.has_room:
                    lane.on_room()
                return batch
        parts: list[bytes | bytearray | memoryview] = []
        batch_bytes = 0
        while ready:
            lane = ready[0]
            length = min(lane.waiting_bytes, self._payload_bytes_max)
            batch_bytes += SEGMENT_HEADER_BYTES + length
            if batch_bytes > WRITE_BATCH_BYTES_MAX:
                break
            ready.popleft()
            parts.append(encode_header(timestamp_us, lane.lane, length))
            lane.take(length, parts)
            if lane.waiting_bytes:
                ready.append(lane)
            else:
                lane.is_ready = False
            if lane.on_room is not None and lane.has_room:
                lane.on_room()
        return b"".join(parts)
