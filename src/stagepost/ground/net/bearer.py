"""A bearer: a multiplexed connection over any asyncio stream transport, with one channel per mini-protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from struct import Struct
from typing import Protocol, cast

from stagepost.errors import (
    ErrorCode,
    LimitExceeded,
    LocalProtocolError,
    ProtocolTimeout,
    RemoteProtocolError,
    StagepostError,
    TransportError,
)
from stagepost.ground.crypto.secret_stream import StreamKeys
from stagepost.ground.loop.turn_end import turn_end
from stagepost.ground.net.channel import ProtocolChannel
from stagepost.ground.net.chunks import ChunkReader, ChunkSealer
from stagepost.ground.wire.mux import (
    SEGMENT_COMPLETION_TIMEOUT_S,
    SEGMENT_PAYLOAD_BYTES_MAX,
    SEGMENT_PAYLOAD_BYTES_SENT_MAX,
    Direction,
    Segment,
    SegmentReader,
    lane_name,
    lane_number,
)
from stagepost.ground.wire.mux_queues import EGRESS_BYTES_MAX, Demultiplexer, Egress, EgressLane, Ingress


class Hash(Protocol):
    """Hash of the standard library."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class Carrier(Protocol):
    """Connection as its channels see it."""

    peer: str
    is_over: bool
    reason: StagepostError | None

    def send(self, lane: EgressLane, data: bytes) -> None: ...

    def release(self, channel: BearerChannel, ingress: Ingress, lane: EgressLane, unread: bytes) -> None: ...


class BearerChannel:
    """`ProtocolChannel` of one mini-protocol of a bearer."""

    def __init__(self, bearer: Carrier, ingress: Ingress, lane: EgressLane) -> None:
        self._bearer = bearer
        self._ingress = ingress
        self._lane = lane
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Future[None] | None = None
        self._on_data: Callable[[], None] | None = None
        # A dictionary for its order: writers wake in the order in which they came, in every run alike.
        self._writing: dict[asyncio.Future[None], None] = {}

    async def read(self) -> bytes:
        if self._reading is not None:
            raise LocalProtocolError(f"{lane_name(self._ingress.lane)}: two tasks read one channel")
        while True:
            piece = self.read_now()
            if piece is not None:
                return piece
            self._reading = self._loop.create_future()
            try:
                await self._reading
            finally:
                self._reading = None

    def on_data(self, callback: Callable[[], None] | None) -> None:
        self._on_data = callback

    @property
    def has_data(self) -> bool:
        return self._ingress.queued_bytes > 0 or self._is_closed or self._bearer.is_over

    def read_now(self) -> bytes | None:
        if self._ingress.queued_bytes:
            return self._ingress.take()
        if self._is_closed:
            return b""
        return self._ended_while_reading() if self._bearer.is_over else None

    async def write(self, data: bytes) -> None:
        while True:
            self._check_writable()
            if self._lane.has_room:
                break
            room = self._loop.create_future()
            self._writing[room] = None
            self._lane.on_room = self._wake_writers
            try:
                await room
            finally:
                self._writing.pop(room, None)
        self._bearer.send(self._lane, data)

    @property
    def has_room(self) -> bool:
        """Return whether `write_now` would accept data, or raise. Tasks that wait in `write` come first."""
        if self._is_closed or self._bearer.is_over:
            return True
        return not self._writing and self._lane.waiting_bytes <= EGRESS_BYTES_MAX

    def write_now(self, data: bytes) -> bool:
        bearer = self._bearer
        if self._is_closed or bearer.is_over:
            self._check_writable()
        if self._writing or self._lane.waiting_bytes > EGRESS_BYTES_MAX:
            return False
        bearer.send(self._lane, data)
        return True

    def close(self, unread: bytes = b"") -> None:
        if not self._is_closed:
            self._is_closed = True
            self._bearer.release(self, self._ingress, self._lane, unread)
            self.wake()

    def tell(self) -> None:
        """Tell the reader that bytes have come."""
        if self._reading is not None:
            if not self._reading.done():
                self._reading.set_result(None)
        elif self._on_data is not None:
            self._on_data()

    def wake(self) -> None:
        """Let everybody who waits look again, since something ended; never inside of the call that ended it."""
        self._loop.call_soon(self.tell)
        self._wake_writers()

    def _check_writable(self) -> None:
        if self._is_closed:
            raise LocalProtocolError(
                f"{lane_name(self._lane.lane)}: data was written after the channel was closed"
            )
        if self._bearer.is_over:
            raise self._ended_while_writing()

    def _wake_writers(self) -> None:
        self._lane.on_room = None
        for room in self._writing:
            if not room.done():
                room.set_result(None)

    def _ended_while_reading(self) -> bytes:
        if self._bearer.reason is None:
            return b""
        # Several channels raise the same error: each starts its traceback afresh.
        raise self._bearer.reason.with_traceback(None)

    def _ended_while_writing(self) -> StagepostError:
        if self._bearer.reason is None:
            return TransportError(
                f"connection with {self._bearer.peer} is closed; {lane_name(self._lane.lane)} was not sent",
                advice="connect again",
                peer=self._bearer.peer,
            )
        return self._bearer.reason.with_traceback(None)


