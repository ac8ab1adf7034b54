"""A node-to-node connection: the conversations that run on it, and its entry on the status page."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from stagepost.dmq.downloads import Downloads
from stagepost.dmq.endpoints.connection import Connection
from stagepost.dmq.mempool import Mempool
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.blame import Blame, OnViolation
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.puller import Puller, puller_for
from stagepost.dmq.node.supplier import Supplier
from stagepost.dmq.peer_sharing import (
    PEERS_SENT_MAX,
    Done,
    PeerAddress,
    SharedPeers,
    SharePeers,
    ShareRequest,
)
from stagepost.dmq.peer_standing import PeerScore
from stagepost.dmq.profiles import MiniProtocol, Profile, start_within_s
from stagepost.errors import ErrorCode, RemoteProtocolError
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.admission import LOOPBACK_HOSTS, USEFUL_WORTH, host_of, prefix_of
from stagepost.ground.net.back_off import violation_of
from stagepost.ground.net.conversation import Conversation, run_conversations
from stagepost.ground.net.keep_alive import KeepAliveClient, KeepAliveServer
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.net.version_data import ConnectionKind
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.telemetry.status import PeerStatus

ASK_FOR_PEERS_EVERY_S = 900.0
"""Seconds between requests: peers keep their answers stable for nearly as long, so asking more often would bring nothing."""
UNPROVEN_S = 600.0
"""Seconds that a peer which exchanges messages has to be the first to announce one; until then it is worth a little."""


OnSupplied = Callable[[str, Sequence[DmqMessage]], None]
"""Callback with a peer, and the messages whose bodies it has just pulled."""


@dataclass
class SharedParts:
    """Parts that all links of a node have in common."""

    intake: Intake
    mempool: Mempool
    downloads: Downloads
    shared_peers: SharedPeers
    clock: Clock
    profiles: Sequence[Profile]
    message_gap_s: float
    protocol_idle_timeout_s: float
    on_violation: OnViolation
    on_supplied: OnSupplied
    learn: Callable[[str, Sequence[PeerAddress], Profile], None]
    """Callback with a peer's host, the addresses that the peer shared, and the profile of that connection."""


