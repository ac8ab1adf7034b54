"""A program's side of nodes on this machine: any CIP-0137 node's local socket, to submit, send reliably and listen, and a
full node, to hand in external messages and follow them to their end.

Which nodes a client is to be connected with: as told, or as the notes in data folders say.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stagepost.delivery.status import Tier
from stagepost.dmq.endpoints.local_client import ClientLimits, LocalClient
from stagepost.dmq.endpoints.local_node import LocalNode
from stagepost.dmq.endpoints.message_stream import MessageStream, OnConnection
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Accepted, Rejected
from stagepost.dmq.profiles import profile_named
from stagepost.errors import (
    DecodeError,
    LocalProtocolError,
    StorageError,
)
from stagepost.full_node.local_client import ExternalMessages, id_bytes
from stagepost.ground.files.data_folder import NODE_FILE
from stagepost.ground.files.running_nodes import (
    DATA_DIR,
    FULL_NODE_FILE,
    FullNodeFacts,
    find_full_node,
    find_node,
)
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.net.network import Network, SocketNetwork
from stagepost.remp.message import MESSAGES_TOPIC
from stagepost.remp.verdict.message_verdict import Awaited, MessageVerdict
from stagepost.remp.verdict.trace import Trace

if TYPE_CHECKING:
    from stagepost.delivery.config import ReliablePublisherConfig
    from stagepost.delivery.shell.client_sending import ClientSending


class Places(msgspec.Struct, frozen=True):
    """A DMQ node's socket and network, a full node, or both. `data` is the folder of the DMQ node, where it is known."""

    socket_path: Path | None
    network_magic: int
    full_node: FullNodeFacts | None
    data: Path | None


def find_places(
    socket_path: str | Path | None,
    network_magic: int | None,
    data: str | Path | None,
    full_node: str | Path | None,
) -> Places:
    """`StorageError` if no node runs where one was looked for."""
    folder = None if data is None else Path(data)
    full_node_folder = None if full_node is None else Path(full_node)
    if socket_path is not None:
        if network_magic is None:
            network_magic = find_node(folder or Path(DATA_DIR)).network_magic
        return Places(Path(socket_path), network_magic, _facts(full_node_folder), folder)
    if folder is None and full_node_folder is None:
        folder = Path(DATA_DIR)
    if folder is None:
        return Places(None, 0, _facts(full_node_folder), None)
    if full_node_folder is None and (folder / FULL_NODE_FILE).exists():
        full_node_folder = folder
    if (folder / NODE_FILE).exists():
        facts = find_node(folder)
        magic = facts.network_magic if network_magic is None else network_magic
        return Places(Path(facts.local_socket), magic, _facts(full_node_folder), folder)
    if full_node_folder is None:
        raise StorageError(
            f"no node runs in {folder}: there is neither {NODE_FILE} nor {FULL_NODE_FILE}",
            advice="start one with `stagepost node` or `stagepost devnet`, or give its folder as data=",
        )
    return Places(None, 0, _facts(full_node_folder), folder)


def _facts(folder: Path | None) -> FullNodeFacts | None:
    return None if folder is None else find_full_node(folder)


TOPIC = "default"

TierName = Literal["best-effort", "queued", "acked"]
StageName = Literal["queued", "optimistic", "accepted", "final"]


class Sent(msgspec.Struct, frozen=True):
    """A message that was handed over. `message_id` is what `trace` and `wait_for` take: that of an external message where
    it is one, else that of the delivery. `is_new` is False for an external message that was handed in before."""

    message_id: str | None
    delivery_id: str | None = None
    tier: Tier | None = None
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Publishing:
    """Settings by which `send` publishes: `keys` is a folder of `stagepost keys new`, `config` a publisher's configuration."""

    keys: str | Path
    config: ReliablePublisherConfig | None = None
    node_data: str | Path | None = None


