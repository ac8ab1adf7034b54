"""A connection after its handshake: both sides know version and network, and can open mini-protocols; and the local socket of
a node, to which programs connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile, answer_terms
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import (
    DecodeError,
    ErrorCode,
    HandshakeRefused,
    LocalProtocolError,
    ProtocolTimeout,
    StagepostError,
    TransportError,
)
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation, Trace, check_nothing_behind, open_handshake
from stagepost.ground.net.handshake import (
    AcceptVersion,
    Agreement,
    ProposeVersions,
    Refuse,
    Refused,
    Terms,
    answer,
    conclude,
)
from stagepost.ground.net.network import Network, UnixAddress
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.codec import Codec
from stagepost.ground.wire.mux import SEGMENT_PAYLOAD_BYTES_MAX, Direction
from stagepost.ground.wire.mux_queues import (
    HANDSHAKE_INGRESS_BYTES_MAX,
    KEEP_ALIVE_INGRESS_BYTES_MAX,
    LOCAL_INGRESS_BYTES_MAX,
    MESSAGE_SUBMISSION_INGRESS_BYTES_MAX,
    PEER_SHARING_INGRESS_BYTES_MAX,
)

INGRESS_BYTES_MAX = {
    MiniProtocol.HANDSHAKE: HANDSHAKE_INGRESS_BYTES_MAX,
    MiniProtocol.MESSAGE_SUBMISSION: MESSAGE_SUBMISSION_INGRESS_BYTES_MAX,
    MiniProtocol.KEEP_ALIVE: KEEP_ALIVE_INGRESS_BYTES_MAX,
    MiniProtocol.PEER_SHARING: PEER_SHARING_INGRESS_BYTES_MAX,
    MiniProtocol.LOCAL_MESSAGE_SUBMISSION: LOCAL_INGRESS_BYTES_MAX,
    MiniProtocol.LOCAL_MESSAGE_NOTIFICATION: LOCAL_INGRESS_BYTES_MAX,
}

OnFault = Callable[[StagepostError], None]
"""Callback with the peer's fault in the handshake itself; faults in the multiplexer beneath do not come here."""

_PROTOCOLS = {
    ConnectionKind.NODE: (
        MiniProtocol.MESSAGE_SUBMISSION,
        MiniProtocol.KEEP_ALIVE,
        MiniProtocol.PEER_SHARING,
    ),
    ConnectionKind.CLIENT: (
        MiniProtocol.LOCAL_MESSAGE_SUBMISSION,
        MiniProtocol.LOCAL_MESSAGE_NOTIFICATION,
    ),
}


