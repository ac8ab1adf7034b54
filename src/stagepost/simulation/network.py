"""A network in memory: hosts with addresses, links with delay and loss, partitions and resets, all from one seed."""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import Random
from typing import cast

from stagepost.errors import ConfigError, TransportError
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.net.bearer import Bearer, Trace
from stagepost.ground.net.network import Address, Listener, TcpAddress, UnixAddress
from stagepost.ground.net.sockets import CONNECT_TIMEOUT_S, CONNECTIONS_MAX, OnConnection, Server
from stagepost.simulation.history import TraceHash
from stagepost.simulation.link import LOCAL_LINK, LinkSettings, Pipe, Route
from stagepost.simulation.transport import SimulatedTransport

FIRST_FREE_PORT = 40_000
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})
_LOOPBACK = frozenset({LOOPBACK_HOST, "::1", "localhost"})

Place = tuple[str, str]
"""A host, and the port or path on it."""


class SimulatedNetwork:
    """Whole network. `process` returns one process's view of it; faults are ordered here."""

    def __init__(
        self, random: Random, link: LinkSettings | None = None, trace: TraceHash | None = None
    ) -> None:
        self.trace = trace or TraceHash()
        self._seed = random.getrandbits(64)
        self._link = link or LinkSettings()
        self._routes: dict[tuple[str, str], Route] = {}
        self._listeners: dict[Place, _ListeningPlace] = {}
        self._silent_hosts: set[str] = set()
        self._connections = 0
        self._ports = FIRST_FREE_PORT

    def process(self, host: str) -> ProcessNetwork:
        """Return the network as a new process on `host` (an IP address) sees it."""
        self._silent_hosts.discard(host)
        return ProcessNetwork(self, host)

    # Faults and settings

    def set_link(self, one: str, other: str, link: LinkSettings) -> None:
        self.route(one, other).link = link

    def partition(self, one: str, other: str) -> None:
        """Let nothing pass between two hosts until as many heals; connections stay open and their bytes wait."""
        self.route(one, other).block()
        self.note(f"partition {one} {other}")

    def heal(self, one: str, other: str) -> None:
        self.route(one, other).heal()
        self.note(f"heal {one} {other}")

    def heal_all(self) -> None:
        for route in self._routes.values():
            route.heal(entirely=True)
        self.note("heal all")

    def reset(self, one: str, other: str) -> None:
        """Break every connection between two hosts, like a router that forgot them; both ends notice."""
        self.note(f"reset {one} {other}")
        for pipe in list(self.route(one, other).pipes):
            pipe.receiver.reset()

    # Used by processes

    def route(self, one: str, other: str) -> Route:
        key = (min(one, other), max(one, other))
        route = self._routes.get(key)
        if route is None:
            # Each route has its own generator, seeded by name: events on one route do not shift the luck of
            # another.
            random = Random(f"{self._seed}/{key[0]}/{key[1]}")
            route = self._routes[key] = Route(LOCAL_LINK if one == other else self._link, random)
        return route

    def note(self, what: str, data: bytes = b"") -> None:
        self.trace.note(asyncio.get_running_loop().time(), what, data)

    def listen(self, place: Place, accepting: _ListeningPlace) -> None:
        if place in self._listeners:
            raise ConfigError(f"cannot listen at {':'.join(place)}: the address is in use")
        self._listeners[place] = accepting

    def stop_listening(self, place: Place, accepting: _ListeningPlace) -> None:
        if self._listeners.get(place) is accepting:
            del self._listeners[place]

    def listener(self, place: Place) -> _ListeningPlace | None:
        return self._listeners.get(place)

    def is_silent(self, host: str) -> bool:
        return host in self._silent_hosts

    def silence(self, host: str) -> None:
        self._silent_hosts.add(host)

    def next_port(self) -> int:
        self._ports += 1
        return self._ports

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections


@dataclass(eq=False)
class _ListeningPlace:
    """Listening address. Like asyncio's servers it offers `close`."""

    process: ProcessNetwork
    place: Place
    server: Server
    context: Context

    def close(self) -> None:
        self.process.network.stop_listening(self.place, self)