class AsyncClient:
    """Made by `connect`. Any number of tasks may submit and listen at the same time."""

    def __init__(
        self,
        node: LocalNode | None,
        limits: ClientLimits,
        clock: Clock,
        *,
        full_node: FullNodeFacts | None = None,
        network: Network | None = None,
        publishing: Publishing | None = None,
    ) -> None:
        self._local = None if node is None else LocalClient(node, limits, clock)
        self._external: ExternalMessages | None = None
        if full_node is not None:
            self._external = ExternalMessages(
                full_node, network=network, connect_timeout_s=limits.connect_timeout_s
            )
        self._publishing = publishing
        self._sendings: dict[ReliablePublisherConfig | None, ClientSending] = {}
        self._limits = limits
        self._is_closed = False

    @classmethod
    def connect(
        cls,
        socket_path: str | Path | None = None,
        network_magic: int | None = None,
        profile: str = "dmq-node",
        *,
        data: str | Path | None = None,
        full_node: str | Path | None = None,
        keys: str | Path | None = None,
        publisher: ReliablePublisherConfig | None = None,
        limits: ClientLimits | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
    ) -> Connecting:
        """`async with AsyncClient.connect(…) as client`, or `client = await AsyncClient.connect(…)`.

        Without a socket, the nodes that run in the data folder `data` (`stagepost-data`) are found by the notes that they
        leave there: a DMQ node, a full node, or both. `full_node` is the folder of a full node elsewhere. `keys`, a folder
        of `stagepost keys new`, and `publisher` are for `send` by way of the DMQ node; without a `publisher`, what is queued
        lies in `stagepost-outbox` until it is sent.

        Makes sure that they answer: `TransportError` if nobody does, `StorageError` if no node runs in the folder,
        `HandshakeRefused` if it is of another network.
        """
        limits = limits or ClientLimits()
        places = find_places(socket_path, network_magic, data, full_node)
        node = None
        if places.socket_path is not None:
            node = LocalNode(
                places.socket_path,
                places.network_magic,
                profile_named(profile),
                network or SocketNetwork(),
                limits.connect_timeout_s,
            )
        return Connecting(
            cls(
                node,
                limits,
                clock or SystemClock(),
                full_node=places.full_node,
                network=network,
                publishing=None if keys is None else Publishing(keys, publisher, places.data),
            )
        )

    # External messages, and reliable publishing

    async def send(
        self,
        data: bytes,
        *,
        topic: str = TOPIC,
        tier: TierName | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> Sent:
        """Hand over `data`. With a tier it is published by way of the DMQ node, for which `keys` are needed; without one it
        is an external message for the full node, or a best effort where there is none.

        `RefusedByFullNode` if the full node does not pass it on, `DeliveryError` if it cannot be delivered as asked.
        `topic` and `key` are those of reliable delivery.
        """
        self._require_open()
        limit_s = self._limits.submit_timeout_s if timeout_s is None else timeout_s
        if tier is None and self._external is not None:
            taken = await self._external.submit(data, limit_s)
            return Sent(taken.message_id.hex(), is_new=taken.is_new)
        chosen = Tier(tier or "best-effort")
        delivery_id = await self._publisher(chosen).send(data, topic, chosen, key, timeout_s)
        return Sent(_external_id(data, topic) or delivery_id, delivery_id, chosen)

    async def wait_for(
        self, message_id: str | bytes, stage: StageName, timeout_s: float | None = None
    ) -> MessageVerdict:
        """Wait until the external message has come as far as `stage`, has ended otherwise, or the time is over: the value
        says which (`is_reached`, `has_ended`), and `missing` who has said nothing. `ProtocolTimeout` only if the full
        node itself is silent. A restart of the full node is waited out."""
        limit_s = self._limits.wait_timeout_s if timeout_s is None else timeout_s
        return await self._full_node().wait_for(id_bytes(message_id), Awaited(stage), limit_s)

    async def trace(self, message_id: str | bytes, *, timeout_s: float | None = None) -> Trace:
        """Every receipt of the external message so far, lane by lane, with its verdict."""
        limit_s = self._limits.submit_timeout_s if timeout_s is None else timeout_s
        return await self._full_node().trace(id_bytes(message_id), limit_s)

    def _full_node(self) -> ExternalMessages:
        self._require_open()
        if self._external is None:
            raise LocalProtocolError(
                "this client is not connected with a full node, which alone knows of external messages",
                advice="connect with full_node=, the full node's data folder",
            )
        return self._external

    def _publisher(self, tier: Tier) -> ClientSending:
        if self._publishing is None or self._local is None:
            raise LocalProtocolError(
                "this client cannot publish: that takes a DMQ node and the keys of a pool",
                advice="connect with keys=, a folder of `stagepost keys new`, and the node's socket or data folder",
            )
        from stagepost.delivery.shell.client_sending import ON_DISK, ClientSending

        node, publishing = self._local.node, self._publishing
        # Nobody waits for what is queued: unless told otherwise it outlives this program, in the command line's outbox.
        config = publishing.config or (ON_DISK if tier is Tier.QUEUED else None)
        if config not in self._sendings:
            self._sendings[config] = ClientSending(
                node.socket_path,
                node.network_magic,
                node.profile.name,
                publishing.keys,
                config,
                publishing.node_data,
            )
        return self._sendings[config]

    # DMQ messages

    @property
    def _dmq(self) -> LocalClient:
        if self._local is None:
            raise LocalProtocolError(
                "this client is connected with a full node alone",
                advice="connect with the socket or the data folder of a DMQ node",
            )
        return self._local

    async def submit(self, message: DmqMessage, *, timeout_s: float | None = None) -> Accepted | Rejected:
        """Submit the message and return the node's answer. `ProtocolTimeout` if there is none within `timeout_s`."""
        self._require_open()
        return await self._dmq.submit(message, timeout_s=timeout_s)

    def listen(
        self, *, idle_timeout_s: float | None = None, on_connection: OnConnection | None = None
    ) -> MessageStream:
        """Return a stream of every message that the node holds and receives, each once. The stream ends after
        `idle_timeout_s` without a message. `on_connection` is called whenever the node comes or goes meanwhile.
        """
        self._require_open()
        return self._dmq.listen(idle_timeout_s=idle_timeout_s, on_connection=on_connection)

    async def close(self) -> None:
        """End every listening iterator and say goodbye to the node."""
        self._is_closed = True
        sendings, self._sendings = self._sendings, {}
        for sending in sendings.values():
            await sending.close()
        if self._external is not None:
            await self._external.close()
        if self._local is not None:
            await self._local.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def check(self) -> None:
        """Shake hands once with each node. Nothing stays open."""
        if self._external is not None:
            await self._external.check()
        if self._local is not None:
            await self._local.check()

    def _require_open(self) -> None:
        if self._is_closed:
            raise LocalProtocolError("this client was closed", advice="connect again")


def _external_id(data: bytes, topic: str) -> str | None:
    """Full nodes take what comes on this topic of reliable delivery; None for anything that is no message of theirs."""
    from stagepost.chain.messages import read_message

    if topic != MESSAGES_TOPIC:
        return None
    try:
        return read_message(data, takes_cells=False).external.message_id.hex()
    except DecodeError:
        return None


class Connecting:
    """A client that is about to be: await it, or enter it."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._checked().__await__()

    async def __aenter__(self) -> AsyncClient:
        return await self._checked()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def _checked(self) -> AsyncClient:
        await self._client.check()
        return self._client
