"""A message network in memory that loses, delays, repeats and reorders on request: for tests, also those of users.

    network = MemoryNetwork(seed=7, drop=0.1)
    alice, bob = network.join("alice"), network.join("bob")

The network runs on any event loop. On a virtual-time loop, with one seed, every run is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from random import Random

from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.transport import (
    Incoming,
    IncomingAcks,
    MessageCallback,
    Outgoing,
    Published,
    SendFailed,
    SendRefused,
    Unsubscribe,
)

PAYLOAD_BYTES_MAX = 65_536


class MemoryNetwork:
    """A network in which every member hears every other, unless `cut` or `partition` says otherwise.

    `drop`, `duplicate` and `reorder` are chances from 0 to 1, for each message and each receiver. `delay` is seconds, or
    a range of seconds. A message that is overtaken by a cut on its way is lost. All of these may be changed at any time.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        drop: float = 0.0,
        delay: float | tuple[float, float] = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        max_payload: int = PAYLOAD_BYTES_MAX,
    ) -> None:
        self.drop = drop
        self.delay = delay
        self.duplicate = duplicate
        self.reorder = reorder
        self.max_payload = max_payload
        self.random = Random(seed)
        self.dropped = 0
        self.delivered = 0
        self._members: dict[str, MemoryTransport] = {}
        self._cut: set[str] = set()
        self._groups: tuple[frozenset[str], ...] = ()
        self._last_id = 0
        self._carried = 0
        self._on_its_way: list[tuple[float, int, str, MemoryTransport, Incoming | IncomingAcks]] = []

    def join(self, name: str) -> MemoryTransport:
        """Add a member. A member with the same name is a former run of the same node, and leaves."""
        if name in self._members:
            self._members[name].leave()
        transport = MemoryTransport(self, name)
        self._members[name] = transport
        self._tell_all()
        return transport

    def cut(self, *names: str) -> None:
        """Cut members off: they hear nobody, and nobody hears them."""
        self._cut.update(names)
        self._tell_all()

    def heal(self, *names: str) -> None:
        """Undo `cut`; without a name, undo every cut and partition."""
        if names:
            self._cut.difference_update(names)
        else:
            self._cut.clear()
            self._groups = ()
        self._tell_all()

    def partition(self, *groups: Iterable[str]) -> None:
        """Let only members of one group hear each other; a member without a group hears nobody.

        Without groups, undo the partition.
        """
        self._groups = tuple(frozenset(group) for group in groups)
        self._tell_all()

    def is_linked(self, one: str, other: str) -> bool:
        if one == other or one in self._cut or other in self._cut:
            return False
        if other not in self._members or one not in self._members:
            return False
        return not self._groups or any(one in group and other in group for group in self._groups)

    def peers_of(self, name: str) -> int:
        return sum(self.is_linked(name, other) for other in self._members)

    def hand(self, name: str, message: Incoming | IncomingAcks) -> None:
        """Deliver a message to one member at once, as if the network had carried it."""
        if (member := self._members.get(name)) is not None:
            member.receive(message)

    # For the transports.

    def spread(self, origin: MemoryTransport, message: Incoming | IncomingAcks) -> int:
        """Begin to carry a message to every linked member; return how many there are."""
        receivers = [name for name in self._members if self.is_linked(origin.self_id, name)]
        for name in receivers:
            if self.drop and self.random.random() < self.drop:
                self.dropped += 1
                continue
            copies = 2 if self.duplicate and self.random.random() < self.duplicate else 1
            for _ in range(copies):
                self._carry(origin, self._members[name], message)
        return len(receivers)

    def _carry(
        self, origin: MemoryTransport, target: MemoryTransport, message: Incoming | IncomingAcks
    ) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + self._delay_s()
        self._carried += 1
        heappush(self._on_its_way, (at, self._carried, origin.self_id, target, message))
        if at > loop.time():
            loop.call_at(at, self._deliver_until, at)
        else:
            loop.call_soon(self._deliver_until, at)

    def _delay_s(self) -> float:
        least, most = self.delay if isinstance(self.delay, tuple) else (self.delay, self.delay)
        delay_s = least if least == most else self.random.uniform(least, most)
        if self.reorder and self.random.random() < self.reorder:
            delay_s += self.random.uniform(0.0, 2 * most + 0.05)
        return delay_s

    def _deliver_until(self, now_s: float) -> None:
        """Deliver what is due. Messages with equal delays arrive in the order of sending, which timers do not promise."""
        while self._on_its_way and self._on_its_way[0][0] <= now_s:
            _, _, origin, target, message = heappop(self._on_its_way)
            self._arrive(origin, target, message)

    def _arrive(self, origin: str, target: MemoryTransport, message: Incoming | IncomingAcks) -> None:
        if self._members.get(target.self_id) is target and self.is_linked(origin, target.self_id):
            self.delivered += 1
            target.receive(message)
        else:
            self.dropped += 1

    def leave(self, transport: MemoryTransport) -> None:
        if self._members.get(transport.self_id) is transport:
            del self._members[transport.self_id]
            self._tell_all()

    def next_id(self) -> bytes:
        self._last_id += 1
        return self._last_id.to_bytes(32, "big")

    def _tell_all(self) -> None:
        for member in list(self._members.values()):
            member.look()


