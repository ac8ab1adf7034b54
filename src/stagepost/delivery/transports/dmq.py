"""The delivery layer's transport over a DMQ node: messages in envelopes, signed when they are sent.

A node's local protocols submit messages and tell of new ones; its status page tells how many peers it has. A node of
another make has no such page: then being connected means that the node itself is there.

`DmqTransportLimits` says how patient and how busy the transport is; `DmqTransportCounters` counts beside deliveries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagepost.delivery.envelope import TOPIC_BYTES_MAX, AckReceipt
from stagepost.delivery.transport import (
    Incoming,
    IncomingAcks,
    Outgoing,
    Published,
    SendFailed,
    SendRefused,
    registered,
)
from stagepost.delivery.transports.dmq_bodies import ack_bodies, acker_id, data_body, payload_room, read_body
from stagepost.delivery.transports.dmq_connectivity import (
    PEERS_POLL_S,
    PEERS_POLL_WITHOUT_S,
    DmqConnectivity,
    NodePeers,
)
from stagepost.delivery.transports.dmq_sending import DmqSubmitter, SubmissionConnections
from stagepost.dmq.endpoints.connection import LocalNode
from stagepost.dmq.endpoints.local_client import ClientLimits, LocalClient
from stagepost.dmq.endpoints.message_stream import ListenLimits
from stagepost.dmq.endpoints.options import require_positive
from stagepost.dmq.keys.kes_agent import KesAgent
from stagepost.dmq.keys.kes_clock import KesClock
from stagepost.dmq.keys.signer import DmqSigner, Signer
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.profiles import profile_named
from stagepost.dmq.validation import TTL_MAX_S, check_proof, rules_for
from stagepost.errors import LocalProtocolError, StagepostError, TransportError
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.net.network import Network, SocketNetwork


@dataclass(frozen=True, slots=True)
class DmqTransportLimits:
    """Times and counts of a transport. `peers_poll_s` is the time to notice lost peers.

    A publisher without peers waits for the first one, and so asks more often.
    """

    peers_poll_s: float = PEERS_POLL_S
    peers_poll_without_s: float = PEERS_POLL_WITHOUT_S
    lanes: int = 8
    reconnect_delay_s: float = 0.05
    reconnect_delay_max_s: float = 1.0
    listen_again_s: float = 5.0  # seconds after a fault other than an absent node
    first_look_s: float = 5.0
    submit_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        require_positive(
            peers_poll_s=self.peers_poll_s,
            peers_poll_without_s=self.peers_poll_without_s,
            lanes=self.lanes,
            listen_again_s=self.listen_again_s,
            first_look_s=self.first_look_s,
        )


@dataclass(slots=True)
class DmqTransportCounters:
    foreign_bodies: int = 0  # bodies without an envelope: other programs use the network too
    forged: int = 0  # only with `verify`: messages whose signature proves nothing
    acks_unsent: int = 0
    callbacks_failed: int = 0


EXPIRY_MARGIN_S = 10.0
"""Seconds by which a message's life is shorter than the network allows, so that a fast clock does no harm."""
TTL_S = TTL_MAX_S - EXPIRY_MARGIN_S
ACK_TTL_MAX_S = 60.0
"""Seconds, at most, that the network keeps a receipt."""

log = logging.getLogger(__name__)

OnConnectivity = Callable[[int], None]
OnMessage = Callable[[Incoming | IncomingAcks], None]


