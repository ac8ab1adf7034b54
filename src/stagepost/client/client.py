"""A program's side of nodes on this machine: any CIP-0137 node's local socket, to submit, send reliably and listen, and a
full node, to hand in external messages and follow them to their end.

Which nodes a client is to be connected with: as told, or as the notes in data folders say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import msgspec

from stagepost.delivery.status import Tier
from stagepost.dmq.endpoints.connection import LocalNode
from stagepost.dmq.endpoints.local_client import ClientLimits, LocalClient
from stagepost.dmq.endpoints.message_stream import MessageStream, OnConnection
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Accepted, Rejected
from stagepost.dmq.profiles import profile_named
from stagepost.errors import (
    ConfigError,
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
from stagepost.remp.verdict.trace import EXTERNAL_LAYER, Trace

if TYPE_CHECKING:
    from stagepost.client.receiving import ReceivedStream
    from stagepost.delivery.config import ReliablePublisherConfig
    from stagepost.delivery.shell.client_sending import ClientSending
    from stagepost.ground.net.webhook import WebhookConfig
    from stagepost.trace.layer_topics import DeliveryEventsLog


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
DeliveryStageName = Literal["stored", "sent", "acked"]
_STAGES: tuple[str, ...] = (*get_args(StageName), *get_args(DeliveryStageName))
LOOK_EVERY_S = 0.1
"""Seconds between two looks at the topics of a data folder, while somebody waits for a stage of a delivery."""


class DeliveryProgress(msgspec.Struct, frozen=True):
    """The result of a wait for a stage of a delivery. `str` gives the state in words, `why` the reason for it."""

    message_id: str
    awaited: DeliveryStageName
    words: str
    why: str
    is_reached: bool
    has_ended: bool

    def __str__(self) -> str:
        return self.words


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
    webhook: WebhookConfig | None = None


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
        data: Path | None = None,
    ) -> None:
        self._data = data
        self._local = None if node is None else LocalClient(node, limits, clock)
        self._external: ExternalMessages | None = None
        if full_node is not None:
            self._external = ExternalMessages(
                full_node, network=network, connect_timeout_s=limits.connect_timeout_s
            )
        self._publishing = publishing
        self._sendings: dict[ReliablePublisherConfig | None, ClientSending] = {}
        self._events: list[DeliveryEventsLog] = []
        self._streams: list[ReceivedStream] = []
        self._limits = limits
        self._clock = clock
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
        webhook: WebhookConfig | None = None,
        limits: ClientLimits | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
    ) -> Connecting:
        """`async with AsyncClient.connect(…) as client`, or `client = await AsyncClient.connect(…)`.

        Without a socket, the nodes that run in the data folder `data` (`stagepost-data`) are found by the notes that they
        leave there: a DMQ node, a full node, or both. `full_node` is the folder of a full node elsewhere. `keys`, a folder
        of `stagepost keys new`, and `publisher` are for `send` by way of the DMQ node; without a `publisher`, what is queued
        lies in `stagepost-outbox` until it is sent. Each change of a delivery's status goes to `webhook` as a CloudEvent.

        Critical peers of `publisher` are pool ids in hex or as `pool1…`; `ErrConfig` for any other name. Makes sure that
        the nodes answer: `TransportError` if nobody does, `StorageError` if no node runs in the folder,
        `HandshakeRefused` if it is of another network.
        """
        limits = limits or ClientLimits()
        if publisher is not None:
            publisher = _with_pool_ids(publisher)
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
                publishing=None if keys is None else Publishing(keys, publisher, places.data, webhook),
                data=places.data,
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
        expires: bool = True,
        traceparent: str | None = None,
    ) -> Sent:
        """Hand over `data`. With a tier it is published by way of the DMQ node, for which `keys` are needed; without one it
        is an external message for the full node, or a best effort where there is none.

        `RefusedByFullNode` if the full node does not pass it on, `DeliveryError` if it cannot be delivered as asked.
        `topic` and `key` are those of reliable delivery; so is `traceparent`, the W3C trace context of the caller, which
        travels with the message and begins its trace.

        An external message of the embedded chain that names no expiry gets one when it is first sent: a minute later, or
        as late as a DMQ message by way of the DMQ node, which may send it much later; then its id is not known yet.
        `expires=False` leaves it without, for networks that allow it: then nobody can ever prove that it will not be
        executed.
        """
        self._require_open()
        data = _checked_call(data, tier, key)
        limit_s = self._limits.submit_timeout_s if timeout_s is None else timeout_s
        if tier is None and self._external is not None:
            if expires:
                data = _with_expiry(data, self._clock)
            taken = await self._external.submit(data, limit_s)
            return Sent(taken.message_id.hex(), is_new=taken.is_new)
        chosen = Tier(tier or "best-effort")
        if expires and topic == MESSAGES_TOPIC:
            data = _as_draft(data)
        delivery_id = await self._publisher(chosen).send(data, topic, chosen, key, timeout_s, traceparent)
        return Sent(_external_id(data, topic) or delivery_id, delivery_id, chosen)

    def receive(self, *topics: str, idle_timeout_s: float | None = None) -> ReceivedStream:
        """Return a stream of the messages that others send on `topics` of reliable delivery, each once. Each has
        `payload`, `topic`, `sender`, `message_id`, and is answered with `ack()` or `reject(text)`.

        The answer is signed with the pool's `keys`, with which the client must be connected. The stream ends after
        `idle_timeout_s` without a message.
        """
        self._require_open()
        publishing, local = self._needed_for_publishing()
        from stagepost.client.receiving import ReceivedStream
        from stagepost.delivery.transports.dmq import DmqTransport

        node = local.node
        transport = DmqTransport(
            node.socket_path,
            node.network_magic,
            publishing.keys,
            profile=node.profile.name,
            node_data=publishing.node_data,
        )
        stream = ReceivedStream(transport, topics or (TOPIC,), idle_timeout_s)
        self._streams.append(stream)
        return stream

    @overload
    async def wait_for(
        self, message_id: str | bytes, stage: StageName, timeout_s: float | None = None
    ) -> MessageVerdict: ...

    @overload
    async def wait_for(
        self, message_id: str | bytes, stage: DeliveryStageName, timeout_s: float | None = None
    ) -> DeliveryProgress: ...

    async def wait_for(
        self,
        message_id: str | bytes,
        stage: StageName | DeliveryStageName,
        timeout_s: float | None = None,
    ) -> MessageVerdict | DeliveryProgress:
        """Wait until the external message has come as far as `stage`, has ended otherwise, or the time is over: the value
        says which (`is_reached`, `has_ended`), `missing` who has said nothing, and `proof` holds the proof of an end. `ProtocolTimeout` only if the full
        node itself is silent. A restart of the full node is waited out.

        The stages `stored`, `sent` and `acked` are those of a delivery, which the topics of the client's data folder tell."""
        limit_s = self._limits.wait_timeout_s if timeout_s is None else timeout_s
        if stage not in _STAGES:
            raise LocalProtocolError(
                f"stage is {stage!r}, expected one of {', '.join(_STAGES)}", advice="name one of these stages"
            )
        if stage == "stored" or stage == "sent" or stage == "acked":
            return await self._wait_for_delivery(_text_of(message_id), stage, limit_s)
        return await self._full_node().wait_for(id_bytes(message_id), Awaited(stage), limit_s)

    async def prove(self, message_id: str | bytes, *, timeout_s: float | None = None) -> bytes | None:
        """Return the proof of the external message's end as the content of a proof file, which anybody can check offline;
        None as long as the end is not known."""
        limit_s = self._limits.submit_timeout_s if timeout_s is None else timeout_s
        return await self._full_node().proof(id_bytes(message_id), limit_s)

    async def trace(self, message_id: str | bytes, *, timeout_s: float | None = None) -> Trace:
        """Return the record of the message so far: its way from the program and every receipt, lane by lane, with the
        verdict. With a data folder `message_id` may be any of its ids, the first digits of one, or its idempotency key."""
        limit_s = self._limits.submit_timeout_s if timeout_s is None else timeout_s
        recorded = await self._recorded(_text_of(message_id))
        if recorded is None:
            return await self._full_node().trace(id_bytes(message_id), limit_s)
        is_external = any(layer == EXTERNAL_LAYER for layer, _ in recorded.way.names)
        if self._external is None or not is_external:
            return recorded
        trace = await self._external.trace(recorded.message_id, limit_s)
        return msgspec.structs.replace(trace, way=recorded.way)

    async def _recorded(self, text: str) -> Trace | None:
        """Return what the topics of the data folder tell of a message; None if they tell nothing."""
        from stagepost.trace.reading import NotOneMessage, read_trace

        if self._data is None or not self._data.is_dir():
            return None
        now_ms = int(self._clock.unix_s() * 1_000)
        try:
            return await asyncio.to_thread(read_trace, self._data, text, now_ms)
        except NotOneMessage as error:
            if error.message_ids:
                raise
            return None

    async def _wait_for_delivery(
        self, text: str, stage: DeliveryStageName, limit_s: float
    ) -> DeliveryProgress:
        self._require_open()
        if self._data is None:
            raise LocalProtocolError(
                "this client knows no data folder, and only its topics tell of deliveries",
                advice="connect with data=, the data folder of the DMQ node",
            )
        until = self._clock.mono_s() + limit_s
        while True:
            found = await self._recorded(text)
            progress = _progress(text, found, stage)
            if progress.is_reached or progress.has_ended or self._clock.mono_s() >= until:
                return progress
            await asyncio.sleep(LOOK_EVERY_S)

    def _full_node(self) -> ExternalMessages:
        self._require_open()
        if self._external is None:
            raise LocalProtocolError(
                "this client is not connected to a full node, and only a full node takes external messages",
                advice="connect with full_node=, the full node's data folder",
            )
        return self._external

    def _needed_for_publishing(self) -> tuple[Publishing, LocalClient]:
        if self._publishing is None or self._local is None:
            raise LocalProtocolError(
                "this client cannot publish: publishing needs a DMQ node and the keys of a pool",
                advice="connect with keys=, a folder with a pool's keys, and the node's socket or data folder",
            )
        return self._publishing, self._local

    def _publisher(self, tier: Tier) -> ClientSending:
        publishing, local = self._needed_for_publishing()
        from stagepost.delivery.shell.client_sending import ON_DISK, ClientSending
        from stagepost.trace.layer_topics import events_log

        node = local.node
        # Nobody waits for what is queued: unless told otherwise it outlives this program, in the command line's outbox.
        config = publishing.config or (ON_DISK if tier is Tier.QUEUED else None)
        if config not in self._sendings:
            events = events_log(publishing.node_data, None if config is None else config.queue_path)
            if events is not None:
                self._events.append(events)
            self._sendings[config] = ClientSending(
                node.socket_path,
                node.network_magic,
                node.profile.name,
                publishing.keys,
                config,
                publishing.node_data,
                events,
                publishing.webhook,
            )
        return self._sendings[config]

    # DMQ messages

    @property
    def _dmq(self) -> LocalClient:
        if self._local is None:
            raise LocalProtocolError(
                "this client is connected to a full node only",
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
        for stream in self._streams:
            await stream.aclose()
        sendings, self._sendings = self._sendings, {}
        for sending in sendings.values():
            await sending.close()
        for events in self._events:
            await asyncio.to_thread(events.close)
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


def _text_of(message_id: str | bytes) -> str:
    return message_id if isinstance(message_id, str) else message_id.hex()


def _progress(text: str, found: Trace | None, stage: DeliveryStageName) -> DeliveryProgress:
    if found is None:
        return DeliveryProgress(text, stage, "Not known yet", "no record tells of the message", False, False)
    way = found.way
    is_reached = stage in way.reached
    return DeliveryProgress(found.message_id.hex(), stage, way.words, way.why, is_reached, way.has_ended)


def _checked_call(data: object, tier: object, key: object) -> bytes:
    """Return the content of a call of `send`; `ErrConfig` for a mistake of the caller, before anything has happened."""
    from stagepost.delivery.config import checked_payload
    from stagepost.delivery.errors import ErrConfig

    if tier is not None and tier not in tuple(Tier):
        raise ErrConfig(
            f"tier is {tier!r}, expected {', '.join(repr(one.value) for one in Tier)} or None", found=tier
        )
    if key is not None and tier not in (Tier.QUEUED, Tier.ACKED):
        raise ErrConfig(
            f"a key is given ({key!r:.80}), and only tiers that store a message know it again",
            advice="give tier='queued' or tier='acked', or no key",
            found=repr(key)[:80],
        )
    return checked_payload(data)


def _with_pool_ids(config: ReliablePublisherConfig) -> ReliablePublisherConfig:
    """Return the configuration with each critical peer as 56 hex digits; raise `ErrConfig` for a name that is not a pool's."""
    from stagepost.delivery.errors import ErrConfig
    from stagepost.ground.crypto.hashing import parse_pool_id

    try:
        peers = tuple(parse_pool_id(peer).hex() for peer in config.critical_peers)
    except ConfigError as error:
        raise ErrConfig(f"critical_peers: {error.text}", advice=error.advice, found=error.found) from error
    return replace(config, critical_peers=peers)


def _with_expiry(data: bytes, clock: Clock) -> bytes:
    from stagepost.chain.messages import with_expiry

    return with_expiry(data, int(clock.unix_s() * 1_000))


def _as_draft(data: bytes) -> bytes:
    """Return what an outbox keeps of an external message that names no expiry; anything else as it is."""
    from stagepost.chain.messages import draft_of
    from stagepost.delivery.transports.dmq import TTL_S

    draft = draft_of(data, int(TTL_S))
    return data if draft is None else draft.encode()


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
