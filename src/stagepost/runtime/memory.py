"""Channels without a network: two ends in one process, for tests, demonstrations and simulation."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from stagepost.errors import LocalProtocolError, StagepostError, TransportError
from stagepost.wire.mux_queues import EGRESS_BYTES_MAX

Cut = Callable[[bytes], Iterable[bytes]]


def memory_channels(
    cut: Cut | None = None, bytes_max: int = EGRESS_BYTES_MAX
) -> tuple[MemoryChannel, MemoryChannel]:
    """Two connected channels; `cut` divides what is written into the pieces that `read` will give."""
    there = _Pipe(cut, bytes_max)
    back = _Pipe(cut, bytes_max)
    return MemoryChannel(incoming=back, outgoing=there), MemoryChannel(incoming=there, outgoing=back)


class MemoryChannel:
    """Like the only channel of a connection: closing one end ends the reading at the other."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False

    async def read(self) -> bytes:
        return await self._incoming.take()

    async def write(self, data: bytes) -> None:
        if self._is_closed:
            raise LocalProtocolError("written to a channel that was closed on this side")
        await self._outgoing.put(data)

    def close(self, unread: bytes = b"") -> None:
        self._is_closed = True
        self._outgoing.end(None)
        self._incoming.end(None)

    def fail(self, error: StagepostError) -> None:
        """Break the connection: both ends see `error` after what was already written."""
        self._outgoing.end(error)
        self._incoming.end(error)


class _Pipe:
    """One direction: a bounded queue of pieces."""

    def __init__(self, cut: Cut | None, bytes_max: int) -> None:
        self._cut = cut
        self._bytes_max = bytes_max
        self._pieces: deque[bytes] = deque()
        self._queued_bytes = 0
        self._is_ended = False
        self._error: StagepostError | None = None
        self._notices: dict[asyncio.Future[None], None] = {}  # for its order

    async def put(self, data: bytes) -> None:
        while not self._is_ended and self._queued_bytes > self._bytes_max:
            await self._change()
        if self._is_ended:
            raise self._error or TransportError("the other end of the channel was closed")
        pieces = [data] if self._cut is None else [bytes(piece) for piece in self._cut(data)]
        self._pieces.extend(piece for piece in pieces if piece)
        self._queued_bytes += len(data)
        self._announce()

    async def take(self) -> bytes:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._is_ended:
                return b""
            await self._change()
        piece = self._pieces.popleft()
        self._queued_bytes -= len(piece)
        self._announce()
        return piece

    def end(self, error: StagepostError | None) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._error = error
            self._announce()

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
