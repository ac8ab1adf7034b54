"""Members, full nodes and validators with nothing above their links but a list of what came over them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from stagepost.full_node.links import DiallingFullNodeLinks
from stagepost.ground.crypto import ed25519
from stagepost.ground.identifiers import LinkEncryption
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import Patience, run_in_virtual_time
from stagepost.ground.net.network import Address, Network, TcpAddress
from stagepost.remp.links.authentication import NONCE_BYTES
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.remp.links.overlay_links import LinkMember, OverlayLinks
from stagepost.simulation.link import LinkSettings
from stagepost.simulation.network import SimulatedNetwork
from stagepost.validator.links import ListeningValidatorLinks

MAGIC = 7_777
SESSION = bytes(range(32))
OTHER_SESSION = bytes(reversed(range(32)))
EXACT = LinkSettings(latency_s=0.01, jitter_s=0.0, cut_chance=0.0)
PORT = 3_000


def seed_of(number: int) -> bytes:
    return bytes([number + 1]) * 32


def key_of(number: int) -> bytes:
    return ed25519.public_key(seed_of(number))


def host_of(number: int) -> str:
    return f"10.0.0.{number + 1}"


def an_end(
    number: int,
    network: Network,
    *,
    magic: int = MAGIC,
    seed: bytes | None = None,
    encryption: LinkEncryption = LinkEncryption.REQUIRED,
) -> OurEnd:
    random = Random(number)
    return OurEnd(
        seed_of(number) if seed is None else seed,
        magic,
        network,
        LoopClock(1_800_000_000.0),
        random,
        fresh=lambda: random.randbytes(NONCE_BYTES),
        encryption=encryption,
    )


@dataclass
class Heard:
    """Everything that was told to those above one member. Queries get themselves back, unless `answers` says else."""

    pushes: list[tuple[int, bytes]] = field(default_factory=list)
    queries: list[tuple[int, bytes]] = field(default_factory=list)
    links: list[int] = field(default_factory=list)
    answers: Callable[[bytes, Callable[[bytes], None]], None] = field(
        default=lambda query, reply: reply(query), compare=False
    )
    on_push: Callable[[int, bytes], None] = field(default=lambda peer, frame: None, compare=False)

    def pushed(self, peer: int, frame: bytes) -> None:
        self.pushes.append((peer, frame))
        self.on_push(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        self.queries.append((peer, query))
        self.answers(query, reply)

    def linked(self, peer: int) -> None:
        self.links.append(peer)


@dataclass
class Receipted:
    """What a full node, or a validator, was told."""

    came: list[tuple[bytes, bytes]] = field(default_factory=list)
    links: list[bytes] = field(default_factory=list)

    def message_came(self, full_node: bytes, message: bytes) -> None:
        self.came.append((full_node, message))

    def full_node_linked(self, full_node: bytes) -> None:
        self.links.append(full_node)

    def receipts_came(self, validator: bytes, data: bytes) -> None:
        self.came.append((validator, data))

    def validator_linked(self, validator: bytes) -> None:
        self.links.append(validator)


@dataclass
class MemberNode:
    """One node of a session: its end, its listener, its overlay and what came."""

    end: OurEnd
    listener: LinkListener
    overlay: OverlayLinks
    heard: Heard

    def start(self) -> None:
        self.overlay.start(self.heard)

    async def stop(self) -> None:
        await self.overlay.close()
        await self.listener.close()


class SimulatedMembers:
    """A session in a simulated network; in virtual time."""

    def __init__(self, count: int, link: LinkSettings = EXACT, seed: int = 1) -> None:
        self.network = SimulatedNetwork(Random(seed), link)
        self.members = [
            LinkMember(key_of(number), TcpAddress(host_of(number), PORT)) for number in range(count)
        ]
        self.nodes: list[MemberNode] = []

    async def start(self) -> list[MemberNode]:
        for number in range(len(self.members)):
            self.nodes.append(await self.node(number))
        for node in self.nodes:
            node.start()
        return self.nodes

    async def node(
        self,
        number: int,
        session_id: bytes = SESSION,
        host: str | None = None,
        order: Sequence[int] | None = None,
    ) -> MemberNode:
        """`order`: numbers of the members in the order in which this one has them."""
        host = host or host_of(number)
        order = order or range(len(self.members))
        members = [self.members[one] for one in order]
        end = an_end(number, self.network.process(host))
        listener = LinkListener(end)
        await listener.start(TcpAddress(host, PORT))
        overlay = OverlayLinks(end, listener, session_id, order.index(number), members)
        return MemberNode(end, listener, overlay, Heard())

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()

    async def all_linked(self) -> None:
        await until(lambda: all(len(node.overlay.linked) == len(self.nodes) - 1 for node in self.nodes))


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    """These runs take a second at most; one that gets nowhere says so soon."""
    run_in_virtual_time(main, Patience(real_s_max=60.0))


async def until(condition: Callable[[], bool], within_s: float = 300.0) -> None:
    """Looks again in every turn of the loop in which something may have happened; virtual or real time."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


def later(answers: list[bytes | None]) -> Callable[[bytes | None], None]:
    """For `ask`: the answer goes to the end of a list."""
    return answers.append


async def on_sockets(
    network: Network, addresses: Sequence[Address], scenario: Callable[[list[MemberNode]], Awaitable[None]]
) -> None:
    """A session on the network of this machine; TCP ports are taken as they come."""
    ends = [an_end(number, network) for number in range(len(addresses))]
    listeners = [LinkListener(end) for end in ends]
    members = []
    for end, listener, address in zip(ends, listeners, addresses, strict=True):
        await listener.start(address)
        if isinstance(address, TcpAddress):
            assert listener.port is not None
            address = TcpAddress(address.host, listener.port)
        members.append(LinkMember(end.public_key, address))
    nodes = [
        MemberNode(end, listener, OverlayLinks(end, listener, SESSION, number, members), Heard())
        for number, (end, listener) in enumerate(zip(ends, listeners, strict=True))
    ]
    try:
        # The highest first: nobody is dialled before it knows the session.
        for node in reversed(nodes):
            node.start()
        await scenario(nodes)
    finally:
        for node in nodes:
            await node.stop()


class FullNodeAndValidator:
    """Simulated: number 0 is the full node, number 1 the validator."""

    def __init__(self, *, admits: Callable[[bytes], bool] = lambda public_key: True) -> None:
        self.network = SimulatedNetwork(Random(1), EXACT)
        self.full_node_end = an_end(0, self.network.process(host_of(0)))
        self.validator_end = an_end(1, self.network.process(host_of(1)))
        self.address = TcpAddress(host_of(1), PORT)
        self.listener = LinkListener(self.validator_end)
        self.validator = ListeningValidatorLinks(self.validator_end, self.listener, admits)
        self.full_node = DiallingFullNodeLinks(self.full_node_end)
        self.at_validator, self.at_full_node = Receipted(), Receipted()

    async def start(self) -> None:
        await self.listener.start(self.address)
        self.validator.start(self.at_validator)
        self.full_node.start(self.at_full_node)
        self.full_node.set_validators({self.validator_end.public_key: self.address})

    async def stop(self) -> None:
        await self.full_node.close()
        await self.validator.close()
        await self.listener.close()
