"""Two nodes and two programs on this machine: a message goes in at one node and comes out at the other.

Everything is real but the disk: handshakes, signatures, sockets, and the node that operators run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from stagepost.dmq.endpoints.connection import Connection, initiate
from stagepost.dmq.endpoints.local_notification import LocalMessageNotificationClient
from stagepost.dmq.endpoints.local_submission import LocalMessageSubmissionClient
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.config import NodeConfig
from stagepost.dmq.node.memory_store import MemoryDisk, MemoryStore
from stagepost.dmq.node.node import DmqNode
from stagepost.dmq.outcome import Outcome
from stagepost.dmq.pools import PoolDistribution
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.dmq.topology import AccessPoint, LocalRoot, Topology
from stagepost.dmq.validation import SLOTS_PER_KES_PERIOD
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.net.network import SocketNetwork
from stagepost.ground.net.sockets import connect_unix
from stagepost.ground.net.version_data import DMQ_NODE_V2, NETWORK_MAGICS, ConnectionKind, VersionData
from stagepost.ground.signatures.verifier import Verifier
from stagepost.ground.statemachine.spec import Role

NETWORK_MAGIC = NETWORK_MAGICS["mithril-devnet"]
KES_EVOLUTIONS_MAX = 62


@dataclass
class Capture:
    """Every segment of one connection, both directions, in the order in which they passed."""

    segments: list[bytes] = field(default_factory=list)

    def keep(self, _sent: bool, segment: bytes) -> None:
        self.segments.append(segment)

    @property
    def stream(self) -> bytes:
        return b"".join(self.segments)


@dataclass(frozen=True)
class Journey:
    """The result: the answers, the message as the listener got it, and every byte of the three connections."""

    accepted: Outcome
    repeated: Outcome
    received: DmqMessage
    submitter: bytes
    between_nodes: bytes
    listener: bytes


async def carry(message: DmqMessage, profile: Profile, folder: Path) -> Journey:
    """Carry a message from a program at one node to a program at the other, all of them speaking `profile`."""
    captures = Capture(), Capture(), Capture()
    pools = PoolDistribution({message.pool_id: 1}, KES_EVOLUTIONS_MAX, SLOTS_PER_KES_PERIOD)
    network = SocketNetwork(trace=captures[1].keep)
    async with AsyncExitStack() as stack:

        async def start(name: str, dials: tuple[int, ...] = ()) -> DmqNode:
            return await stack.enter_async_context(_node(folder / name, profile, pools, network, dials))

        # The message goes from the first node to the second. Who dials depends on who pulls in this version.
        if profile.node_versions_proposed[-1] == DMQ_NODE_V2:
            first = await start("first")
            await start("second", (first.tcp_ports[0],))
        else:
            second = await start("second")
            await start("first", (second.tcp_ports[0],))
        return await _converse(message, profile, folder, captures)


async def _converse(
    message: DmqMessage, profile: Profile, folder: Path, captures: tuple[Capture, Capture, Capture]
) -> Journey:
    submitter = await _connect(folder / "first", profile, captures[0])
    listener = await _connect(folder / "second", profile, captures[2])
    notification = LocalMessageNotificationClient(
        listener.open(profile, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, Role.CLIENT)
    )
    submission = LocalMessageSubmissionClient(
        submitter.open(profile, MiniProtocol.LOCAL_MESSAGE_SUBMISSION, Role.CLIENT)
    )
    # The listener waits before there is anything to hear, as a program would.
    waiting = asyncio.create_task(notification.request_messages_blocking())
    accepted = await submission.submit_message(message)
    received = (await waiting).messages[0]
    repeated = await submission.submit_message(message)
    await submission.done()
    await notification.done()
    for connection in (submitter, listener):
        connection.close()
        await connection.bearer.wait_closed()
    streams = [capture.stream for capture in captures]
    return Journey(accepted, repeated, received, *streams)


@asynccontextmanager
async def _node(
    folder: Path, profile: Profile, pools: PoolDistribution, network: SocketNetwork, dials: tuple[int, ...]
) -> AsyncIterator[DmqNode]:
    points = tuple(AccessPoint(LOOPBACK_HOST, port, profile) for port in dials)
    config = NodeConfig(
        data_dir=folder,
        local_socket=folder / "dmq-node.socket",
        pools_file=folder / "pools.json",
        host_addresses=(LOOPBACK_HOST,),
        port=0,
        network_magic=NETWORK_MAGIC,
        topology=Topology(local_roots=(LocalRoot(points, len(points), len(points)),)),
        wire_profile=profile,
        # One direction is enough to follow with the eye; nodes use a connection both ways otherwise.
        initiator_only=bool(dials),
        peer_sharing=False,
    )
    verifier = Verifier()
    node = DmqNode(
        config,
        network=network,
        clock=SystemClock(),
        store=MemoryStore(MemoryDisk()),
        pools=pools,
        verifier=verifier,
        random=Random(1),
    )
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
        await verifier.close()


async def _connect(folder: Path, profile: Profile, capture: Capture) -> Connection:
    bearer = await connect_unix(folder / "dmq-node.socket", trace=capture.keep)
    return await initiate(bearer, profile, ConnectionKind.CLIENT, VersionData(NETWORK_MAGIC))
