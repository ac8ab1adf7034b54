"""The handshake of links: the same messages as everywhere, with versions and data of their own.

Each side names its key and a nonce that it never used before, and for an encrypted link an ephemeral key and the versions that
it speaks. The authentication right afterwards proves that it holds the key. Nobody on the way can talk two nodes into a
plain link that both could encrypt: the last bytes of a nonce say that its author could, and both proofs cover both nonces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum, IntEnum
from hashlib import sha256

import msgspec

from stagepost.errors import DecodeError, ErrorCode, HandshakeRefused, RemoteProtocolError
from stagepost.ground.crypto.ed25519 import PUBLIC_KEY_BYTES
from stagepost.ground.crypto.secret_stream import EXCHANGE_KEY_BYTES
from stagepost.ground.identifiers import LinkEncryption
from stagepost.ground.net.handshake import (
    AcceptVersion,
    HandshakeDecodeError,
    OfferedVersion,
    ProposeVersions,
    QueryReply,
    Refuse,
    Refused,
    ReplyVersions,
    VersionMismatch,
)
from stagepost.ground.net.version_data import NETWORK_MAGIC_BITS
from stagepost.ground.wire.cbor import CborReader, write_array, write_bytes, write_unsigned
from stagepost.remp.links.authentication import NONCE_BYTES, LinkTerms

PLAIN_DATA_FIELDS = ("network_magic", "public_key", "nonce")
DATA_FIELDS = (*PLAIN_DATA_FIELDS, "ephemeral_key", "versions")
VERSIONS_MAX = 16
VERSION_BITS = 16
CAN_ENCRYPT = b"encrypts"
"""End of a nonce whose author could encrypt the link; nonces of the former release are random there."""


class LinkKind(Enum):
    """Purpose of a link; the value is for people."""

    REMP = "full node to validator"
    CATCHAIN = "members of a session"
    DELIVERY = "programs"


class LinkVersion(IntEnum):
    REMP_PLAIN = 0x5001
    CATCHAIN_PLAIN = 0x5002
    REMP = 0x5003
    CATCHAIN = 0x5004
    DELIVERY_PLAIN = 0x5005
    DELIVERY = 0x5006

    @property
    def kind(self) -> LinkKind:
        return LinkKind[self.name.removesuffix("_PLAIN")]

    @property
    def is_encrypted(self) -> bool:
        return not self.name.endswith("_PLAIN")


def spoken_versions(kinds: Collection[LinkKind], encryption: LinkEncryption) -> tuple[LinkVersion, ...]:
    """Return the versions that a node offers or serves for links of these kinds, in ascending order."""
    return tuple(
        version
        for version in LinkVersion
        if version.kind in kinds
        and encryption is not (LinkEncryption.OFF if version.is_encrypted else LinkEncryption.REQUIRED)
    )


class LinkData(msgspec.Struct, frozen=True):
    """The network, key and nonce that a side claims; for encrypted links also its ephemeral key and the versions that it
    speaks, in ascending order.
    """

    network_magic: int
    public_key: bytes
    nonce: bytes
    ephemeral_key: bytes = b""
    versions: tuple[int, ...] = ()

    def write(self, *, is_encrypted: bool) -> bytes:
        parts = [
            write_unsigned(self.network_magic),
            write_bytes(self.public_key),
            write_bytes(self.nonce),
        ]
        if is_encrypted:
            parts.append(write_bytes(self.ephemeral_key))
            parts.append(write_array(*map(write_unsigned, self.versions)))
        return write_array(*parts)


def read_link_data(raw: bytes, version: LinkVersion) -> LinkData:
    reader = CborReader(raw)
    what = f"the data of version {version:#x}"
    reader.array(len(DATA_FIELDS if version.is_encrypted else PLAIN_DATA_FIELDS), what)
    magic = reader.unsigned(NETWORK_MAGIC_BITS, f"{what}: network magic")
    public_key = reader.byte_string(PUBLIC_KEY_BYTES, PUBLIC_KEY_BYTES, f"{what}: public key")
    nonce = reader.byte_string(NONCE_BYTES, NONCE_BYTES, f"{what}: nonce")
    ephemeral_key = b""
    versions: tuple[int, ...] = ()
    if version.is_encrypted:
        ephemeral_key = reader.byte_string(EXCHANGE_KEY_BYTES, EXCHANGE_KEY_BYTES, f"{what}: ephemeral key")
        versions = _read_versions(reader, f"{what}: versions")
    reader.finish(what)
    return LinkData(magic, public_key, nonce, ephemeral_key, versions)


def propose(versions: Collection[LinkVersion], ours: LinkData) -> ProposeVersions:
    return ProposeVersions(
        tuple(OfferedVersion(version, ours.write(is_encrypted=version.is_encrypted)) for version in versions)
    )


def answer(
    proposal: ProposeVersions, served: Collection[LinkVersion], ours: LinkData
) -> tuple[AcceptVersion | Refuse, LinkTerms | HandshakeRefused]:
    """Return the responder's answer, with the settled terms or the reason why there are none."""
    known = [offered for offered in proposal.versions if offered.number in served]
    if not known:
        return _no(VersionMismatch(tuple(sorted(served))), _no_version(proposal.versions, served))
    chosen = max(known, key=lambda offered: offered.number)
    version = LinkVersion(chosen.number)
    try:
        theirs = read_link_data(chosen.parameters, version)
    except DecodeError as fault:
        return _no(
            HandshakeDecodeError(version, f"{fault.code}: {fault.text}"),
            HandshakeRefused(f"Handshake: refused: {fault.text}", code=fault.code),
        )
    for wrong in _faults(version, ours, theirs):
        return _no(Refused(version, f"{wrong.code}: {wrong.text}"), wrong)
    accepted = AcceptVersion(version, ours.write(is_encrypted=version.is_encrypted))
    return accepted, _terms(version, theirs, ours, proposal, accepted)