LEFT_OVER_BYTES_MAX = SEGMENT_PAYLOAD_BYTES_SENT_MAX
"""Bytes that may follow the end of an instance: each next instance takes over the rest, so a large rest would cost much."""

LOCAL_PEER = "local peer"
"""Name of every peer at a Unix socket: such sockets have no name at the other end."""

_CREDENTIALS = Struct("3i")  # process, user and group id, as the kernel tells them of a Unix socket's peer

Trace = Callable[[bool, bytes], None]
"""Callback with two arguments: whether this side sent the segment, and the whole segment with its header."""


class Bearer(asyncio.BufferedProtocol):
    """Connection that registers mini-protocols as channels and keeps the multiplexer's rules for all of them.

    At first nothing is registered, so a peer may say nothing; a caller registers the handshake alone, and the
    agreed mini-protocols afterwards. Data for a lane that is neither registered nor expected ends the
    connection. `on_connected` is called with this bearer and its transport, once.
    """

    def __init__(
        self,
        *,
        peer: str = "",
        trace: Trace | None = None,
        on_connected: Callable[[Bearer, asyncio.BaseTransport], None] | None = None,
    ) -> None:
        self._on_connected = on_connected
        self.peer = peer
        self.closed = asyncio.Event()
        self.reason: StagepostError | None = None  # why it closed; None after an orderly end
        self._loop = asyncio.get_running_loop()
        self._put_off = turn_end()
        self._trace = trace
        self._demultiplexer = Demultiplexer(None if trace is None else self._trace_received)
        self._reader: SegmentReader | ChunkReader = self._demultiplexer.reader
        self._chunks: ChunkReader | None = None  # the reader, once the connection is encrypted
        self._sealer: ChunkSealer | None = None
        self._is_held = False  # the other side has to begin its stream first
        self._plain_bytes: tuple[Hash, Hash] | None = None  # of what was sent, and of what came
        self._egress = Egress()
        self._expected: dict[int, Ingress] = {}
        self._left_over: dict[int, bytes] = {}  # said behind the end of an instance, for the next one
        self._channels: dict[int, BearerChannel] = {}
        self._arrived: list[BearerChannel] = []  # to be told of the bytes that came in this call
        self._transport: asyncio.Transport | None = None
        self.is_over = (
            False  # no more reading and no new writing; what was accepted may still be on its way out
        )
        self._peer_has_ended = False
        self._is_paused = False
        self._is_flush_scheduled = False
        self._is_receiving = False
        self._write_timer: asyncio.TimerHandle | None = None
        self._segment_timer: asyncio.TimerHandle | None = None
        self._segment_offset = -1
        self._segment_deadline = 0.0

    # Registering

    def expect(
        self,
        protocol: int,
        direction_we_send: Direction,
        ingress_bytes_max: int,
        payload_bytes_max: int = SEGMENT_PAYLOAD_BYTES_MAX,
    ) -> None:
        """Let the peer begin before our side has opened its channel; its data wait, up to
        `ingress_bytes_max`."""
        ingress = self._demultiplexer.register(
            protocol, direction_we_send.opposite, ingress_bytes_max, payload_bytes_max
        )
        self._expected[ingress.lane] = ingress

    def stop_expecting(self, protocol: int, direction_we_send: Direction) -> None:
        """Withdraw `expect`. A peer that has already begun this mini-protocol is cut off."""
        ingress = self._expected.pop(lane_number(protocol, direction_we_send.opposite), None)
        if ingress is not None:
            self._demultiplexer.unregister(ingress)
            if ingress.queued_bytes:
                offset = self._reader.offset
                self.abort(self._demultiplexer.refusal(ingress.lane, ingress.queued_bytes, offset))

    def channel(
        self,
        protocol: int,
        direction_we_send: Direction,
        ingress_bytes_max: int,
        payload_bytes_max: int = SEGMENT_PAYLOAD_BYTES_MAX,
    ) -> ProtocolChannel:
        """Return an instance of a mini-protocol: we send with `direction_we_send` and receive with the
        opposite."""
        ingress = self._expected.pop(lane_number(protocol, direction_we_send.opposite), None)
        if ingress is None:
            ingress = self._demultiplexer.register(
                protocol, direction_we_send.opposite, ingress_bytes_max, payload_bytes_max
            )
        ingress.put_back(self._left_over.pop(ingress.lane, b""))
        channel = BearerChannel(self, ingress, self._egress.register(protocol, direction_we_send))
        self._channels[ingress.lane] = channel
        ingress.on_arrival = partial(self._arrived.append, channel)
        return channel

    def note_plain_bytes(self) -> None:
        """Remember the hashes of all bytes in both directions until `encrypt`. Called before the first byte."""
        self._plain_bytes = sha256(), sha256()
        self._demultiplexer.trace = self._trace_received

    def forget_plain_bytes(self) -> None:
        self._plain_bytes = None
        self._demultiplexer.trace = None if self._trace is None else self._trace_received

    def encrypt(self, keys_of: Callable[[bytes], StreamKeys], *, speaks_first: bool) -> None:
        """Send and receive everything from now on in encrypted chunks. Raise if the connection has ended, or if plain bytes
        have come that belong to a segment which is not complete.

        The side that does not speak first is silent until the stream of the other side has begun: so the other side never
        reads the first chunk as a segment. `keys_of` gets the hashes of all plain bytes before: first of those that the side
        sent which speaks first.
        """
        if self._reader.is_mid_segment and not self.is_over:
            self.abort(TransportError(f"{self.peer} sent plain bytes where an encrypted stream begins"))
        if self.is_over or self._transport is None:
            raise self.reason or TransportError(f"connection with {self.peer} ended before it was encrypted")
        while not self._egress.is_empty:
            self._transport.write(self._next_batch())
        if self._plain_bytes is None:
            raise LocalProtocolError("nobody noted the plain bytes of a connection that is to be encrypted")
        hashes = [noted.digest() for noted in self._plain_bytes]
        self.forget_plain_bytes()
        keys = keys_of(b"".join(hashes if speaks_first else reversed(hashes)))
        self._sealer = ChunkSealer(keys.sending)
        self._reader = self._chunks = ChunkReader(keys.receiving, self._demultiplexer.reader)
        self._is_held = not speaks_first
        self._schedule_flush()

    # Ending

    @property
    def peer_user_id(self) -> int | None:
        """User id of the program at the other end of a Unix socket; None where the transport cannot tell."""
        raw = None if self._transport is None else self._transport.get_extra_info("socket")
        if raw is None or raw.family != socket.AF_UNIX:
            return None
        credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _process_id, user_id, _group_id = _CREDENTIALS.unpack(credentials)
        return int(user_id)

    def close(self) -> None:
        """End in order: accepted data go out first."""
        self._finish(None)
        self._schedule_flush()

    def abort(self, error: StagepostError) -> None:
        """End at once; every channel raises `error` after the data that had already arrived."""
        self._finish(error)
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> StagepostError | None:
        """Wait until the connection is gone; return the reason, None for an orderly end."""
        await self.closed.wait()
        return self.reason

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # No second buffer behind ours: bytes in the transport's buffer can no longer take fair turns.
        self._transport.set_write_buffer_limits(high=0)
        if not self.peer:
            self.peer = _address_text(transport.get_extra_info("peername"))
        if self.reason is not None:  # aborted before there was a connection
            self._transport.abort()
        self._schedule_flush()
        if self._on_connected is not None:
            self._on_connected(self, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_over:
            return
        is_flush_due = self._is_flush_scheduled
        self._is_receiving = True
        try:
            if self._reader.received(nbytes):
                self._watch_started_segment()
            if self._arrived:
                self._tell_arrived()
            if self._chunks is not None:
                self._look_at_stream(self._chunks)
        except (RemoteProtocolError, TransportError) as error:
            self.abort(error)
        finally:
            self._is_receiving = False
        if self._is_flush_scheduled and not is_flush_due:
            # Answers go out at once.
            self._flush()

    def eof_received(self) -> bool:
        self._peer_has_ended = True
        if self._reader.is_mid_segment and not self.is_over:
            missing_from = self._reader.bytes_received
            self.abort(
                TransportError(
                    f"{self.peer} ended the connection at offset {missing_from}, inside the segment that "
                    f"began at offset {self._reader.offset}",
                    offset=missing_from,
                )
            )
        elif self._chunks is not None and not self._chunks.is_ended and not self.is_over:
            self.abort(
                TransportError(
                    f"the encrypted stream of {self.peer} ended without its last chunk: bytes may be missing",
                    advice="connect again",
                    reason="CutOff",
                )
            )
        else:
            self.close()
        return True  # we close the transport ourselves, when everything is written

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self.reason is None and not self._peer_has_ended:
            error = TransportError(
                f"connection with {self.peer} failed: {exc}", advice="connect again", peer=self.peer
            )
            error.__cause__ = exc
            self.reason = error
        self._finish(self.reason)
        self._transport = None
        self._reader.release()
        for timer in (self._segment_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self.closed.set()

    def pause_writing(self) -> None:
        self._is_paused = True
        # The batch holds whole segments: if it is out in time, so is each of them.
        self._write_timer = self._loop.call_later(SEGMENT_COMPLETION_TIMEOUT_S, self._write_is_overdue)

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._schedule_flush()

    # Used by our channels

    def send(self, lane: EgressLane, data: bytes) -> None:
        self._egress.put(lane, data)
        if not self._is_flush_scheduled:
            self._schedule_flush()

    def release(self, channel: BearerChannel, ingress: Ingress, lane: EgressLane, unread: bytes) -> None:
        if self._channels.get(ingress.lane) is channel:
            del self._channels[ingress.lane]
            ingress.on_arrival = None
            self._demultiplexer.unregister(ingress)
            self._egress.unregister(lane)
            left_over = unread + ingress.take()
            if len(left_over) > LEFT_OVER_BYTES_MAX:
                self.abort(_too_much_left_over(ingress.lane, len(left_over)))
            elif left_over:
                self._left_over[ingress.lane] = left_over

    # Details

    def _tell_arrived(self) -> None:
        # After all segments of this call: the reader looks once at a message that came in several of them.
        if len(self._arrived) == 1:
            self._arrived.pop().tell()
            return
        arrived = dict.fromkeys(self._arrived)
        self._arrived.clear()
        for channel in arrived:
            channel.tell()

    def _finish(self, reason: StagepostError | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        if reason is not None:
            self.reason = reason
            reason.peer = reason.peer or self.peer
        for channel in self._channels.values():
            channel.wake()

    def _schedule_flush(self) -> None:
        # Later, so that all messages until then share a batch, in fair order: after the received data have
        # been answered, or at the end of the turn.
        if not self._is_flush_scheduled and not self._is_paused and self._transport is not None:
            self._is_flush_scheduled = True
            if not self._is_receiving:
                self._put_off(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        transport = self._transport
        if transport is None or self._is_paused or self.reason is not None:
            return
        if self._is_held and not self.is_over:
            return
        batch, sealer = self._next_batch(), self._sealer
        if sealer is not None:
            batch = sealer.seal(batch)
        if batch:
            transport.write(batch)
        if not self._egress.is_empty:
            self._schedule_flush()
        elif self.is_over:
            if sealer is not None and not sealer.is_ended:
                transport.write(sealer.end())
            transport.close()

    def _next_batch(self) -> bytes:
        batch = self._egress.next_batch(int(self._loop.time() * 1e6))
        if self._plain_bytes is not None:
            self._plain_bytes[0].update(batch)
        if batch and self._trace is not None:
            trace = self._trace
            SegmentReader(lambda segment: trace(True, segment.encode())).feed(batch)
        return batch

    def _look_at_stream(self, chunks: ChunkReader) -> None:
        if self._is_held and chunks.has_begun:
            self._is_held = False
            self._schedule_flush()
        if chunks.is_ended and not self.is_over:
            self._peer_has_ended = True
            self.close()

    def _watch_started_segment(self) -> None:
        # The timer is not cancelled when a segment completes, for under load that happens with every read.
        # The timer looks again when it fires.
        if self._segment_offset != self._reader.offset:
            self._segment_offset = self._reader.offset
            self._segment_deadline = self._loop.time() + SEGMENT_COMPLETION_TIMEOUT_S
            if self._segment_timer is None:
                self._segment_timer = self._loop.call_at(self._segment_deadline, self._check_started_segment)

    def _check_started_segment(self) -> None:
        self._segment_timer = None
        if self.is_over or not self._reader.is_mid_segment:
            return
        if self._loop.time() < self._segment_deadline:
            self._segment_timer = self._loop.call_at(self._segment_deadline, self._check_started_segment)
            return
        offset = self._reader.offset
        received_bytes = self._reader.bytes_received - offset
        self.abort(
            ProtocolTimeout(
                f"{self.peer} began a segment at offset {offset}, sent {received_bytes} bytes of it and did "
                f"not complete it within {SEGMENT_COMPLETION_TIMEOUT_S:g} s",
                code=ErrorCode.MUX_TIMEOUT,
                limit=int(SEGMENT_COMPLETION_TIMEOUT_S),
                found=received_bytes,
                offset=offset,
            )
        )

    def _write_is_overdue(self) -> None:
        unsent_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        error = ProtocolTimeout(
            f"{self.peer} did not take the segments sent to it within {SEGMENT_COMPLETION_TIMEOUT_S:g} s; "
            f"{unsent_bytes} bytes are unsent",
            code=ErrorCode.MUX_TIMEOUT,
            limit=int(SEGMENT_COMPLETION_TIMEOUT_S),
            found=unsent_bytes,
            peer=self.peer,
        )
        if self.reason is None:  # an orderly end that could not be carried out is not orderly
            self.reason = error
        self.abort(error)

    def _trace_received(self, segment: Segment) -> None:
        if self._plain_bytes is not None:
            self._plain_bytes[1].update(segment.encode())
        if self._trace is not None:
            self._trace(False, segment.encode())


def _too_much_left_over(lane: int, found: int) -> LimitExceeded:
    return LimitExceeded(
        f"{found} bytes follow the end of {lane_name(lane)}; at most {LEFT_OVER_BYTES_MAX} may wait for the next",
        code=ErrorCode.MUX_INGRESS_OVERFLOW,
        advice="the peer must wait before it begins again",
        limit=LEFT_OVER_BYTES_MAX,
        found=found,
    )


def _address_text(peername: object) -> str:
    """Return a peer's name for error texts: host and port, or the path or stand-in name of a Unix socket."""
    match peername:
        case (str() as host, int() as port, *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case str() as path if path:
            return path
        case _:
            return LOCAL_PEER
