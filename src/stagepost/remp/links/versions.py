"""The handshake of links: the same messages as everywhere, with versions and data of their own.

Each side names its key and a nonce that it never used before. The authentication right afterwards proves that
it holds the key.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

import msgspec

from stagepost.errors import DecodeError, ErrorCode, HandshakeRefused, RemoteProtocolError
from stagepost.ground.crypto.ed25519 import PUBLIC_KEY_BYTES
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

DATA_FIELDS = ("network_magic", "public_key", "nonce")


class LinkVersion(IntEnum):
    REMP = 0x5001
    CATCHAIN = 0x5002
    DELIVERY = 0x5005


class LinkData(msgspec.Struct, frozen=True):
    """The network, key and nonce that a side claims."""

    network_magic: int
    public_key: bytes
    nonce: bytes

    def write(self) -> bytes:
        return write_array(
            write_unsigned(self.network_magic), write_bytes(self.public_key), write_bytes(self.nonce)
        )


def read_link_data(raw: bytes, version: int) -> LinkData:
    reader = CborReader(raw)
    what = f"the data of version {version:#x}"
    reader.array(len(DATA_FIELDS), what)
    magic = reader.unsigned(NETWORK_MAGIC_BITS, f"{what}: network magic")
    public_key = reader.byte_string(PUBLIC_KEY_BYTES, PUBLIC_KEY_BYTES, f"{what}: public key")
    nonce = reader.byte_string(NONCE_BYTES, NONCE_BYTES, f"{what}: nonce")
    reader.finish(what)
    return LinkData(magic, public_key, nonce)


def propose(version: LinkVersion, ours: LinkData) -> ProposeVersions:
    return ProposeVersions((OfferedVersion(version, ours.write()),))


def answer(
    proposal: ProposeVersions, served: Collection[LinkVersion], ours: LinkData
) -> tuple[AcceptVersion | Refuse, LinkTerms | HandshakeRefused]:
    """Return the responder's answer, with the settled terms or the reason why there are none."""
    known = [offered for offered in proposal.versions if offered.number in served]
    if not known:
        return _no(VersionMismatch(tuple(sorted(served))), _no_version(proposal.versions, served))
    chosen = max(known, key=lambda offered: offered.number)
    number = chosen.number
    try:
        theirs = read_link_data(chosen.parameters, number)
    except DecodeError as fault:
        return _no(
            HandshakeDecodeError(number, f"{fault.code}: {fault.text}"),
            HandshakeRefused(f"Handshake: refused: {fault.text}", code=fault.code),
        )
    if theirs.network_magic != ours.network_magic:
        wrong = _wrong_network(ours, theirs)
        return _no(Refused(number, f"{wrong.code}: {wrong.text}"), wrong)
    if theirs.public_key == ours.public_key:
        mirror = _own_key(theirs)
        return _no(Refused(number, f"{mirror.code}: {mirror.text}"), mirror)
    terms = LinkTerms(
        number, ours.network_magic, theirs.public_key, theirs.nonce, ours.public_key, ours.nonce
    )
    return AcceptVersion(number, ours.write()), terms


def conclude(
    reply: AcceptVersion | Refuse | QueryReply | ReplyVersions,
    version: LinkVersion,
    ours: LinkData,
    expected_key: bytes,
) -> LinkTerms:
    """Return the terms that the responder's answer settles. A peer with another key than `expected_key` is
    refused before anything is signed.
    """
    match reply:
        case AcceptVersion(number, parameters):
            if number != version:
                raise RemoteProtocolError(
                    f"Handshake: version {version:#x} was proposed, {number:#x} was accepted", found=number
                )
            theirs = read_link_data(parameters, number)
        case Refuse(reason):
            raise _refused(reason)
        case _:
            raise RemoteProtocolError(f"Handshake: {type(reply).__name__} has no place on a link")
    if theirs.network_magic != ours.network_magic:
        raise _wrong_network(ours, theirs)
    if theirs.public_key == ours.public_key:
        raise _own_key(theirs)
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
    return LinkTerms(
        version, ours.network_magic, ours.public_key, ours.nonce, theirs.public_key, theirs.nonce
    )


def _no(
    reason: VersionMismatch | HandshakeDecodeError | Refused, why: HandshakeRefused
) -> tuple[Refuse, HandshakeRefused]:
    return Refuse(reason), why


def _refused(reason: VersionMismatch | HandshakeDecodeError | Refused) -> HandshakeRefused:
    match reason:
        case VersionMismatch(versions):
            listed = ", ".join(f"{number:#x}" for number in versions) or "none"
            text = f"Handshake: no common version; the peer has {listed}"
            return HandshakeRefused(text, code=ErrorCode.HANDSHAKE_NO_VERSION, found=tuple(versions))
        case HandshakeDecodeError(version, text) | Refused(version, text):
            code = text.partition(":")[0]
            known = ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.HANDSHAKE_NO_VERSION
            said = f"Handshake: the peer refused version {version:#x}: {text}"
            return HandshakeRefused(said, code=known, found=version, reason=text)


def _no_version(offered: Collection[OfferedVersion], served: Collection[LinkVersion]) -> HandshakeRefused:
    theirs = ", ".join(f"{version.number:#x}" for version in offered) or "none"
    ours = ", ".join(f"{version:#x}" for version in sorted(served)) or "none"
    text = f"Handshake: no common version; the peer has {theirs}, we have {ours}"
    return HandshakeRefused(text, code=ErrorCode.HANDSHAKE_NO_VERSION)


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
