"""A connection whose handshake is done: both sides know version and network, and can open mini-protocols."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.dmq.handshake import (
    HANDSHAKE_NUMBER,
    AcceptVersion,
    Agreement,
    ProposeVersions,
    Refuse,
    Refused,
    Terms,
    answer,
    conclude,
)
from stagepost.dmq.profiles import DEFAULT_PROFILE, MiniProtocol, Profile, answer_terms, profile_of
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.dmq.version_data import ConnectionKind, VersionData
from stagepost.errors import ErrorCode, HandshakeRefused, LocalProtocolError, StagepostError
from stagepost.runtime.bearer import Bearer
from stagepost.runtime.conversation import Conversation, Trace
from stagepost.statemachine.spec import Role
from stagepost.wire.mux import Direction
from stagepost.wire.mux_queues import (
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
    """One bearer and what was agreed on it. Mini-protocols are opened as conversations, on either side."""

    def __init__(self, bearer: Bearer, agreement: Agreement) -> None:
        self.bearer = bearer
        self.agreement = agreement

    def open(
        self, profile: Profile, protocol: MiniProtocol, role: Role, *, trace: Trace | None = None
    ) -> Conversation:
        """One instance. As client we open it; as server we answer the one that the peer opens."""
        number = profile.numbers.get(protocol)
        if number is None:
            raise LocalProtocolError(f"profile {profile.name} has no {protocol.value}", found=protocol.value)
        direction = Direction.INITIATOR if role is Role.CLIENT else Direction.RESPONDER
        version = self.agreement.submission_version
        return Conversation(
            spec_for(profile, protocol, version),
            role,
            codec_for(profile, protocol, version),
            self.bearer.channel(number, direction, INGRESS_BYTES_MAX[protocol]),
            trace=trace,
        )

    def answer_all(
        self, profiles: Sequence[Profile], *, trace: Trace | None = None
    ) -> dict[tuple[Profile, MiniProtocol], Conversation]:
        """A server instance for every number of every enabled profile; two profiles that share one share it."""
        opened: dict[int, tuple[Profile, MiniProtocol]] = {}
        for profile in profiles:
            for protocol in _PROTOCOLS[self.agreement.kind]:
                number = profile.numbers.get(protocol)
                if number is not None and number not in opened:
                    opened[number] = (profile, protocol)
        return {key: self.open(*key, Role.SERVER, trace=trace) for key in opened.values()}

    def close(self) -> None:
        self.bearer.close()

    def abort(self, error: StagepostError) -> None:
        self.bearer.abort(error)


async def initiate(bearer: Bearer, profile: Profile, kind: ConnectionKind, ours: VersionData) -> Connection:
    """Propose what the profile speaks; `HandshakeRefused` if the peer says no."""
    terms = profile.proposal_terms(kind, ours)
    talk = _handshake(bearer, Direction.INITIATOR)
    try:
        await talk.send(terms.proposal())
        agreement = conclude(await talk.receive_any(), terms)
    except StagepostError as error:
        bearer.abort(error)
        raise
    await talk.release()
    return Connection(bearer, agreement)


async def respond(
    bearer: Bearer, profiles: Sequence[Profile], kind: ConnectionKind, ours: VersionData
) -> Connection:
    """Answer the peer's proposal; raises `HandshakeRefused` after the refusal was sent."""
    terms = answer_terms(profiles, kind, ours)
    talk = _handshake(bearer, Direction.RESPONDER)
    try:
        reply, agreement = answer(await talk.receive(ProposeVersions), terms)
    except StagepostError as error:
        bearer.abort(error)
        raise
    if isinstance(reply, AcceptVersion):
        # The peer may speak as soon as it has read our answer, so its lanes are known before that leaves.
        for number in _numbers(profiles, kind):
            found = profile_of(number, profiles)
            assert found is not None
            bearer.expect(number, Direction.RESPONDER, INGRESS_BYTES_MAX[found[1]])
    await talk.send(reply)
    await talk.release()
    if isinstance(reply, Refuse):
        bearer.close()
        raise _refused(reply, terms)
    assert agreement is not None
    return Connection(bearer, agreement)


def _handshake(bearer: Bearer, direction: Direction) -> Conversation:
    # The handshake is the same in every profile.
    role = Role.CLIENT if direction is Direction.INITIATOR else Role.SERVER
    return Conversation(
        spec_for(DEFAULT_PROFILE, MiniProtocol.HANDSHAKE),
        role,
        codec_for(DEFAULT_PROFILE, MiniProtocol.HANDSHAKE),
        bearer.channel(HANDSHAKE_NUMBER, direction, HANDSHAKE_INGRESS_BYTES_MAX),
    )


def _numbers(profiles: Sequence[Profile], kind: ConnectionKind) -> list[int]:
    wanted = [profile.numbers.get(protocol) for profile in profiles for protocol in _PROTOCOLS[kind]]
    return list(dict.fromkeys(number for number in wanted if number is not None))


def _refused(reply: Refuse, terms: Terms) -> HandshakeRefused:
    is_network = isinstance(reply.reason, Refused)
    code = ErrorCode.HANDSHAKE_WRONG_NETWORK if is_network else ErrorCode.HANDSHAKE_NO_VERSION
    return HandshakeRefused(f"Handshake: refused a {terms.kind.value} peer: {reply.reason}", code=code)