class DmqTransport:
    """A transport that is open from `start` to `close`, or as `async with`. It waits for a node that is absent."""

    def __init__(
        self,
        socket_path: str | Path,
        network_magic: int,
        keys: str | Path | KesAgent | Signer,
        *,
        profile: str = "dmq-node",
        ttl_s: float = TTL_S,
        node_data: str | Path | None = None,
        verify: bool = False,
        clock: Clock | None = None,
        network: Network | None = None,
        limits: DmqTransportLimits | None = None,
        kes_clock: KesClock | None = None,
    ) -> None:
        """`keys` is a folder of `stagepost keys new`, a KES agent, or another signer. `node_data` is the node's data folder, if that
        is not the folder of its socket. `verify` checks every signature again, for a node that is not trusted.
        `kes_clock` tells the present KES period; without it, the public networks and the node's own note do."""
        require_positive(ttl_s=ttl_s)
        self._limits = limits or DmqTransportLimits()
        self._clock = clock or SystemClock()
        self._owns_signer = isinstance(keys, str | Path | KesAgent)
        self._signer = (
            DmqSigner(
                Path(keys) if isinstance(keys, str) else keys,
                schedule=kes_clock
                or KesClock.beside_node(
                    network_magic,
                    Path(socket_path),
                    None if node_data is None else Path(node_data),
                    self._clock,
                    network,
                ),
                clock=self._clock,
            )
            if isinstance(keys, str | Path | KesAgent)
            else keys
        )
        self.self_id = self._signer.pool_id.hex()
        self.max_payload = payload_room("t" * TOPIC_BYTES_MAX, ())
        self.counters = DmqTransportCounters()
        self._ttl_s = min(ttl_s, TTL_S)
        self._verify = verify
        client_limits = ClientLimits(
            submit_timeout_s=self._limits.submit_timeout_s,
            listen=ListenLimits(
                reconnect_delay_s=self._limits.reconnect_delay_s,
                reconnect_delay_max_s=self._limits.reconnect_delay_max_s,
                away_max_s=None,
            ),
        )
        node = LocalNode(
            Path(socket_path),
            network_magic,
            profile_named(profile),
            network or SocketNetwork(),
            client_limits.connect_timeout_s,
        )
        self._node = node
        self._client_limits = client_limits
        self._connectivity = DmqConnectivity(
            NodePeers(Path(socket_path), None if node_data is None else Path(node_data)),
            self._check,
            self._tell_connectivity,
            poll_s=self._limits.peers_poll_s,
            poll_without_s=self._limits.peers_poll_without_s,
        )
        self._on_connectivity: list[OnConnectivity] = []
        self._on_message: list[OnMessage] = []
        self._listener: LocalClient | None = None
        self._sending: DmqSubmitter | None = None
        self._watching: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._somebody_listens = asyncio.Event()
        self._has_told = False

    async def start(self) -> None:
        """Connect, or begin to try; return when it is known whether the node and its peers are there."""
        if self._sending is not None:
            raise LocalProtocolError("this transport was started already")
        connections = SubmissionConnections(self._make_client, self._limits.lanes)
        unreachable = self._connectivity.note_unreachable
        gap_s = rules_for(self._node.network_magic).message_gap_s
        self._sending = DmqSubmitter(self._signer, connections, self._clock, unreachable, gap_s)
        self._listener = self._make_client()
        loop = asyncio.get_running_loop()
        self._watching = loop.create_task(self._connectivity.run(), name="delivery-peers")
        self._begin_to_listen(self._listener)
        try:
            async with asyncio.timeout(self._limits.first_look_s):
                await self._connectivity.has_looked.wait()
        except TimeoutError:
            log.warning("node did not answer yet", extra={"waited_s": self._limits.first_look_s})

    async def close(self) -> None:
        """Close the transport. Sends that are under way end with an error. May be repeated."""
        tasks = [task for task in (self._watching, self._listening) if task is not None]
        self._watching = self._listening = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connectivity.stop()
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()
        sending, self._sending = self._sending, None
        if sending is not None:
            await sending.close()
        if self._owns_signer:
            await self._signer.close()

    async def __aenter__(self) -> DmqTransport:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def connected_peers(self) -> int:
        return self._connectivity.peers

    @property
    def is_node_there(self) -> bool:
        """Return whether the node answers, with peers or without."""
        return self._connectivity.is_node_there

    @property
    def fault(self) -> StagepostError | None:
        """Return why the node cannot be used at present; None while it answers."""
        return self._connectivity.fault

    @property
    def absence(self) -> StagepostError | None:
        """Return why nothing can be sent at present, with advice; None while a peer is connected."""
        if self.fault is not None:
            return self.fault
        if not self.is_node_there:
            return TransportError(
                f"no node answers at {self._node.socket_path}", advice="start it, or look at its log"
            )
        if self.connected_peers:
            return None
        return TransportError(
            "the node runs, but no peer is connected to it",
            advice="check `stagepost peers` and the topology file; the tier queued keeps messages until a peer is connected",
        )

    @property
    def last_failure(self) -> str | None:
        """Return the error of the last attempt to send; None if that attempt went well."""
        return None if self._sending is None else self._sending.last_failure

    @property
    def counted_peers(self) -> int | None:
        """Return the number of peers that the node reports; None if the node reports none or is absent."""
        return self._connectivity.counted_peers

    def check_peer(self, peer: str) -> None:
        """Raise `ConfigError` if `peer` is not a pool id: no other node can acknowledge here."""
        acker_id(peer)

    def payload_room(self, topic: str, ackers: Sequence[str]) -> int:
        return payload_room(topic, ackers)

    def on_connectivity(self, callback: OnConnectivity) -> Callable[[], None]:
        return registered(self._on_connectivity, callback)

    def on_message(self, callback: OnMessage) -> Callable[[], None]:
        """Call `callback` with every message from the oldest that the node holds.

        A callback that registers late makes earlier callbacks hear the old messages again.
        """
        unregister = registered(self._on_message, callback)
        self._somebody_listens.set()
        if self._has_told and self._listener is not None:
            self._begin_to_listen(self._listener)
        return unregister

    async def publish(self, message: Outgoing) -> Published:
        sending = self._sending
        if sending is None:
            raise SendFailed("the transport is not open", costs_attempt=False)
        try:
            body = data_body(message)
        except StagepostError as error:
            raise SendRefused(error.text, code=error.code, advice=error.advice) from error
        signed = await sending.send(body, self._ttl_s)
        return Published(signed.message_id)

    async def publish_acks(self, receipts: Sequence[AckReceipt]) -> None:
        """Send receipts in as few messages as possible. A failed message is counted, never repeated, and stops no other.

        If the node says that it is too soon, the receipts wait; those that come meanwhile then travel together.
        """
        sending = self._sending
        if sending is None:
            raise SendFailed("the transport is not open", costs_attempt=False)
        ttl_s = min(self._ttl_s, ACK_TTL_MAX_S)
        failure: StagepostError | None = None
        for body, count in ack_bodies(self.self_id, receipts):
            try:
                await sending.send_in_pace(body, ttl_s)
            except (SendFailed, SendRefused) as error:
                self.counters.acks_unsent += count
                failure = error
        if failure is not None:
            raise failure

    # Receiving

    def _begin_to_listen(self, client: LocalClient) -> None:
        """Listen from the oldest message that the node holds; end the former listener."""
        before, self._has_told = self._listening, False
        if before is not None:
            before.cancel()
        loop = asyncio.get_running_loop()
        self._listening = loop.create_task(self._listen(client, before), name="delivery-listen")

    async def _listen(self, client: LocalClient, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        while True:
            try:
                async with client.listen(on_connection=self._connectivity.note_listening) as messages:
                    async for message in messages:
                        # A message without a callback would be lost; the node keeps it meanwhile.
                        await self._somebody_listens.wait()
                        await self._receive(message)
            except StagepostError as error:
                log.error("listening ended", extra={"reason": error.text, "code": error.code.value})
                self._connectivity.note_listening(error)
            await asyncio.sleep(self._limits.listen_again_s)

    async def _receive(self, message: DmqMessage) -> None:
        if self._verify and await asyncio.to_thread(check_proof, message) is not None:
            self.counters.forged += 1
            return
        incoming = read_body(message)
        if incoming is None:
            self.counters.foreign_bodies += 1
            return
        self._has_told = True
        for callback in list(self._on_message):
            self._call(callback, incoming)

    async def _check(self) -> None:
        if self._sending is not None:
            await self._sending.check()

    def _make_client(self) -> LocalClient:
        return LocalClient(self._node, self._client_limits, self._clock)

    def _tell_connectivity(self, peers: int) -> None:
        for callback in list(self._on_connectivity):
            self._call(callback, peers)

    def _call(self, callback: Callable[[Any], None], value: object) -> None:
        try:
            callback(value)
        except Exception:
            self.counters.callbacks_failed += 1
            log.exception("a callback failed")
