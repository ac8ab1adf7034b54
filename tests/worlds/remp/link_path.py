"""An attacker on the path of links in a simulated network: it sees and changes every byte of a connection, and has no key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from stagepost.ground.net.bearer import Bearer, Trace
from stagepost.ground.net.network import Address, Listener, Network
from stagepost.ground.net.sockets import CONNECT_TIMEOUT_S, CONNECTIONS_MAX, OnConnection
from stagepost.simulation.transport import SimulatedTransport

TO_RESPONDER, TO_INITIATOR = 0, 1

Meddle = Callable[[int, int, bytes], bytes]
"""Function from a direction, the number of bytes that passed in it before, and the next bytes; it returns what arrives."""


def untouched(way: int, offset: int, data: bytes) -> bytes:
    return data


def flipped(way: int, position: int, mask: int = 1) -> Meddle:
    """Change one byte of one direction."""

    def meddle(direction: int, offset: int, data: bytes) -> bytes:
        at = position - offset
        if direction != way or not 0 <= at < len(data):
            return data
        return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]

    return meddle


class PathConnection:
    """One connection through the attacker's hands, from the side of its initiator."""

    def __init__(self, bearer: Bearer, meddle: Meddle) -> None:
        self.bearer = bearer
        self.meddle = meddle
        self.passed = [b"", b""]
        """What the ends sent, in each direction."""
        transport = bearer._transport
        assert isinstance(transport, SimulatedTransport)
        self._transport = transport
        bearer._transport = cast(asyncio.Transport, _Outgoing(self, transport))
        transport.set_protocol(_Incoming(self, bearer))

    def passes(self, way: int, data: bytes) -> bytes:
        offset = len(self.passed[way])
        self.passed[way] += data
        return self.meddle(way, offset, data)

    def inject(self, way: int, data: bytes) -> None:
        """Send `data` of our own in one direction."""
        if way == TO_RESPONDER:
            self._transport.write(data)
        else:
            self._deliver(data)

    def cut(self) -> None:
        """Let both ends see an orderly end of the stream, as the network can show it."""
        if not self.bearer.is_over:
            self._transport.write_eof()
            self.bearer.eof_received()

    def _deliver(self, data: bytes) -> None:
        left = memoryview(data)
        while left and not self.bearer.is_over:
            space = self.bearer.get_buffer(len(left))
            count = min(len(space), len(left))
            space[:count] = left[:count]
            self.bearer.buffer_updated(count)
            left = left[count:]


class _Outgoing:
    def __init__(self, path: PathConnection, transport: SimulatedTransport) -> None:
        self._path = path
        self._transport = transport

    def write(self, data: bytes) -> None:
        passed = self._path.passes(TO_RESPONDER, bytes(data))
        if passed:
            self._transport.write(passed)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


class _Incoming(asyncio.Protocol):
    def __init__(self, path: PathConnection, bearer: Bearer) -> None:
        self._path = path
        self._bearer = bearer

    def data_received(self, data: bytes) -> None:
        self._path._deliver(self._path.passes(TO_INITIATOR, data))

    def eof_received(self) -> bool:
        return self._bearer.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._bearer.connection_lost(exc)

    def pause_writing(self) -> None:
        self._bearer.pause_writing()

    def resume_writing(self) -> None:
        self._bearer.resume_writing()


class PathNetwork:
    """The network of one process whose outgoing connections all pass the attacker. `meddle` is for the next connections."""

    def __init__(self, inner: Network, meddle: Meddle = untouched) -> None:
        self._inner = inner
        self.meddle = meddle
        self.connections: list[PathConnection] = []

    async def connect(
        self, address: Address, *, trace: Trace | None = None, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Bearer:
        bearer = await self._inner.connect(address, trace=trace, timeout_s=timeout_s)
        self.connections.append(PathConnection(bearer, self.meddle))
        return bearer

    async def serve(
        self,
        address: Address,
        on_connection: OnConnection,
        *,
        trace: Trace | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> Listener:
        return await self._inner.serve(address, on_connection, trace=trace, connections_max=connections_max)