class Connection:
    """Bearer with the agreement of its handshake. It opens mini-protocols as conversations, on either side."""

    def __init__(self, bearer: Bearer, agreement: Agreement) -> None:
        self.bearer = bearer
        self.agreement = agreement
        self._first_start: asyncio.Future[Profile] = asyncio.get_running_loop().create_future()

    async def peer_started(self, within_s: float | None) -> Profile:
        """Wait until the peer has begun a mini-protocol; return the profile to which its number belongs.

        Raise `ProtocolTimeout` if the peer begins none within `within_s` seconds.
        """
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(self._first_start)
        except TimeoutError:
            text = f"the peer began no mini-protocol within {within_s:g} s of the handshake"
            raise ProtocolTimeout(text, peer=self.bearer.peer) from None

    def _note_start(self, profile: Profile, protocol: MiniProtocol, codec: Codec) -> None:
        if self._first_start.done():
            return
        if protocol is MiniProtocol.MESSAGE_SUBMISSION and codec.is_settled:
            # Profiles that share a number are told apart by their dialect.
            number = profile.numbers[protocol]
            for other in PROFILES.values():
                if other.numbers.get(protocol) == number and other.flavour.value == codec.speaks.name:
                    profile = other
        self._first_start.set_result(profile)

    def open(
        self, profile: Profile, protocol: MiniProtocol, role: Role, *, trace: Trace | None = None
    ) -> Conversation:
        """Return one instance. As client we open it; as server we answer the instance that the peer opens."""
        number = profile.numbers.get(protocol)
        if number is None:
            raise LocalProtocolError(f"profile {profile.name} has no {protocol.value}", found=protocol.value)
        direction = Direction.INITIATOR if role is Role.CLIENT else Direction.RESPONDER
        version = self.agreement.submission_version
        codec = codec_for(profile, protocol, version)
        is_theirs = role is Role.SERVER
        return Conversation(
            spec_for(profile, protocol, version),
            role,
            codec,
            self.bearer.channel(number, direction, *_limits(protocol)),
            trace=trace,
            on_start=partial(self._note_start, profile, protocol, codec) if is_theirs else None,
        )

    def answered(self, profiles: Sequence[Profile]) -> list[tuple[Profile, MiniProtocol]]:
        """Return all that the peer may open towards us: every mini-protocol of every enabled profile, each
        number once."""
        return list(_answered(profiles, self.agreement.kind).values())

    def answer_all(self, profiles: Sequence[Profile]) -> dict[tuple[Profile, MiniProtocol], Conversation]:
        """Return one server instance for each mini-protocol of `answered`."""
        return {key: self.open(*key, Role.SERVER) for key in self.answered(profiles)}

    async def answer(
        self,
        profile: Profile,
        protocol: MiniProtocol,
        serve: Callable[[Conversation], Coroutine[None, None, None]],
    ) -> None:
        """Serve the instances of one number that the peer opens, one after the other, until the connection
        ends."""
        talk = self.open(profile, protocol, Role.SERVER)
        while not self.bearer.is_over:
            await serve(talk)
            # Open the next instance before anything else can come in. The sleep lets other connections run
            # even if this peer opens and ends instances all the time.
            talk = self.open(profile, protocol, Role.SERVER)
            await asyncio.sleep(0)

    def close(self) -> None:
        self.bearer.close()

    def abort(self, error: StagepostError) -> None:
        self.bearer.abort(error)


async def initiate(
    bearer: Bearer,
    profile: Profile,
    kind: ConnectionKind,
    ours: VersionData,
    *,
    answers: Sequence[Profile] = (),
    on_fault: OnFault | None = None,
) -> Connection:
    """Propose the versions of `profile`; raise `HandshakeRefused` if the peer refuses.

    `answers` are the profiles whose mini-protocols the peer may open towards us, on a connection used both
    ways.
    """
    terms = profile.proposal_terms(kind, ours)
    _expect(bearer, answers, kind)
    talk = open_handshake(bearer, Direction.INITIATOR)
    try:
        await talk.send(terms.proposal())
        agreement = conclude(await talk.receive_any(), terms)
        check_nothing_behind(talk)
    except StagepostError as error:
        _tell(on_fault, error, bearer)
        bearer.abort(error)
        raise
    await talk.release()
    if not agreement.peer_sharing:
        _do_not_expect(bearer, answers, kind, MiniProtocol.PEER_SHARING)
    return Connection(bearer, agreement)


async def respond(
    bearer: Bearer,
    profiles: Sequence[Profile],
    kind: ConnectionKind,
    ours: VersionData,
    *,
    on_fault: OnFault | None = None,
) -> Connection:
    """Answer the peer's proposal; raise `HandshakeRefused` after sending a refusal."""
    terms = answer_terms(profiles, kind, ours)
    talk = open_handshake(bearer, Direction.RESPONDER)
    try:
        reply, agreement = answer(await talk.receive(ProposeVersions), terms)
        check_nothing_behind(talk)
    except StagepostError as error:
        _tell(on_fault, error, bearer)
        bearer.abort(error)
        raise
    if isinstance(reply, AcceptVersion):
        assert agreement is not None
        _expect(bearer, profiles, kind, but=() if agreement.peer_sharing else (MiniProtocol.PEER_SHARING,))
    await talk.send(reply)
    await talk.release()
    if isinstance(reply, Refuse):
        bearer.close()
        await bearer.wait_closed()  # whoever catches this error may abort, and the peer should read why
        refused = _refused(reply, terms)
        _tell(on_fault, refused, bearer)
        raise refused
    assert agreement is not None
    return Connection(bearer, agreement)