class ProcessNetwork:
    """Implementation of `Network` for one process; after `crash` it is dead, and its further acts have no
    effect."""

    def __init__(self, network: SimulatedNetwork, host: str) -> None:
        self.network = network
        self.host = host
        self.is_alive = True
        self._transports: dict[SimulatedTransport, None] = {}
        self._accepting: dict[_ListeningPlace, None] = {}

    async def connect(
        self, address: Address, *, trace: Trace | None = None, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Bearer:
        host, place = self._resolve(address)
        bearer = Bearer(peer=str(address) if isinstance(address, UnixAddress) else "", trace=trace)
        await self.connect_protocol(bearer, host, place, str(address), timeout_s)
        return bearer

    async def connect_protocol(
        self, protocol: asyncio.BaseProtocol, host: str, place: Place, name: str, timeout_s: float
    ) -> SimulatedTransport:
        """Connect any asyncio protocol at our end: peers that are not bearers, for tests."""
        route = self.network.route(self.host, host)
        try:
            async with asyncio.timeout(timeout_s):
                self._require_life()
                await route.cross()
                if self.network.is_silent(host):
                    await asyncio.sleep(timeout_s + 1)
                accepting = self.network.listener(place)
                if accepting is None:
                    await route.cross()
                    raise TransportError(
                        f"cannot connect to {name}: nobody is listening there",
                        advice="start the node, or check host and port",
                    )
                ours = self._join(protocol, accepting, route)
                try:
                    await route.cross()
                except BaseException:
                    ours.abort()
                    raise
                self._require_life()
                if ours.is_closing():
                    raise TransportError(f"cannot connect to {name}: connection reset by peer")
                ours.made()
                await asyncio.sleep(0)  # the protocol has been told when we return
                return ours
        except TimeoutError as error:
            raise TransportError(
                f"cannot connect to {name}: no answer within {timeout_s:g} s",
                advice="check the address and the network",
            ) from error

    async def serve(
        self,
        address: Address,
        on_connection: OnConnection,
        *,
        trace: Trace | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> Listener:
        self._require_life()
        server = Server(on_connection, trace, connections_max)
        if isinstance(address, TcpAddress):
            if address.host not in _EVERY_ADDRESS | _LOOPBACK | {self.host}:
                raise ConfigError(
                    f"cannot listen at {address}: this machine has no such address",
                    advice="listen at one of its own addresses",
                )
            server.port = address.port or self.network.next_port()
            place: Place = (self.host, str(server.port))
            text = str(TcpAddress(address.host, server.port))
        else:
            place, text = (self.host, str(address)), str(address)
        accepting = _ListeningPlace(self, place, server, copy_context())
        self.network.listen(place, accepting)
        self._accepting[accepting] = None
        # A server does nothing with its listening address but close it.
        server.started(cast(asyncio.Server, accepting), text)
        return server

    def crash(self, *, reset: bool = True) -> None:
        """End the process at once. With `reset` the kernel resets its connections; otherwise the host is
        silent."""
        self.is_alive = False
        for accepting in self._accepting:
            accepting.close()
        for transport in list(self._transports):
            # Programs on the same host notice either way: they go down with it, or see their socket close.
            transport.crash(reset=reset or transport.is_local)
        if not reset:
            self.network.silence(self.host)

    # Details

    def _resolve(self, address: Address) -> tuple[str, Place]:
        match address:
            case TcpAddress(host, port):
                target = self.host if host in _LOOPBACK | _EVERY_ADDRESS else host
                return target, (target, str(port))
            case UnixAddress():
                return self.host, (self.host, str(address))

    def _join(
        self, protocol: asyncio.BaseProtocol, accepting: _ListeningPlace, route: Route
    ) -> SimulatedTransport:
        """Make both ends; theirs stands now, ours when their answer has crossed."""
        network, theirs_process = self.network, accepting.process
        number = network.next_connection()
        network.note(f"connection {number} from {self.host} to {':'.join(accepting.place)}")
        is_local = not accepting.place[1].isdigit()
        our_name: object = "" if is_local else (self.host, network.next_port())
        their_name: object = accepting.place[1] if is_local else (accepting.place[0], int(accepting.place[1]))
        ours = self._transport(
            protocol, copy_context(), {"peername": their_name, "sockname": our_name}, number
        )
        bearer = accepting.context.run(accepting.server.accept)
        theirs = theirs_process._transport(
            bearer, accepting.context.copy(), {"peername": our_name, "sockname": their_name}, -number
        )
        ours.is_local = theirs.is_local = is_local
        there = Pipe(route, self.host, theirs)
        back = Pipe(route, theirs_process.host, ours)
        ours.attach(incoming=back, outgoing=there)
        theirs.attach(incoming=there, outgoing=back)
        theirs.made()
        return ours

    def _transport(
        self, protocol: asyncio.BaseProtocol, context: Context, extra: dict[str, object], number: int
    ) -> SimulatedTransport:
        transport = SimulatedTransport(
            protocol,
            context,
            extra,
            on_gone=self._gone,
            on_delivered=lambda data: self.network.note(f"bytes {number}", data),
            is_host_silent=lambda: self.network.is_silent(self.host),
        )
        self._transports[transport] = None
        return transport

    def _gone(self, transport: SimulatedTransport) -> None:
        self._transports.pop(transport, None)

    def _require_life(self) -> None:
        if not self.is_alive:
            raise TransportError("this process has crashed")