def conclude(
    reply: AcceptVersion | Refuse | QueryReply | ReplyVersions,
    proposal: ProposeVersions,
    ours: LinkData,
    expected_key: bytes,
) -> LinkTerms:
    """Return the terms that the responder's answer settles. A peer with another key than `expected_key` is
    refused before anything is signed.
    """
    offered = [LinkVersion(version.number) for version in proposal.versions]
    match reply:
        case AcceptVersion(number, parameters):
            if number not in offered:
                raise RemoteProtocolError(
                    f"Handshake: {_listed(offered)} was proposed, {number:#x} was accepted", found=number
                )
            version = LinkVersion(number)
            theirs = read_link_data(parameters, version)
        case Refuse(reason):
            raise _refused(reason)
        case _:
            raise RemoteProtocolError(f"Handshake: {type(reply).__name__} has no place on a link")
    for wrong in _faults(version, ours, theirs):
        raise wrong
    if theirs.public_key != expected_key:
        raise RemoteProtocolError(
            f"Handshake: key {theirs.public_key.hex()} answers where {expected_key.hex()} was expected",
            code=ErrorCode.PROTOCOL_REQUEST,
            advice="check the address of this peer",
            reason="OtherKey",
        )
    if theirs.nonce == ours.nonce:
        raise RemoteProtocolError(
            "Handshake: the peer's nonce is our own nonce",
            code=ErrorCode.PROTOCOL_REQUEST,
            reason="MirroredNonce",
        )
    best = max((number for number in offered if number in theirs.versions), default=version)
    if version < best:
        raise _downgraded(version)
    return _terms(version, ours, theirs, proposal, reply)


def _terms(
    version: LinkVersion,
    initiator: LinkData,
    responder: LinkData,
    proposal: ProposeVersions,
    accepted: AcceptVersion,
) -> LinkTerms:
    keys = initiator.public_key, initiator.nonce, responder.public_key, responder.nonce
    terms = LinkTerms(version, initiator.network_magic, *keys)
    if not version.is_encrypted:
        return terms
    return msgspec.structs.replace(
        terms,
        initiator_ephemeral=initiator.ephemeral_key,
        responder_ephemeral=responder.ephemeral_key,
        transcript=_transcript(proposal, accepted),
    )


