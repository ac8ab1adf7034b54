"""The delivery layer's transport over sockets: programs linked directly with one another, without a message network.

    alice = SocketTransport(seed, [SocketPeer(bobs_key, "10.0.0.2:4100")], listen="10.0.0.1:4100")
    async with alice, ReliablePublisher(alice, config) as publisher: …

Each program has an Ed25519 key; its node id is the BLAKE2b-224 hash of the public key, as that of a pool. Both sides of a
link prove their keys, and only peers that are named are let in. Every body is signed by its sender, so that nobody on the
way can alter or add one; it is not encrypted. Nothing is relayed: a message reaches the peers that are linked when it is sent.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any, Self

from stagepost.delivery.envelope import TOPIC_BYTES_MAX, AckReceipt
from stagepost.delivery.transport import (
    Incoming,
    IncomingAcks,
    MessageCallback,
    Outgoing,
    Published,
    SendFailed,
    SendRefused,
    Unsubscribe,
    registered,
)
from stagepost.delivery.transports.dmq_bodies import (
    ack_bodies,
    acker_id,
    envelope_of,
    node_id_of,
    payload_room,
    read_envelope,
)
from stagepost.errors import (
    ConfigError,
    ErrorCode,
    HandshakeRefused,
    LocalProtocolError,
    RemoteProtocolError,
    StagepostError,
    TransportError,
)
from stagepost.ground.crypto import ed25519
from stagepost.ground.crypto.hashing import blake2b_256
from stagepost.ground.identifiers import LinkEncryption
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.net.back_off import Penalties
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.network import Network, SocketNetwork, parse_address
from stagepost.remp.links.authentication import LinkTerms
from stagepost.remp.links.dialler import LinkDialler
from stagepost.remp.links.link import Link, LinkCounts, end_links, kept_out, run_link
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.remp.links.protocols import DELIVERY_BODY_BYTES_MAX, DeliveryBody
from stagepost.remp.links.versions import LinkKind

PEERS_MAX = 256
"""Peers, at most, of one transport: each of them gets a copy of every message."""
SEND_WITHIN_S = 10.0
"""Seconds, at most, for a peer to make room for a body; a slower peer loses its link."""

_SPARE_BYTES = 64
"""Bytes of a body that payloads leave free: for a trace context, and the longer heads of large payloads."""
_BODY_TAG = b"stagepost delivery body 1\0"
_SESSION_TAG = b"stagepost delivery links of network\0"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SocketPeer:
    """A program that may be linked. `public_key` is 64 hex digits; `address` is HOST:PORT or the path of a Unix socket, and
    None for a peer that only dials.
    """

    public_key: str
    address: str | None = None
    key: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            key = bytes.fromhex(self.public_key)
        except ValueError:
            key = b""
        if len(key) != ed25519.PUBLIC_KEY_BYTES:
            raise ConfigError(
                f"{self.public_key[:80]!r} is not a public key: expected 64 hex digits",
                advice="take it from `public_key` of the peer's transport",
                found=self.public_key[:80],
            )
        object.__setattr__(self, "key", key)
        if self.address is not None:
            parse_address(self.address)

    @property
    def node_id(self) -> str:
        """Return the id by which the peer sends and acknowledges."""
        return node_id_of(self.key)


@dataclass(slots=True)
class SocketTransportCounters:
    forged: int = 0  # bodies whose signature is not the sender's
    unsent: int = 0  # bodies that a linked peer did not take in time
    acks_unsent: int = 0
    callbacks_failed: int = 0


class DeliveryLink(Link):
    """A link to one peer. `heard_body` is called with each body; an error that it raises ends the link."""

    def __init__(
        self,
        bearer: Bearer,
        terms: LinkTerms,
        clock: Clock,
        counts: LinkCounts,
        heard_body: Callable[[DeliveryLink, DeliveryBody], None],
        *,
        dialled: bool,
    ) -> None:
        super().__init__(bearer, terms, clock, counts, dialled=dialled)
        self._heard_body = heard_body

    async def send(self, message: DeliveryBody) -> bool:
        """Send a body as soon as the peer has room; return False if the link ended, or was ended for its slowness."""
        try:
            async with asyncio.timeout(SEND_WITHIN_S):
                await self._speaking.send(message)
        except TimeoutError:
            self.end(TransportError(f"the peer took nothing for {SEND_WITHIN_S:g} s"))
            return False
        except StagepostError:
            return False
        self.counts.sent += 1
        return True

    def heard(self, message: object) -> None:
        if isinstance(message, DeliveryBody):
            self._heard_body(self, message)


class SocketTransport:
    """A transport that is open from `start` to `close`, or as `async with`. It waits for peers that are absent."""

    def __init__(
        self,
        seed: bytes,
        peers: Iterable[SocketPeer],
        *,
        listen: str | None = None,
        network_magic: int = 0,
        clock: Clock | None = None,
        network: Network | None = None,
        encryption: LinkEncryption = LinkEncryption.REQUIRED,
    ) -> None:
        """`seed` is the secret half of this program's key: 32 random bytes that it keeps. `listen` is an address as those of
        peers. Programs with different values of `network_magic` refuse one another. `encryption` is for networks with
        programs of a release that could not encrypt: "preferred" speaks plainly with them alone.
        """
        self._peers = {peer.key: peer for peer in peers}
        if len(seed) != ed25519.SEED_BYTES:
            raise ConfigError(f"a seed has {ed25519.SEED_BYTES} bytes, this one has {len(seed)}")
        if len(self._peers) > PEERS_MAX:
            raise ConfigError(
                f"{len(self._peers)} peers are named, at most {PEERS_MAX} can be linked", limit=PEERS_MAX
            )
        self._end = OurEnd(
            seed,
            network_magic,
            network or SocketNetwork(),
            clock or SystemClock(),
            Random(secrets.randbits(64)),
            encryption=encryption,
        )
        self.public_key = self._end.public_key.hex()
        self.self_id = node_id_of(self._end.public_key)
        self.max_payload = self.payload_room("t" * TOPIC_BYTES_MAX, ())
        self.counters = SocketTransportCounters()
        self.counts = LinkCounts()
        self._tag = _BODY_TAG + network_magic.to_bytes(4, "big")
        self._session_id = sha256(_SESSION_TAG + network_magic.to_bytes(4, "big")).digest()
        self._listen = None if listen is None else parse_address(listen)
        self._listener = LinkListener(self._end, kinds=(LinkKind.DELIVERY,))
        self._dialler = LinkDialler(self._end, LinkKind.DELIVERY, self._session_id, self)
        # Two programs that both have an address dial each other: each of the two links may carry everything.
        self._links: dict[tuple[bytes, bool], DeliveryLink] = {}
        self._penalties: Penalties[bytes] = Penalties()
        self._on_connectivity: list[Callable[[int], None]] = []
        self._on_message: list[MessageCallback] = []
        self._told = 0
        self._is_open = False

    async def start(self) -> None:
        """Listen and begin to dial; `ConfigError` if the address cannot be used."""
        if self._is_open:
            raise LocalProtocolError("this transport was started already")
        self._is_open = True
        self._listener.register(LinkKind.DELIVERY, self._session_id, self)
        if self._listen is not None:
            await self._listener.start(self._listen)
        for peer in self._peers.values():
            if peer.address is not None:
                self._dialler.want(peer.key, parse_address(peer.address))
        self._dialler.start()

    async def close(self) -> None:
        """End all links, after everything that was accepted went out. May be repeated."""
        if self._is_open:
            self._is_open = False
            self._listener.unregister(LinkKind.DELIVERY, self._session_id)
            self._dialler.pause()
            await end_links(self._links.values())
            await self._dialler.stop()
            await self._listener.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """Return the address at which links come in, with the port that the system chose; empty without `listen`."""
        return self._listener.address

    @property
    def connected_peers(self) -> int:
        return len({key for key, _ in self._links})

    @property
    def absence(self) -> StagepostError | None:
        """Return why nothing can be sent at present; None while a peer is linked."""
        if self._links:
            return None
        dialled = sum(peer.address is not None for peer in self._peers.values())
        return TransportError(
            f"none of {len(self._peers)} peers is linked; {dialled} of them are dialled again and again",
            advice="check that they run, and that both sides name each other's public key",
        )

    def check_peer(self, peer: str) -> None:
        """Raise `ConfigError` if `peer` is not the node id of a peer."""
        acker_id(peer)
        if peer not in {one.node_id for one in self._peers.values()}:
            raise ConfigError(
                f"{peer} is not the node id of a peer of this transport",
                advice="name the peer's public key among the peers; `SocketPeer.node_id` is its id",
                found=peer,
            )

    def payload_room(self, topic: str, ackers: Sequence[str]) -> int:
        return payload_room(topic, ackers, DELIVERY_BODY_BYTES_MAX - _SPARE_BYTES)

    def on_connectivity(self, callback: Callable[[int], None]) -> Unsubscribe:
        return registered(self._on_connectivity, callback)

    def on_message(self, callback: MessageCallback) -> Unsubscribe:
        return registered(self._on_message, callback)

    async def publish(self, message: Outgoing) -> Published:
        try:
            body = envelope_of(message).encode(DELIVERY_BODY_BYTES_MAX)
        except StagepostError as error:
            raise SendRefused(error.text, code=error.code, advice=error.advice) from error
        taken = await self._send(body)
        if not taken:
            raise SendFailed("no linked peer took the message", costs_attempt=False)
        return Published(blake2b_256(body), taken)

    async def publish_acks(self, receipts: Sequence[AckReceipt]) -> None:
        for body, count in ack_bodies(self.self_id, receipts):
            if not await self._send(body):
                self.counters.acks_unsent += count
                raise SendFailed("no linked peer took the acknowledgements", costs_attempt=False)

    async def _send(self, body: bytes) -> int:
        """Send a body to every linked peer; return how many took it."""
        links = {key: link for (key, _), link in self._links.items()}
        if not links:
            return 0
        message = DeliveryBody(ed25519.sign(self._end.seed, self._tag + body), body)
        taken = await asyncio.gather(*(link.send(message) for link in links.values()))
        self.counters.unsent += taken.count(False)
        return taken.count(True)

    # The door, and the keeper of links

    def check(self, public_key: bytes) -> None:
        if public_key not in self._peers:
            raise HandshakeRefused(
                f"key {public_key.hex()} is not the key of a peer here",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="ask the operator of this program to name the key",
                reason="NotAPeer",
            )
        kept_out(self._penalties, public_key, self._end.clock.mono_s())

    def proved(self, public_key: bytes) -> None:
        pass

    def open(self, bearer: Bearer, terms: LinkTerms, *, dialled: bool) -> DeliveryLink:
        if not self._is_open:
            raise TransportError("this transport was closed")
        return DeliveryLink(bearer, terms, self._end.clock, self.counts, self._heard, dialled=dialled)

    async def run(self, link: DeliveryLink) -> None:
        place = link.public_key, link.dialled
        older = self._links.get(place)
        self._links[place] = link
        if older is not None:
            older.end(TransportError("the peer opened a newer link"))
        try:
            await run_link(link, self._tell_connectivity)
        finally:
            if self._links.get(place) is link:
                del self._links[place]
            if link.violation is not None:
                self._penalties.penalise(link.public_key, self._end.clock.mono_s())
            self._tell_connectivity()

    # Receiving

    def _heard(self, link: DeliveryLink, message: DeliveryBody) -> None:
        """Hand a body to the listeners. A peer that sends what no honest one sends is cut off and kept out for a while."""
        sender, body = node_id_of(link.public_key), message.body
        incoming = read_envelope(body, sender, None, blake2b_256(body), DELIVERY_BODY_BYTES_MAX)
        if incoming is None:
            raise RemoteProtocolError(
                "DeliveryBodies: the body is not an envelope of reliable delivery",
                code=ErrorCode.PROTOCOL_REQUEST,
                reason="BadEnvelope",
            )
        if not ed25519.verify(link.public_key, self._tag + body, message.signature):
            self.counters.forged += 1
            raise RemoteProtocolError(
                "DeliveryBodies: the signature of a body is not that of its sender",
                code=ErrorCode.PROTOCOL_REQUEST,
                reason="BadSignature",
            )
        for callback in list(self._on_message):
            self._call(callback, incoming)

    def _tell_connectivity(self) -> None:
        if self.connected_peers != self._told:
            self._told = self.connected_peers
            for callback in list(self._on_connectivity):
                self._call(callback, self._told)

    def _call(self, callback: Callable[[Any], None], value: Incoming | IncomingAcks | int) -> None:
        try:
            callback(value)
        except Exception:
            self.counters.callbacks_failed += 1
            log.exception("a callback failed")