class PeerLink:
    """Link to one peer. `profile` is the one we speak with a peer that we dialled; a peer that dialled us
    shows its own."""

    def __init__(
        self,
        shared: SharedParts,
        connection: Connection,
        peer: str,
        *,
        profile: Profile | None,
        address: PeerAddress | None = None,
    ) -> None:
        self.peer = peer
        self.address = address
        self._shared = shared
        self._connection = connection
        self._profile = profile
        self._dialled = profile is not None
        self._since = shared.clock.mono_s()
        # One score for the peer, in whichever direction its messages come on this connection.
        self._score = PeerScore(self._since)
        # Each puller with its conversation, and the state that this has until the peer begins it.
        self._pullers: dict[Puller, tuple[Conversation, str]] = {}
        self._is_hot = asyncio.Event()
        self._has_opened = False
        self._keep_alive: KeepAliveClient | None = None
        self._blame = Blame(connection.bearer, shared.on_violation)

    @property
    def violation(self) -> str | None:
        return violation_of(self._connection.bearer.reason)

    def credits(self, now: float) -> int:
        """Return the number of valid messages of the last hour that this peer was the first to announce."""
        return self._shared.downloads.first_announcements.credits(self.peer, now)

    def worth(self) -> float:
        """Return the use of this connection to the node: above `USEFUL_WORTH` for a peer that was the first to announce some
        messages, a little for one that exchanges messages and came a short time ago, 0 for any other: to exchange nothing but
        questions costs a stranger nothing."""
        now = self._shared.clock.mono_s()
        if credits := self.credits(now):
            return USEFUL_WORTH + credits
        is_new = now - self._since < UNPROVEN_S
        return USEFUL_WORTH / 2 if self._is_exchanging and is_new else 0.0

    def exchange(self) -> None:
        """Begin to exchange messages: until then a peer that we dialled stays warm, and we ask it for
        nothing."""
        self._is_hot.set()

    async def run(self) -> None:
        """Run until the connection ends; `violation` then says whether a broken rule ended it."""
        agreement = self._connection.agreement
        conversations: list[Coroutine[None, None, None]] = []
        if not (self._dialled and agreement.initiator_only):
            conversations += self._answers()
        if self._profile is not None:
            conversations += self._initiated(self._profile)
        else:
            conversations.append(self._follow_up())
        try:
            await run_conversations(self._connection.bearer, conversations)
        finally:
            self._blame.settle()

    def _answers(self) -> list[Coroutine[None, None, None]]:
        connection = self._connection
        return [
            self._blame.watch(
                protocol, connection.answer(profile, protocol, partial(self._serve, profile, protocol))
            )
            for profile, protocol in connection.answered(self._shared.profiles)
            if protocol is not MiniProtocol.PEER_SHARING or connection.agreement.peer_sharing
        ]

    def _serve(
        self, profile: Profile, protocol: MiniProtocol, talk: Conversation
    ) -> Coroutine[None, None, None]:
        match protocol:
            case MiniProtocol.KEEP_ALIVE:
                return KeepAliveServer(talk).run()
            case MiniProtocol.PEER_SHARING:
                shared, asker = self._shared, asker_of(self._connection.bearer.peer)
                return PeerSharingServer(talk, shared.shared_peers, asker, shared.clock).run()
            case _:
                return self._submission(talk, profile, Role.SERVER)

    def _initiated(self, profile: Profile) -> list[Coroutine[None, None, None]]:
        connection = self._connection
        watch = self._blame.watch
        conversations = [watch(MiniProtocol.MESSAGE_SUBMISSION, self._exchange_when_hot(profile))]
        if MiniProtocol.KEEP_ALIVE in profile.numbers:
            talk = connection.open(profile, MiniProtocol.KEEP_ALIVE, Role.CLIENT)
            self._keep_alive = KeepAliveClient(talk, self._shared.clock)
            conversations.append(watch(MiniProtocol.KEEP_ALIVE, self._keep_alive.run()))
        if connection.agreement.peer_sharing and MiniProtocol.PEER_SHARING in profile.numbers:
            talk = connection.open(profile, MiniProtocol.PEER_SHARING, Role.CLIENT)
            asking = self._ask_for_peers(PeerSharingClient(talk), profile)
            conversations.append(watch(MiniProtocol.PEER_SHARING, asking))
        return conversations

    async def _exchange_when_hot(self, profile: Profile) -> None:
        await self._is_hot.wait()
        talk = self._connection.open(profile, MiniProtocol.MESSAGE_SUBMISSION, Role.CLIENT)
        self._has_opened = True
        try:
            await self._submission(talk, profile, Role.CLIENT)
        finally:
            self._has_opened = False

    def _submission(self, talk: Conversation, profile: Profile, role: Role) -> Coroutine[None, None, None]:
        """Return the puller's or the supplier's coroutine: the initiator pulls in version 2, the responder in
        version 1 and in the documents."""
        shared = self._shared
        pulls = Role.CLIENT if self._version_of(profile) == 2 else Role.SERVER
        if role is not pulls:
            supplied = partial(shared.on_supplied, self.peer)
            return Supplier(talk, profile, shared.mempool, shared.intake.bell, supplied).run()
        puller = puller_for(
            talk,
            profile,
            peer=self.peer,
            downloads=shared.downloads,
            held=shared.mempool,
            intake=shared.intake,
            clock=shared.clock,
            message_gap_s=shared.message_gap_s,
            score=self._score,
            host=prefix_of(host_of(self._connection.bearer.peer)),
        )
        return self._pull(puller, talk)

    async def _pull(self, puller: Puller, talk: Conversation) -> None:
        self._pullers[puller] = (talk, talk.state.name)
        try:
            await puller.run()
        finally:
            del self._pullers[puller]

    @property
    def _is_exchanging(self) -> bool:
        """Return whether either side has begun: we offer to pull under more numbers than a peer uses."""
        return self._has_opened or any(talk.state.name != first for talk, first in self._pullers.values())

    async def _follow_up(self) -> None:
        """Wait until a peer that dialled us begins a mini-protocol; then, if it agreed, speak to it in its
        own profile."""
        connection = self._connection
        within_s = start_within_s(
            self._shared.profiles, ConnectionKind.NODE, self._shared.protocol_idle_timeout_s
        )
        profile = await connection.peer_started(within_s)
        if connection.agreement.initiator_only:
            return
        self._profile = profile
        self.exchange()
        await run_conversations(connection.bearer, self._initiated(profile))

    async def _ask_for_peers(self, client: PeerSharingClient, profile: Profile) -> None:
        host = host_of(self._connection.bearer.peer)
        while True:
            self._shared.learn(host, await client.request_peers(PEERS_SENT_MAX), profile)
            await asyncio.sleep(ASK_FOR_PEERS_EVERY_S)

    def _version_of(self, profile: Profile) -> int:
        return 1 if profile.follows_documents else self._connection.agreement.submission_version

    def status(self) -> PeerStatus:
        now = self._shared.clock.mono_s()
        round_trip_s = None if self._keep_alive is None else self._keep_alive.round_trip_s
        return PeerStatus(
            address=self.peer,
            direction="outbound" if self._dialled else "inbound",
            state="hot" if self._is_exchanging else "warm",
            version=self._connection.agreement.version,
            profile=None if self._profile is None else self._profile.name,
            flavour=None if self._profile is None else self._profile.flavour.value,
            connected_s=round(now - self._since, 3),
            unacknowledged=sum(puller.unacknowledged for puller in self._pullers),
            in_flight_bytes=sum(puller.bytes_in_flight for puller in self._pullers),
            score=round(self._score.points(now), 3),
            first_announcer=self.credits(now),
            round_trip_ms=None if round_trip_s is None else round(round_trip_s * 1_000, 3),
            last_violation=self.violation,
        )


