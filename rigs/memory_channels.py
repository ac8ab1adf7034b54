"""Channels without a network: two ends of one mini-protocol in one process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from stagepost.errors import LocalProtocolError, StagepostError, TransportError
from stagepost.ground.wire.mux_queues import EGRESS_BYTES_MAX

Cut = Callable[[bytes], Iterable[bytes]]


def memory_channels(
    cut: Cut | None = None, bytes_max: int = EGRESS_BYTES_MAX
) -> tuple[MemoryChannel, MemoryChannel]:
    """Return two connected channels; `cut` divides written data into the pieces that `read` returns."""
    there = _Pipe(cut, bytes_max)
    back = _Pipe(cut, bytes_max)
    return MemoryChannel(incoming=back, outgoing=there), MemoryChannel(incoming=there, outgoing=back)


class MemoryChannel:
    """Channel in memory, like the only channel of a connection: closing one end ends the reading at the
    other."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False

    async def read(self) -> bytes:
        return await self._incoming.take()

    def on_data(self, callback: Callable[[], None] | None) -> None:
        self._incoming.on_data = callback

    @property
    def has_data(self) -> bool:
        return self._incoming.has_data

    def read_now(self) -> bytes | None:
        return self._incoming.take_now()

    async def write(self, data: bytes) -> None:
        self._check_open()
        await self._outgoing.put(data)

    @property
    def has_room(self) -> bool:
        return self._is_closed or self._outgoing.has_room

    def write_now(self, data: bytes) -> bool:
        self._check_open()
        return self._outgoing.put_now(data)

    def close(self, unread: bytes = b"") -> None:
        self._is_closed = True
        self._outgoing.end(None)
        self._incoming.end(None)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LocalProtocolError("data was written after this side had closed the channel")

    def fail(self, error: StagepostError) -> None:
        """Break the connection: both ends raise `error` after the data that were already written."""
        self._outgoing.end(error)
        self._incoming.end(error)


class _Pipe:
    """Direction of a memory channel: a bounded queue of pieces."""

    def __init__(self, cut: Cut | None, bytes_max: int) -> None:
        self.on_data: Callable[[], None] | None = None
        self._cut = cut
        self._bytes_max = bytes_max
        self._pieces: deque[bytes] = deque()
        self._queued_bytes = 0
        self._is_ended = False
        self._error: StagepostError | None = None
        self._notices: dict[asyncio.Future[None], None] = {}  # for its order
        self._waiting_writers = 0
        self._is_telling = False

    @property
    def has_room(self) -> bool:
        """Return whether `put_now` would accept data, or raise. Tasks that wait in `put` come first."""
        return self._is_ended or not (self._waiting_writers or self._queued_bytes > self._bytes_max)

    @property
    def has_data(self) -> bool:
        return bool(self._pieces) or self._is_ended

    async def put(self, data: bytes) -> None:
        self._waiting_writers += 1
        try:
            while not self._is_ended and self._queued_bytes > self._bytes_max:
                await self._change()
        finally:
            self._waiting_writers -= 1
        self._accept(data)

    def put_now(self, data: bytes) -> bool:
        if not self.has_room:
            return False
        self._accept(data)
        return True

    def _accept(self, data: bytes) -> None:
        if self._is_ended:
            raise self._error or TransportError("the other end of the channel was closed")
        pieces = [data] if self._cut is None else [bytes(piece) for piece in self._cut(data)]
        self._pieces.extend(piece for piece in pieces if piece)
        self._queued_bytes += len(data)
        self._announce()
        self._tell()

    async def take(self) -> bytes:
        while True:
            piece = self.take_now()
            if piece is not None:
                return piece
            await self._change()

    def take_now(self) -> bytes | None:
        if self._pieces:
            piece = self._pieces.popleft()
            self._queued_bytes -= len(piece)
            self._announce()
            return piece
        if self._error is not None:
            raise self._error
        return b"" if self._is_ended else None

    def end(self, error: StagepostError | None) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._error = error
            self._announce()
            self._tell()

    async def _change(self) -> None:
        notice = asyncio.get_running_loop().create_future()
        self._notices[notice] = None
        try:
            await notice
        finally:
            self._notices.pop(notice, None)

    def _announce(self) -> None:
        for notice in self._notices:
            if not notice.done():
                notice.set_result(None)

    def _tell(self) -> None:
        # In the next turn of the loop, as a network would: two ends that answer each other must not nest their calls.
        if self.on_data is not None and not self._is_telling:
            self._is_telling = True
            asyncio.get_running_loop().call_soon(self._tell_now)

    def _tell_now(self) -> None:
        self._is_telling = False
        if self.on_data is not None:
            self.on_data()