def _transcript(proposal: ProposeVersions, accepted: AcceptVersion) -> bytes:
    """Return the hash of both messages of the handshake: every version that was offered, with its data, and the answer."""
    said = sha256(len(proposal.versions).to_bytes(2, "big"))
    pairs = [(offered.number, offered.parameters) for offered in proposal.versions]
    for number, parameters in (*pairs, (accepted.version, accepted.parameters)):
        said.update(number.to_bytes(8, "big") + len(parameters).to_bytes(4, "big") + parameters)
    return said.digest()


def _faults(version: LinkVersion, ours: LinkData, theirs: LinkData) -> Iterator[HandshakeRefused]:
    if theirs.network_magic != ours.network_magic:
        yield _wrong_network(ours, theirs)
    if theirs.public_key == ours.public_key:
        yield _own_key(theirs)
    both_encrypt = ours.nonce.endswith(CAN_ENCRYPT) and theirs.nonce.endswith(CAN_ENCRYPT)
    if both_encrypt and not version.is_encrypted:
        yield _downgraded(version)


def _read_versions(reader: CborReader, what: str) -> tuple[int, ...]:
    start = reader.offset
    count = reader.array_length(what)
    if count > VERSIONS_MAX:
        raise reader.over_limit(f"the length of {what}", count, VERSIONS_MAX, at=start)
    return tuple(reader.unsigned(VERSION_BITS, what) for _ in range(count))


def _downgraded(version: int) -> HandshakeRefused:
    return HandshakeRefused(
        f"both nodes can encrypt this link, but version {version:#x} would be plain: versions that were offered are "
        "missing from the handshake that arrived",
        code=ErrorCode.PROTOCOL_REQUEST,
        advice="somebody between the two nodes changes what they send; look for the fault there",
        reason="Downgraded",
    )


def _listed(numbers: Collection[int]) -> str:
    return ", ".join(f"{number:#x}" for number in numbers) or "none"


def _no(
    reason: VersionMismatch | HandshakeDecodeError | Refused, why: HandshakeRefused
) -> tuple[Refuse, HandshakeRefused]:
    return Refuse(reason), why


def _refused(reason: VersionMismatch | HandshakeDecodeError | Refused) -> HandshakeRefused:
    match reason:
        case VersionMismatch(versions):
            text = f"Handshake: no common version; the peer has {_listed(versions)}"
            return HandshakeRefused(text, code=ErrorCode.HANDSHAKE_NO_VERSION, found=tuple(versions))
        case HandshakeDecodeError(version, text) | Refused(version, text):
            code = text.partition(":")[0]
            known = ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.HANDSHAKE_NO_VERSION
            said = f"Handshake: the peer refused version {version:#x}: {text}"
            return HandshakeRefused(said, code=known, found=version, reason=text)


def _no_version(offered: Collection[OfferedVersion], served: Collection[LinkVersion]) -> HandshakeRefused:
    theirs, ours = _listed([version.number for version in offered]), _listed(sorted(served))
    return HandshakeRefused(
        f"Handshake: no common version; the peer has {theirs}, we have {ours}",
        code=ErrorCode.HANDSHAKE_NO_VERSION,
        advice="0x5001, 0x5002 and 0x5005 are plain links; both nodes must want encrypted ones, or allow plain ones",
    )


def _wrong_network(ours: LinkData, theirs: LinkData) -> HandshakeRefused:
    text = f"network magic {theirs.network_magic} was offered, this node is on {ours.network_magic}"
    return HandshakeRefused(text, code=ErrorCode.HANDSHAKE_WRONG_NETWORK, found=theirs.network_magic)


def _own_key(theirs: LinkData) -> HandshakeRefused:
    return HandshakeRefused(
        f"key {theirs.public_key.hex()} is this node's own",
        code=ErrorCode.PROTOCOL_REQUEST,
        advice="check the addresses, and that no two nodes have the same key",
        reason="OwnKey",
    )