@dataclass
class Links:
    """Present connections of a node, in the order in which they came."""

    _links: dict[PeerLink, None] = field(default_factory=dict)

    def __iter__(self) -> Iterator[PeerLink]:
        return iter(list(self._links))

    def __len__(self) -> int:
        return len(self._links)

    @contextmanager
    def holding(self, link: PeerLink) -> Iterator[None]:
        self._links[link] = None
        try:
            yield
        finally:
            del self._links[link]


def address_text(address: PeerAddress) -> str:
    return str(TcpAddress(address.host, address.port))


def ip_address_of(peer: str) -> PeerAddress | None:
    """Return the address of a bearer's peer in a form for other peers; None if it has no IP address and port."""
    host, _, port = peer.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return None  # a scope id is valid on this machine only
        address = address.ipv4_mapped or address
    return PeerAddress(str(address), int(port))


def asker_of(peer: str) -> str:
    """Return the name by which a bearer's peer is known when it asks for peers: its host, whatever its
    present port.

    Programs of this machine share one host, so their ports tell them apart.
    """
    address = ip_address_of(peer)
    host = host_of(peer) if address is None else address.host
    return peer if host in LOOPBACK_HOSTS else host


class PeerSharingClient:
    """Client that asks for peers; concurrent calls wait for one another."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._turn = asyncio.Lock()

    async def request_peers(self, amount: int) -> tuple[PeerAddress, ...]:
        async with self._turn:
            await self._talk.send(ShareRequest(amount))
            peers = (await self._talk.receive(SharePeers)).peers
        if len(peers) > amount:
            text = f"PeerSharing: {len(peers)} peers came, {amount} were asked for"
            raise RemoteProtocolError(text, code=ErrorCode.PROTOCOL_WINDOW, limit=amount, found=len(peers))
        return peers

    async def done(self) -> None:
        async with self._turn:
            await self._talk.send(Done())
        await self._talk.release()


class PeerSharingServer:
    """Server for one asker. `asker` identifies it on every connection: its host, not its present port."""

    def __init__(self, talk: Conversation, shared: SharedPeers, asker: str, clock: Clock) -> None:
        self._talk = talk
        self._shared = shared
        self._asker = asker
        self._clock = clock

    async def run(self) -> None:
        await self._talk.wait_for_start()
        while not self._talk.is_over:
            match await self._talk.receive_any():
                case ShareRequest(amount):
                    peers = self._shared.answer(self._asker, amount, self._clock.mono_s())
                    await self._talk.send(SharePeers(peers))
                case _:
                    await self._talk.release()
