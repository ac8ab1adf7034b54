"""An end of a simulated connection, as asyncio's protocols know it: the production bearer runs on it
unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any

from stagepost.ground.net.sockets import KEEP_ALIVE_IDLE_S, KEEP_ALIVE_PROBE_S, KEEP_ALIVE_PROBES
from stagepost.simulation.link import Ending, Piece, Pipe

WRITE_BUFFER_HIGH_BYTES = 65_536


class SimulatedTransport(asyncio.Transport):
    """Transport whose bytes go into a pipe while that has room, and wait here otherwise: the back-pressure of
    a socket."""

    def __init__(
        self,
        protocol: asyncio.BaseProtocol,
        context: Context,
        extra: dict[str, object],
        *,
        on_gone: Callable[[SimulatedTransport], None],
        on_delivered: Callable[[bytes], None],
        is_host_silent: Callable[[], bool],
    ) -> None:
        super().__init__(extra)
        self._protocol = protocol
        self.context = context
        self.is_local = False
        self._is_host_silent = is_host_silent
        self._on_gone = on_gone
        self._on_delivered = on_delivered
        self._loop = asyncio.get_running_loop()
        self._outgoing: Pipe | None = None
        self._incoming: Pipe | None = None
        self._waiting = bytearray()
        self._high_bytes, self._low_bytes = WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_HIGH_BYTES // 4
        self._is_paused = False  # the protocol was told to stop writing
        self._is_reading = True
        self._is_closing = False
        self._is_ending = False  # no more writing once the buffer is empty
        self._is_lost = False
        self._is_dead = False  # its process crashed: nobody is called any more

    def attach(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        outgoing.on_room = self._has_room

    def made(self) -> None:
        """Tell the protocol that the connection stands, then pass on the bytes that have arrived."""
        self._loop.call_soon(self._made, context=self.context)

    def crash(self, *, reset: bool) -> None:
        """End this side with its process. The kernel resets the connection, or the whole host is silent."""
        if self._is_lost or self._is_dead:
            self._is_dead = True
            return
        self._is_dead = self._is_closing = True
        self._waiting.clear()
        if reset:
            self._send_reset()
        else:
            self._loop.call_later(KEEP_ALIVE_IDLE_S, self._probed, 1)
        self._gone()

    def reset(self) -> None:
        """Take note that the network broke the connection: this end notices at once, the other by itself."""
        self._waiting.clear()
        self._lose(ConnectionResetError("connection reset by peer"))

    def arrived(self, piece: Piece) -> None:
        if self._is_dead:
            # A host that is up again knows nothing of its former connections.
            if isinstance(piece, bytes) and not self._is_host_silent():
                self._send_reset()
        elif isinstance(piece, Ending):
            if piece.is_reset:
                self.reset()
            elif not self._is_closing:
                self._eof()
        elif self._is_lost or self._is_closing:
            self._send_reset()
        else:
            self._on_delivered(piece)
            self._feed(piece)

    # The interface of asyncio's transports

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_lost or self._is_dead or self._is_ending:
            return
        self._waiting += data
        self._transmit()
        if len(self._waiting) > self._high_bytes and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        for data in list_of_data:
            self.write(data)

    def write_eof(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._transmit()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._waiting:
            self._is_ending = True
        else:
            self._close_now()

    def abort(self) -> None:
        if self._is_lost or self._is_dead:
            return
        self._waiting.clear()
        self._send_reset()
        self._lose(None)

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def pause_reading(self) -> None:
        self._is_reading = False
        if self._incoming is not None:
            self._incoming.hold()

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._incoming is not None:
            self._incoming.resume()

    def is_reading(self) -> bool:
        return self._is_reading and not self.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = high if high is not None else 4 * (low or WRITE_BUFFER_HIGH_BYTES // 4)
        self._low_bytes = low if low is not None else self._high_bytes // 4

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def get_write_buffer_size(self) -> int:
        return len(self._waiting)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # Details

    def _made(self) -> None:
        if self._is_dead or self._is_lost:
            return
        self._protocol.connection_made(self)
        if self._is_reading and self._incoming is not None:
            self._incoming.resume()

    def _feed(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            left = memoryview(data)
            while left and not self.is_closing():
                space = memoryview(protocol.get_buffer(len(left)))
                count = min(len(space), len(left))
                space[:count] = left[:count]
                protocol.buffer_updated(count)
                left = left[count:]
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)

    def _eof(self) -> None:
        protocol = self._protocol
        assert isinstance(protocol, asyncio.BufferedProtocol | asyncio.Protocol)
        if not protocol.eof_received():
            self.close()

    def _has_room(self) -> None:
        # Called while the other side receives: acts of this side's protocol belong to its own context.
        if self._waiting:
            self._loop.call_soon(self._transmit, context=self.context)

    def _transmit(self) -> None:
        pipe = self._outgoing
        if pipe is None or self._is_lost or self._is_dead:
            return
        while self._waiting and (room := pipe.room):
            piece = bytes(self._waiting[:room])
            del self._waiting[:room]
            pipe.send(piece)
        if self._is_paused and len(self._waiting) <= self._low_bytes:
            self._is_paused = False
            self._protocol.resume_writing()
        if not self._waiting and self._is_ending:
            if self._is_closing:
                self._close_now()
            else:
                pipe.end(is_reset=False)

    def _probed(self, probes: int) -> None:
        """Answer a probe of the other end's kernel. Silence is an answer after a while."""
        assert self._outgoing is not None
        if probes > KEEP_ALIVE_PROBES or not self._is_host_silent():
            self._outgoing.receiver.reset()
        else:
            self._loop.call_later(KEEP_ALIVE_PROBE_S, self._probed, probes + 1)

    def _send_reset(self) -> None:
        assert self._outgoing is not None
        self._outgoing.end(is_reset=True)

    def _close_now(self) -> None:
        if self._is_lost:
            return
        assert self._outgoing is not None
        self._outgoing.end(is_reset=False)
        self._lose(None)

    def _lose(self, exception: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._gone()
        self._loop.call_soon(self._connection_lost, exception, context=self.context)

    def _connection_lost(self, exception: Exception | None) -> None:
        if not self._is_dead:
            self._protocol.connection_lost(exception)

    def _gone(self) -> None:
        self._on_gone(self)
        if self._outgoing is not None and self._incoming is not None:
            self._incoming.is_abandoned = True
            if self._outgoing.is_abandoned:  # the other end is gone as well
                self._incoming.drop()
                self._outgoing.drop()
