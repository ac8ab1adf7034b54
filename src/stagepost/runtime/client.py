"""A program's side of nodes on this machine: any CIP-0137 node's local socket, to submit, send reliably and listen, and a
full node, to hand in external messages and follow them to their end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stagepost.delivery.status import Tier
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import ACCEPTED, Accepted, Reason, Rejected
from stagepost.dmq.profiles import MiniProtocol, profile_named
from stagepost.errors import (
    DecodeError,
    LocalProtocolError,
    ProtocolTimeout,
    StagepostError,
    TransportError,
)
from stagepost.remp.message import MESSAGES_TOPIC
from stagepost.remp.message_verdict import Awaited, MessageVerdict
from stagepost.remp.trace import Trace
from stagepost.runtime.client_places import find_places
from stagepost.runtime.clock import Clock, SystemClock
from stagepost.runtime.connection import Connection
from stagepost.runtime.endpoint_options import require_positive
from stagepost.runtime.local_endpoints import LocalMessageSubmissionClient, LocalMessageSubmissionConfig
from stagepost.runtime.local_node import LocalNode, is_away
from stagepost.runtime.message_stream import ListenLimits, MessageStream, OnConnection
from stagepost.runtime.network import Network, SocketNetwork
from stagepost.runtime.node_notes import FullNodeFacts
from stagepost.runtime.remp.message_client import ExternalMessages, id_bytes
from stagepost.runtime.sockets import CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    from stagepost.delivery.config import ReliablePublisherConfig
    from stagepost.runtime.delivery.client_sending import ClientSending

SUBMIT_TIMEOUT_S = 30.0
SUBMISSION_KEPT_OPEN_S = 60.0
WAIT_TIMEOUT_S = 300.0
"""A little more than a message lives."""
TOPIC = "default"

TierName = Literal["best-effort", "queued", "acked"]
StageName = Literal["queued", "optimistic", "accepted", "final"]


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Every wait of a client has an end. `submission_kept_open_s` stays below the documents' 300 s of silence."""

    connect_timeout_s: float = CONNECT_TIMEOUT_S
    submit_timeout_s: float = SUBMIT_TIMEOUT_S
    submission_kept_open_s: float = SUBMISSION_KEPT_OPEN_S
    wait_timeout_s: float = WAIT_TIMEOUT_S
    listen: ListenLimits = field(default_factory=ListenLimits)

    def __post_init__(self) -> None:
        require_positive(
            connect_timeout_s=self.connect_timeout_s,
            submit_timeout_s=self.submit_timeout_s,
            submission_kept_open_s=self.submission_kept_open_s,
            wait_timeout_s=self.wait_timeout_s,
        )


class Sent(msgspec.Struct, frozen=True):
    """A message that was handed over. `message_id` is what `trace` and `wait_for` take: that of an external message where
    it is one, else that of the delivery. `is_new` is False for an external message that was handed in before."""

    message_id: str | None
    delivery_id: str | None = None
    tier: Tier | None = None
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Publishing:
    """How `send` publishes: `keys` is a folder of `stagepost keys new`, `config` a publisher's configuration."""

    keys: str | Path
    config: ReliablePublisherConfig | None = None
    node_data: str | Path | None = None


