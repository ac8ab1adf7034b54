"""The handshake: both sides offer versions and name their network, and the responder chooses one version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import msgspec

from stagepost.errors import DecodeError, ErrorCode, HandshakeRefused, RemoteProtocolError
from stagepost.ground.net.version_data import (
    DMQ_NODE_V2,
    ConnectionKind,
    VersionData,
    VersionShape,
    is_cardano,
    read_version_data,
    write_version_data,
)
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.cbor import CborReader, write_map, write_unsigned
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.framing import ItemLimits, RawItem
from stagepost.ground.wire.layout import Layout, ListForm, ListOf, Text, Union, Unsigned

HANDSHAKE_NUMBER = 0
MESSAGE_BYTES_MAX = 5_760
STATE_TIMEOUT_S = 10
QUERY_DEPARTURE_S = 20
"""Seconds in which the initiator of a query must leave after the answer."""

VERSIONS_MAX = 256
REFUSAL_TEXT_BYTES_MAX = 4_096


# Messages


class OfferedVersion(msgspec.Struct, frozen=True):
    """Version number and its data as they stand on the wire; data of unknown versions may have any shape."""

    number: int
    parameters: bytes


class ProposeVersions(msgspec.Struct, frozen=True):
    versions: tuple[OfferedVersion, ...]


class ReplyVersions(msgspec.Struct, frozen=True):
    """Proposal that crossed ours: both sides opened at the same time, and the proposal serves as the answer."""

    versions: tuple[OfferedVersion, ...]


class AcceptVersion(msgspec.Struct, frozen=True):
    version: int
    parameters: bytes


class VersionMismatch(msgspec.Struct, frozen=True):
    versions: tuple[int, ...]


class HandshakeDecodeError(msgspec.Struct, frozen=True):
    version: int
    text: str


class Refused(msgspec.Struct, frozen=True):
    version: int
    text: str


RefuseReason: TypeAlias = VersionMismatch | HandshakeDecodeError | Refused


class Refuse(msgspec.Struct, frozen=True):
    reason: RefuseReason


class QueryReply(msgspec.Struct, frozen=True):
    versions: tuple[OfferedVersion, ...]


# Layouts

_ANY_SHAPE = RawItem(ItemLimits(bytes_max=MESSAGE_BYTES_MAX, any_type=True))
_NUMBER = Unsigned(64)


@dataclass(frozen=True, slots=True)
class _VersionMap:
    """Layout of a table of versions. `_choose` judges its order, and only among the versions that we know."""

    def read(self, reader: CborReader, what: str) -> tuple[OfferedVersion, ...]:
        start = reader.offset
        count = reader.map_length(what)
        if count > VERSIONS_MAX:
            raise reader.over_limit(f"the length of {what}", count, VERSIONS_MAX, at=start)
        return tuple(
            OfferedVersion(_NUMBER.read(reader, f"{what}: version"), _ANY_SHAPE.read(reader, f"{what}: data"))
            for _ in range(count)
        )

    def write(self, value: tuple[OfferedVersion, ...]) -> bytes:
        return write_map(*((write_unsigned(offered.number), offered.parameters) for offered in value))


_TEXT = Text(REFUSAL_TEXT_BYTES_MAX)
_REASON = Union(
    (
        Layout(VersionMismatch, 0, (("versions", ListOf(_NUMBER, ListForm.DEFINITE, VERSIONS_MAX)),)),
        Layout(HandshakeDecodeError, 1, (("version", _NUMBER), ("text", _TEXT))),
        Layout(Refused, 2, (("version", _NUMBER), ("text", _TEXT))),
    )
)
DIALECT = Dialect(
    "handshake",
    (
        Layout(ProposeVersions, 0, (("versions", _VersionMap()),)),
        Layout(ReplyVersions, 0, (("versions", _VersionMap()),)),
        Layout(AcceptVersion, 1, (("version", _NUMBER), ("parameters", _ANY_SHAPE))),
        Layout(Refuse, 2, (("reason", _REASON),)),
        Layout(QueryReply, 3, (("versions", _VersionMap()),)),
    ),
)

# States

PROPOSE = State("Propose", Role.CLIENT, timeout_s=STATE_TIMEOUT_S, message_bytes_max=MESSAGE_BYTES_MAX)
CONFIRM = State("Confirm", Role.SERVER, timeout_s=STATE_TIMEOUT_S, message_bytes_max=MESSAGE_BYTES_MAX)
DONE = State("Done", speaker=None)

# Spec

HANDSHAKE = ProtocolSpec(
    name="Handshake",
    initial=PROPOSE,
    edges=(
        Edge(PROPOSE, ProposeVersions, CONFIRM),
        Edge(CONFIRM, AcceptVersion, DONE),
        Edge(CONFIRM, Refuse, DONE),
        Edge(CONFIRM, QueryReply, DONE),
        Edge(CONFIRM, ReplyVersions, DONE),
    ),
)


# Negotiation


class Agreement(msgspec.Struct, frozen=True):
    """Version and flags that both sides keep for the life of the connection."""

    kind: ConnectionKind
    version: int
    network_magic: int
    initiator_only: bool = False
    peer_sharing: bool = False
    query: bool = False

    @property
    def submission_version(self) -> int:
        """Version of message submission: in 2, used by DMQ's own second version only, the initiator pulls."""
        return 2 if self.kind is ConnectionKind.NODE and self.version == DMQ_NODE_V2 else 1


