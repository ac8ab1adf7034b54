"""The network as a node sees it: addresses, connecting, listening. Sockets are one kind, the simulation another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from stagepost.ground.net.bearer import Bearer, Trace
from stagepost.ground.net.sockets import (
    CLOSE_GRACE_S,
    CONNECT_TIMEOUT_S,
    CONNECTIONS_MAX,
    OnConnection,
    connect_tcp,
    connect_unix,
    serve_tcp,
    serve_unix,
)


@dataclass(frozen=True, slots=True, order=True)
class TcpAddress:
    """Host name or IP address, and port; `str` is how people and `Bearer.peer` write it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, order=True)
class UnixAddress:
    path: Path

    def __str__(self) -> str:
        return str(self.path)


Address: TypeAlias = TcpAddress | UnixAddress


class Listener(Protocol):
    """A place that accepts connections; each runs its handler and is closed when that returns."""

    @property
    def address(self) -> str: ...

    @property
    def port(self) -> int | None:
        """The port that was taken; None at a Unix socket."""
        ...

    @property
    def connection_count(self) -> int: ...

    async def close(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """Stop accepting, end every connection in order, and abort those that take longer than `grace_s`."""
        ...


class Network(Protocol):
    """Everything that a node may do with the network."""

    async def connect(
        self, address: Address, *, trace: Trace | None = None, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Bearer:
        """`TransportError` if nobody answers there, `ConfigError` if nobody ever can."""
        ...

    async def serve(
        self,
        address: Address,
        on_connection: OnConnection,
        *,
        trace: Trace | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> Listener:
        """Listen at `address`; port 0 takes a free one. `ConfigError` if this cannot be."""
        ...


class SocketNetwork:
    """The network of this machine."""

    async def connect(
        self, address: Address, *, trace: Trace | None = None, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Bearer:
        match address:
            case TcpAddress(host, port):
                return await connect_tcp(host, port, trace=trace, timeout_s=timeout_s)
            case UnixAddress(path):
                return await connect_unix(path, trace=trace, timeout_s=timeout_s)

    async def serve(
        self,
        address: Address,
        on_connection: OnConnection,
        *,
        trace: Trace | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> Listener:
        match address:
            case TcpAddress(host, port):
                return await serve_tcp(
                    host, port, on_connection, trace=trace, connections_max=connections_max
                )
            case UnixAddress(path):
                return await serve_unix(path, on_connection, trace=trace, connections_max=connections_max)