def _answered(profiles: Sequence[Profile], kind: ConnectionKind) -> dict[int, tuple[Profile, MiniProtocol]]:
    """Return every number that a peer may open. If two profiles share a number, the first stands for both."""
    answered: dict[int, tuple[Profile, MiniProtocol]] = {}
    for profile in profiles:
        for protocol in _PROTOCOLS[kind]:
            number = profile.numbers.get(protocol)
            if number is not None:
                answered.setdefault(number, (profile, protocol))
    return answered


def _limits(protocol: MiniProtocol) -> tuple[int, int]:
    """Return the bytes that may wait, and the bytes of one segment: the header alone suffices to refuse a
    segment that could never wait."""
    waiting_max = INGRESS_BYTES_MAX[protocol]
    return waiting_max, min(waiting_max, SEGMENT_PAYLOAD_BYTES_MAX)


def _expect(
    bearer: Bearer, profiles: Sequence[Profile], kind: ConnectionKind, but: Sequence[MiniProtocol] = ()
) -> None:
    """Register the peer's lanes before our last message of the handshake, since the peer may speak as soon as
    it has ended."""
    for number, (_, protocol) in _answered(profiles, kind).items():
        if protocol not in but:
            bearer.expect(number, Direction.RESPONDER, *_limits(protocol))


def _do_not_expect(
    bearer: Bearer, profiles: Sequence[Profile], kind: ConnectionKind, unwanted: MiniProtocol
) -> None:
    """Withdraw a mini-protocol on which the sides did not agree: a peer that opens it nevertheless is cut
    off."""
    for number, (_, protocol) in _answered(profiles, kind).items():
        if protocol is unwanted:
            bearer.stop_expecting(number, Direction.RESPONDER)


def _tell(on_fault: OnFault | None, error: StagepostError, bearer: Bearer) -> None:
    # An error of the multiplexer ended the bearer before it reached the handshake.
    if on_fault is not None and error is not bearer.reason:
        on_fault(error)


def _refused(reply: Refuse, terms: Terms) -> HandshakeRefused:
    is_network = isinstance(reply.reason, Refused)
    code = ErrorCode.HANDSHAKE_WRONG_NETWORK if is_network else ErrorCode.HANDSHAKE_NO_VERSION
    return HandshakeRefused(f"Handshake: refused a {terms.kind.value} peer: {reply.reason}", code=code)


@dataclass(frozen=True, slots=True)
class LocalNode:
    """Address and terms of a node's local socket; it opens a connection for each use.

    Nodes close a connection on which nothing begins within seconds, so none is opened ahead of its use.
    """

    socket_path: Path
    network_magic: int
    profile: Profile
    network: Network
    connect_timeout_s: float

    async def connect(self) -> Connection:
        bearer = await self.network.connect(UnixAddress(self.socket_path), timeout_s=self.connect_timeout_s)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                return await initiate(
                    bearer, self.profile, ConnectionKind.CLIENT, VersionData(self.network_magic)
                )
        except TimeoutError:
            text = f"the node at {self.socket_path} did not finish the handshake within {self.connect_timeout_s:g} s"
            error = ProtocolTimeout(text, advice="check that a DMQ node owns this socket")
            bearer.abort(error)
            raise error from None
        except asyncio.CancelledError:
            bearer.abort(TransportError("the handshake was cancelled"))
            raise

    async def open(self, protocol: MiniProtocol) -> tuple[Connection, Conversation]:
        """Return a connection for this one mini-protocol; the caller must send on it at once."""
        connection = await self.connect()
        return connection, connection.open(self.profile, protocol, Role.CLIENT)


def is_away(error: StagepostError) -> bool:
    """Return whether the error means that the node stopped, restarts or is stuck, so that trying again may
    help."""
    was_cut_short = isinstance(error, DecodeError) and error.code is ErrorCode.CBOR_TRUNCATED
    return was_cut_short or isinstance(error, TransportError | ProtocolTimeout)
