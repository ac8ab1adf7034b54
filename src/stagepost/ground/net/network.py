"""The network as a node sees it: addresses, connecting, listening.

Sockets are one implementation, the simulation is another. Addresses are written `127.0.0.1:4200`,
`[::1]:4200`, or as the path of a Unix socket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol, TypeAlias

from stagepost.errors import ConfigError
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
    """Host name or IP address, and port; `str` returns the form that people and `Bearer.peer` write."""

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
    """Place that accepts connections; each runs its handler and is closed when the handler returns."""

    @property
    def address(self) -> str: ...

    @property
    def port(self) -> int | None:
        """Port on which it listens; None at a Unix socket."""
        ...

    @property
    def connection_count(self) -> int: ...

    async def close(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """Stop accepting, end every connection in order, and abort those that take longer than `grace_s`."""
        ...


class Network(Protocol):
    """Access of a node to the network."""

    async def connect(
        self, address: Address, *, trace: Trace | None = None, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Bearer:
        """Return a connection to `address`.

        Raise `TransportError` if nobody answers there, `ConfigError` if nobody ever can.
        """
        ...

    async def serve(
        self,
        address: Address,
        on_connection: OnConnection,
        *,
        trace: Trace | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> Listener:
        """Listen at `address`; port 0 takes a free one. Raise `ConfigError` if that is impossible."""
        ...


class SocketNetwork:
    """Network of this machine's sockets. `trace`: for connections that a caller opens without a trace of its own."""

    def __init__(self, *, trace: Trace | None = None) -> None:
        self._trace = trace

    async def connect(
        self, address: Address, *, trace: Trace | None = None, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Bearer:
        trace = trace or self._trace
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


PORT_MAX = 65_535
_TCP = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", re.ASCII)


def parse_address(text: str) -> Address:
    """Return the address that `text` names: a text with a slash is a path, every other text is HOST:PORT."""
    if "/" in text:
        return UnixAddress(Path(text))
    found = _TCP.fullmatch(text)
    if found is None or int(found[3]) > PORT_MAX:
        raise ConfigError(
            f"{text!r} is not a valid address",
            advice="write HOST:PORT, as in 127.0.0.1:4200, or ./PATH of a socket",
        )
    return TcpAddress(found[1] or found[2], int(found[3]))


def is_on_this_machine(address: Address) -> bool:
    """Return whether only programs of this machine can connect to `address`."""
    if isinstance(address, UnixAddress):
        return True
    if address.host == "localhost":
        return True
    try:
        return ip_address(address.host).is_loopback
    except ValueError:
        return False