class MemoryTransport:
    """The access of one member. `fail_next` makes sends go wrong as a real network's would."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.network = network
        self._self_id = name
        self._peers = 0
        self._failures: list[SendFailed | SendRefused] = []
        self._on_connectivity: dict[object, Callable[[int], None]] = {}
        self._on_message: dict[object, MessageCallback] = {}
        self.sends: list[tuple[float, Outgoing]] = []
        """The last sends that were tried, with the loop's time."""

    @property
    def self_id(self) -> str:
        return self._self_id

    @property
    def max_payload(self) -> int:
        return self.network.max_payload

    def payload_room(self, topic: str, ackers: Sequence[str]) -> int:
        return self.network.max_payload

    @property
    def connected_peers(self) -> int:
        return self.network.peers_of(self._self_id)

    def fail_next(self, count: int = 1, error: SendFailed | SendRefused | None = None) -> None:
        """Make the next `count` sends fail."""
        self._failures += [error or SendFailed("the network failed on request")] * count

    async def publish(self, message: Outgoing) -> Published:
        self.sends.append((asyncio.get_running_loop().time(), message))
        del self.sends[:-SENDS_KEPT]
        if not self.connected_peers:
            raise SendFailed(f"{self._self_id} is not connected to any peer", costs_attempt=False)
        if self._failures:
            raise self._failures.pop(0)
        network_id = self.network.next_id()
        incoming = Incoming(
            self._self_id,
            message.topic,
            message.nonce,
            message.created_ms,
            message.attempt,
            message.ackers,
            message.payload,
            network_id=network_id,
            traceparent=message.traceparent,
        )
        return Published(network_id, self.network.spread(self, incoming))

    async def publish_acks(self, receipts: Sequence[AckReceipt]) -> None:
        self.network.spread(self, IncomingAcks(self._self_id, self._self_id, tuple(receipts)))

    def on_connectivity(self, callback: Callable[[int], None]) -> Unsubscribe:
        token = object()
        self._on_connectivity[token] = callback
        return lambda: _forget(self._on_connectivity, token)

    def on_message(self, callback: MessageCallback) -> Unsubscribe:
        token = object()
        self._on_message[token] = callback
        return lambda: _forget(self._on_message, token)

    def receive(self, message: Incoming | IncomingAcks) -> None:
        for callback in list(self._on_message.values()):
            callback(message)

    def look(self) -> None:
        """Call the callbacks if the number of peers has changed."""
        peers = self.connected_peers
        if peers != self._peers:
            self._peers = peers
            for callback in list(self._on_connectivity.values()):
                callback(peers)

    def leave(self) -> None:
        """Leave the network as a process that ends: no member hears this one any more, and it hears nothing."""
        self._on_message.clear()
        self._on_connectivity.clear()
        self.network.leave(self)


SENDS_KEPT = 100_000


def _forget(table: dict[object, Callable[..., None]], token: object) -> None:
    table.pop(token, None)