@dataclass(frozen=True)
class Terms:
    """Position of one side in a negotiation: its version data, and the versions it knows."""

    kind: ConnectionKind
    ours: VersionData
    versions: Mapping[int, VersionShape]

    def table(self) -> tuple[OfferedVersion, ...]:
        ascending = sorted(self.versions.items())
        return tuple(
            OfferedVersion(number, write_version_data(self.ours, shape)) for number, shape in ascending
        )

    def proposal(self) -> ProposeVersions:
        return ProposeVersions(self.table())

    def agreed(self, version: int, theirs: VersionData) -> Agreement:
        initiator_only = self.ours.initiator_only or theirs.initiator_only
        return Agreement(
            kind=self.kind,
            version=version,
            network_magic=self.ours.network_magic,
            initiator_only=initiator_only,
            peer_sharing=self.ours.peer_sharing and theirs.peer_sharing and not initiator_only,
            query=self.ours.query or theirs.query,
        )


def answer(
    proposal: ProposeVersions, terms: Terms
) -> tuple[AcceptVersion | Refuse | QueryReply, Agreement | None]:
    """Return the responder's answer to `proposal`, and the agreement if the answer accepts."""
    chosen = _choose(proposal.versions, terms)
    if chosen is None:
        return Refuse(VersionMismatch(tuple(sorted(terms.versions)))), None
    shape = terms.versions[chosen.number]
    try:
        theirs = read_version_data(chosen.parameters, chosen.number, shape)
    except DecodeError as fault:
        return Refuse(HandshakeDecodeError(chosen.number, f"{fault.code}: {fault.text}")), None
    if theirs.network_magic != terms.ours.network_magic:
        text = _wrong_network(terms.ours.network_magic, theirs.network_magic)
        return Refuse(Refused(chosen.number, f"{ErrorCode.HANDSHAKE_WRONG_NETWORK}: {text}")), None
    agreement = terms.agreed(chosen.number, theirs)
    if agreement.query:
        return QueryReply(terms.table()), agreement
    said = VersionData(
        agreement.network_magic, agreement.initiator_only, agreement.peer_sharing, agreement.query
    )
    return AcceptVersion(chosen.number, write_version_data(said, shape)), agreement


def conclude(reply: AcceptVersion | Refuse | QueryReply | ReplyVersions, terms: Terms) -> Agreement:
    """Return the agreement that the initiator draws from `reply`; raise `HandshakeRefused` if the peer
    refused."""
    match reply:
        case AcceptVersion(version, parameters):
            return _concluded(OfferedVersion(version, parameters), terms)
        case ReplyVersions(versions):
            chosen = _choose(versions, terms)
            if chosen is None:
                raise _no_version([offered.number for offered in versions], terms)
            return _concluded(chosen, terms)
        case QueryReply():
            if not terms.ours.query:
                raise RemoteProtocolError("Handshake: a query reply came, but nothing was queried")
            return Agreement(terms.kind, max(terms.versions), terms.ours.network_magic, query=True)
        case Refuse(reason):
            raise _refusal(reason, terms)


def _choose(offered: Sequence[OfferedVersion], terms: Terms) -> OfferedVersion | None:
    known = [version for version in offered if version.number in terms.versions]
    numbers = [version.number for version in known]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        text = f"Handshake: the proposed versions {numbers} are not in strictly ascending order"
        raise DecodeError(text, code=ErrorCode.CBOR_INVALID, found=tuple(numbers), state=PROPOSE.name)
    # DMQ's own versions come first: Cardano's only stand in for them where the peer knows no others.
    return max(known, key=lambda version: (not is_cardano(version.number), version.number), default=None)


def _concluded(chosen: OfferedVersion, terms: Terms) -> Agreement:
    shape = terms.versions.get(chosen.number)
    if shape is None:
        raise _no_version([chosen.number], terms)
    theirs = read_version_data(chosen.parameters, chosen.number, shape)
    if theirs.network_magic != terms.ours.network_magic:
        text = "Handshake: " + _wrong_network(terms.ours.network_magic, theirs.network_magic)
        raise HandshakeRefused(text, code=ErrorCode.HANDSHAKE_WRONG_NETWORK, found=theirs.network_magic)
    return terms.agreed(chosen.number, theirs)


def _refusal(reason: RefuseReason, terms: Terms) -> HandshakeRefused:
    match reason:
        case VersionMismatch(versions):
            return _no_version(versions, terms)
        case HandshakeDecodeError(version, text):
            said = f"Handshake: the peer could not read our data of version {version}: {text}"
            return HandshakeRefused(said, found=version, reason=text)
        case Refused(version, text):
            said = f"Handshake: the peer refused version {version}: {text}"
            return HandshakeRefused(said, code=ErrorCode.HANDSHAKE_WRONG_NETWORK, found=version, reason=text)


def _no_version(theirs: Sequence[int], terms: Terms) -> HandshakeRefused:
    ours = ", ".join(map(str, sorted(terms.versions)))
    text = (
        f"Handshake: no common version; the peer has {', '.join(map(str, theirs)) or 'none'}, we have {ours}"
    )
    return HandshakeRefused(text, code=ErrorCode.HANDSHAKE_NO_VERSION, found=tuple(theirs))


def _wrong_network(ours: int, theirs: int) -> str:
    return f"network magic {theirs} was offered, this node is on {ours}"