@dataclass(slots=True)
class _Submission:
    """The connection on which messages are handed over, kept for the next one for a while."""

    connection: Connection
    client: LocalMessageSubmissionClient
    closing: asyncio.TimerHandle | None = None


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
        self._local_node = node
        self._external: ExternalMessages | None = None
        if full_node is not None:
            self._external = ExternalMessages(
                full_node, network=network, connect_timeout_s=limits.connect_timeout_s
            )
        self._publishing = publishing
        self._sendings: dict[ReliablePublisherConfig | None, ClientSending] = {}
        self._clock = clock
        self._limits = limits
        self._turn = asyncio.Lock()
        self._submission: _Submission | None = None
        self._streams: set[MessageStream] = set()
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
        if self._publishing is None or self._local_node is None:
            raise LocalProtocolError(
                "this client cannot publish: that takes a DMQ node and the keys of a pool",
                advice="connect with keys=, a folder of `stagepost keys new`, and the node's socket or data folder",
            )
        from stagepost.runtime.delivery.client_sending import ON_DISK, ClientSending

        node, publishing = self._local_node, self._publishing
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
    def _node(self) -> LocalNode:
        if self._local_node is None:
            raise LocalProtocolError(
                "this client is connected with a full node alone",
                advice="connect with the socket or the data folder of a DMQ node",
            )
        return self._local_node

    async def submit(self, message: DmqMessage, *, timeout_s: float | None = None) -> Accepted | Rejected:
        """What the node makes of the message. `ProtocolTimeout` if it does not say within `timeout_s`."""
        limit_s = self._limits.submit_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s), self._turn:
                return await self._submit(message)
        except TimeoutError:
            text = f"the node at {self._node.socket_path} did not answer a submission within {limit_s:g} s"
            raise ProtocolTimeout(
                text, advice="the message may be accepted all the same", message_id=message.message_id
            ) from None

    def listen(
        self, *, idle_timeout_s: float | None = None, on_connection: OnConnection | None = None
    ) -> MessageStream:
        """Every message that the node holds and gets, each once. Ends after `idle_timeout_s` without one.

        `on_connection` is told whenever the node comes or goes meanwhile.
        """
        self._require_open()
        limits = self._limits.listen
        if idle_timeout_s is not None:
            limits = replace(limits, idle_timeout_s=idle_timeout_s)
        stream = MessageStream(self._node, limits, self._clock, on_connection)
        self._streams = {open_one for open_one in self._streams if not open_one.is_closed} | {stream}
        return stream

    async def close(self) -> None:
        """End every listening iterator and say goodbye to the node."""
        self._is_closed = True
        for stream in self._streams:
            await stream.aclose()
        sendings, self._sendings = self._sendings, {}
        for sending in sendings.values():
            await sending.close()
        if self._external is not None:
            await self._external.close()
        async with self._turn:
            await self._end_submission()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def check(self) -> None:
        """Shake hands once. Nothing stays open: nodes cut off who begins nothing."""
        if self._external is not None:
            await self._external.check()
        if self._local_node is None:
            return
        connection = await self._local_node.connect()
        connection.close()
        await connection.bearer.wait_closed()

    async def _submit(self, message: DmqMessage) -> Accepted | Rejected:
        self._require_open()
        if self._submission is not None and self._submission.connection.bearer.is_over:
            self._drop_submission()
        was_kept = self._submission is not None
        try:
            return await self._submit_once(message)
        except StagepostError as error:
            # A connection that was kept may end under us, by the node's restart for instance.
            if not was_kept or not is_away(error):
                raise
        outcome = await self._submit_once(message)
        # The node may have taken the message before the connection ended: then it holds what was submitted.
        is_ours = isinstance(outcome, Rejected) and outcome.reason is Reason.ALREADY_RECEIVED
        return ACCEPTED if is_ours else outcome

    async def _submit_once(self, message: DmqMessage) -> Accepted | Rejected:
        submission = self._submission or await self._open_submission()
        # Not ours to keep until the answer is there: a conversation that was left in the middle is of no more use.
        self._submission = None
        if submission.closing is not None:
            submission.closing.cancel()
        try:
            outcome = await submission.client.submit_message(message)
        except BaseException:
            submission.connection.abort(TransportError("a submission was given up"))
            raise
        loop = asyncio.get_running_loop()
        submission.closing = loop.call_later(self._limits.submission_kept_open_s, self._drop_submission)
        self._submission = submission
        return outcome

    async def _open_submission(self) -> _Submission:
        connection, talk = await self._node.open(MiniProtocol.LOCAL_MESSAGE_SUBMISSION)
        # `submit` counts the time of the whole call, connecting included.
        config = LocalMessageSubmissionConfig(timeout_s=math.inf)
        return _Submission(connection, LocalMessageSubmissionClient(talk, config))

    def _drop_submission(self) -> None:
        submission, self._submission = self._submission, None
        if submission is not None:
            if submission.closing is not None:
                submission.closing.cancel()
            submission.connection.close()

    async def _end_submission(self) -> None:
        submission, self._submission = self._submission, None
        if submission is None:
            return
        if submission.closing is not None:
            submission.closing.cancel()
        try:
            await submission.client.done()
        except StagepostError as error:
            if not is_away(error):
                raise
        submission.connection.close()
        await submission.connection.bearer.wait_closed()

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
