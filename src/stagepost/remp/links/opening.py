"""Opens a link on a fresh connection: the handshake, then the authentication, and nothing else before both are done."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Generic, NoReturn, Protocol, TypeVar

from stagepost.errors import HandshakeRefused, LocalProtocolError, RemoteProtocolError, StagepostError
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.handshake import ProposeVersions
from stagepost.ground.net.network import Network
from stagepost.ground.net.opening import check_nothing_behind, open_handshake
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
from stagepost.remp.links.versions import LinkData, LinkVersion, answer, conclude, propose

L = TypeVar("L")


def fresh_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


@dataclass(frozen=True)
class OurEnd:
    """This node as its links know it: its key and network, and the sources of time, chance and connections."""

    seed: bytes = field(repr=False)
    network_magic: int
    network: Network
    clock: Clock
    random: Random
    nonce: Callable[[], bytes] = fresh_nonce
    public_key: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "public_key", ed25519.public_key(self.seed))

    def link_data(self) -> LinkData:
        return LinkData(self.network_magic, self.public_key, self.nonce())


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


FindDoor = Callable[[int, bytes], Door[L]]
"""Function from version and session id to the session's door; raises `HandshakeRefused` if there is none."""


async def initiate_link(
    bearer: Bearer, end: OurEnd, version: LinkVersion, session_id: bytes, expected_key: bytes
) -> LinkTerms:
    """Open a link as the initiator. Raise `HandshakeRefused` if the peer refuses us, another
    `RemoteProtocolError` if it does not hold `expected_key`.
    """
    try:
        ours = end.link_data()
        talk = open_handshake(bearer, Direction.INITIATOR)
        await talk.send(propose(version, ours))
        terms = conclude(await talk.receive_any(), version, ours, expected_key)
        check_nothing_behind(talk)
        await talk.release()
        # The peer may speak behind its proof, in the same segment even.
        expect_link_protocol(bearer, SPOKEN[version][Direction.RESPONDER])
        proving = open_link_protocol(bearer, LinkProtocol.AUTHENTICATION, Role.CLIENT)
        await proving.send(Prove(session_id, terms.prove(Side.INITIATOR, session_id, end.seed)))
        reply = await proving.receive_any()
        if isinstance(reply, Refuse):
            raise refused_by_peer(reply)
        terms.check(Side.RESPONDER, session_id, reply.signature)
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
    try:
        talk = open_handshake(bearer, Direction.RESPONDER)
        reply, settled = answer(await talk.receive(ProposeVersions), served, end.link_data())
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
        door = find_door(settled.version, session_id)
        door.check(settled.initiator_key)
        settled.check(Side.INITIATOR, session_id, proof.signature)
        door.proved(settled.initiator_key)
    except RemoteProtocolError as error:
        await judging.send(refusal(error))
        await _refuse(bearer, error)
    link = door.open(bearer, settled, dialled=False)
    await judging.send(Proved(settled.prove(Side.RESPONDER, session_id, end.seed)))
    await judging.release()
    return door, link


async def _refuse(bearer: Bearer, error: RemoteProtocolError) -> NoReturn:
    """Close the connection in order, then raise `error`: a caller may abort, and the peer should read the
    reason first.
    """
    bearer.close()
    await bearer.wait_closed()
    raise error
