"""Opening of a link on a fresh connection: the handshake, then the authentication, and nothing else before both are done.

A fault until then is nobody's whom a key could name: anybody on the way can cause it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Generic, NoReturn, Protocol, TypeVar

from stagepost.errors import HandshakeRefused, LocalProtocolError, RemoteProtocolError, StagepostError
from stagepost.ground.crypto import ed25519
from stagepost.ground.crypto.secret_stream import EphemeralKey
from stagepost.ground.identifiers import LinkEncryption
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import check_nothing_behind, open_handshake
from stagepost.ground.net.handshake import ProposeVersions
from stagepost.ground.net.network import Network
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.mux import Direction
from stagepost.remp.links.authentication import (
    NONCE_BYTES,
    LinkTerms,
    Prove,
    Proved,
    Refuse,
    Side,
    refusal,
    refused_by_peer,
)
from stagepost.remp.links.specs import SPOKEN, LinkProtocol, expect_link_protocol, open_link_protocol
from stagepost.remp.links.versions import (
    CAN_ENCRYPT,
    LinkData,
    LinkKind,
    LinkVersion,
    answer,
    conclude,
    propose,
    spoken_versions,
)

L = TypeVar("L")


def fresh_bytes() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


@dataclass(frozen=True)
class OurEnd:
    """This node as its links know it: its key and network, and the sources of time, chance and connections. `fresh` returns
    32 random bytes that nobody else knows and that never come again.
    """

    seed: bytes = field(repr=False)
    network_magic: int
    network: Network
    clock: Clock
    random: Random
    fresh: Callable[[], bytes] = fresh_bytes
    encryption: LinkEncryption = LinkEncryption.REQUIRED
    public_key: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "public_key", ed25519.public_key(self.seed))

    def link_data(self, ephemeral: EphemeralKey, versions: tuple[LinkVersion, ...]) -> LinkData:
        nonce = self.fresh()
        if self.encryption is not LinkEncryption.OFF:
            nonce = nonce[: -len(CAN_ENCRYPT)] + CAN_ENCRYPT
        return LinkData(self.network_magic, self.public_key, nonce, ephemeral.public_key, versions)


class LinkKeeper(Protocol, Generic[L]):
    """The owner of the links of one session: it makes and runs them."""

    def open(self, bearer: Bearer, terms: LinkTerms, *, dialled: bool) -> L:
        """Make the link, with its mini-protocols open: the peer may speak as soon as it knows that it is believed."""

    async def run(self, link: L) -> None:
        """Run the link until it ends."""


class Door(LinkKeeper[L], Protocol):
    """A session that peers may open links for."""

    def check(self, public_key: bytes) -> None:
        """Raise `HandshakeRefused` if this peer is not let in. Called before any signature is checked."""

    def proved(self, public_key: bytes) -> None:
        """Note that the peer holds this key. Raise `HandshakeRefused` if that was all that it had to show."""


FindDoor = Callable[[LinkKind, bytes], Door[L]]
"""Function from kind and session id to the session's door; raises `HandshakeRefused` if there is none."""


async def initiate_link(
    bearer: Bearer, end: OurEnd, kind: LinkKind, session_id: bytes, expected_key: bytes
) -> LinkTerms:
    """Open a link as the initiator. Raise `HandshakeRefused` if the peer refuses us, another
    `RemoteProtocolError` if it does not hold `expected_key`.
    """
    bearer.note_plain_bytes()
    try:
        ephemeral = EphemeralKey(end.fresh())
        versions = spoken_versions((kind,), end.encryption)
        ours = end.link_data(ephemeral, versions)
        talk = open_handshake(bearer, Direction.INITIATOR)
        proposal = propose(versions, ours)
        await talk.send(proposal)
        terms = conclude(await talk.receive_any(), proposal, ours, expected_key)
        check_nothing_behind(talk)
        await talk.release()
        if not terms.is_encrypted:
            # The peer may speak behind its proof, in the same segment even.
            expect_link_protocol(bearer, SPOKEN[kind][Direction.RESPONDER])
        proving = open_link_protocol(bearer, LinkProtocol.AUTHENTICATION, Role.CLIENT)
        await proving.send(Prove(session_id, terms.prove(Side.INITIATOR, session_id, end.seed)))
        reply = await proving.receive_any()
        if isinstance(reply, Refuse):
            raise refused_by_peer(reply)
        terms.check(Side.RESPONDER, session_id, reply.signature)
        if terms.is_encrypted:
            check_nothing_behind(proving, "Authentication")
            await proving.release()
            keys_of = partial(terms.stream_keys, ephemeral, session_id, Side.INITIATOR)
            bearer.encrypt(keys_of, speaks_first=True)
        else:
            bearer.forget_plain_bytes()
            await proving.release()
    except StagepostError as error:
        bearer.abort(error)
        raise
    return terms


async def respond_to_link(
    bearer: Bearer, end: OurEnd, served: Collection[LinkVersion], find_door: FindDoor[L]
) -> tuple[Door[L], L]:
    """Open a link as the responder. Return the door that the peer came through, and its link; raise after a
    refusal was sent.
    """
    bearer.note_plain_bytes()
    try:
        talk = open_handshake(bearer, Direction.RESPONDER)
        proposal = await talk.receive(ProposeVersions)
        ephemeral = EphemeralKey(end.fresh())
        ours = end.link_data(ephemeral, tuple(sorted(served)))
        reply, settled = answer(proposal, served, ours)
        check_nothing_behind(talk)
        if isinstance(settled, HandshakeRefused):
            await talk.send(reply)
            await _refuse(bearer, settled)
        if not isinstance(settled, LinkTerms):
            raise LocalProtocolError("authentication began with a peer that was refused")
        judging = open_link_protocol(bearer, LinkProtocol.AUTHENTICATION, Role.SERVER)
        await talk.send(reply)
        await talk.release()
        proof = await judging.receive(Prove)
        check_nothing_behind(judging, "Authentication")
    except StagepostError as error:
        bearer.abort(error)
        raise
    session_id = proof.session_id
    try:
        door = find_door(LinkVersion(settled.version).kind, session_id)
        door.check(settled.initiator_key)
        settled.check(Side.INITIATOR, session_id, proof.signature)
        door.proved(settled.initiator_key)
    except RemoteProtocolError as error:
        await judging.send(refusal(error))
        await _refuse(bearer, error)
    link = door.open(bearer, settled, dialled=False)
    await judging.send(Proved(settled.prove(Side.RESPONDER, session_id, end.seed)))
    await judging.release()
    if settled.is_encrypted:
        keys_of = partial(settled.stream_keys, ephemeral, session_id, Side.RESPONDER)
        bearer.encrypt(keys_of, speaks_first=False)
    else:
        bearer.forget_plain_bytes()
    return door, link


async def _refuse(bearer: Bearer, error: RemoteProtocolError) -> NoReturn:
    """Close the connection in order, then raise `error`: a caller may abort, and the peer should read the
    reason first.
    """
    bearer.close()
    await bearer.wait_closed()
    raise error
