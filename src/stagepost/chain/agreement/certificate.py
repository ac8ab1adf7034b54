"""Certificates: a quorum of votes of one kind for one block, which anybody can check who knows the
validators' keys.

A block with a FINALISE certificate is final, and so is every block that it rests on. A NOTARISE certificate
alone says that no other block can have one in its slot; a SKIP certificate says that no block of its slot can
ever be final.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from struct import Struct

import msgspec

from stagepost.chain.agreement.votes import (
    CERTIFIABLE,
    VALIDATORS_MAX,
    Vote,
    VoteKind,
    quorum,
    read_subject,
    read_validator,
    signed_bytes,
)
from stagepost.errors import ErrorCode, RemoteProtocolError, TlDecodeError
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import Reader, Writer, constructor_bytes, constructor_id

CERTIFICATE_ID = constructor_id(
    "agreement.certificate session:int256 slot:int kind:int block:int256 "
    "signatures:(vector agreement.signature) = agreement.Message"
)
SIGNATURE_BYTES_MIN = 4 + 64
_TAG = constructor_bytes(CERTIFICATE_ID)
_SUBJECT = Struct("<36xii32s")

Verify = Callable[[bytes, bytes, bytes], bool]
"""Function of public key, message and signature."""


class Certificate(msgspec.Struct, frozen=True, gc=False):
    """`signatures`: index and signature of each signer, by rising index."""

    session_id: bytes
    slot: int
    kind: VoteKind
    block: bytes
    signatures: tuple[tuple[int, bytes], ...]

    def write(self, writer: Writer) -> None:
        """Write the bare form."""
        writer.write_int256(self.session_id)
        writer.write_int(self.slot)
        writer.write_int(self.kind)
        writer.write_int256(self.block)
        writer.write_vector_count(len(self.signatures))
        for validator, signature in self.signatures:
            writer.write_int(validator)
            writer.write_int512(signature)

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(CERTIFICATE_ID)
        self.write(writer)
        return writer.written()

    @property
    def votes(self) -> list[Vote]:
        return [Vote(who, self.slot, self.kind, self.block, signature) for who, signature in self.signatures]


def decode_certificate(data: bytes) -> Certificate:
    reader = Reader(data)
    reader.read_constructor(CERTIFICATE_ID)
    certificate = read_certificate(reader)
    reader.expect_end()
    return certificate


def subject_of(frame: bytes) -> tuple[int, int, bytes] | None:
    """Return slot, kind and block of a frame that calls itself a certificate, without reading its signatures;
    None for any other frame.

    Every validator forwards the same certificates, and most of them need not be verified.
    """
    if not frame.startswith(_TAG) or len(frame) < _SUBJECT.size:
        return None
    slot, kind, block = _SUBJECT.unpack_from(frame)
    return slot, kind, block


def read_certificate(reader: Reader) -> Certificate:
    """Read the bare form; refuse a certificate that could not be valid for any set of validators."""
    session_id = reader.read_int256()
    start = reader.offset
    slot, kind, block = read_subject(reader)
    if kind not in CERTIFIABLE:
        raise TlDecodeError(
            f"a proposal is signed by one; there is no certificate of it (offset {start})", offset=start
        )
    count = reader.read_vector_count(VALIDATORS_MAX, SIGNATURE_BYTES_MIN)
    signatures: list[tuple[int, bytes]] = []
    for _ in range(count):
        start = reader.offset
        validator = read_validator(reader)
        if signatures and validator <= signatures[-1][0]:
            raise TlDecodeError(
                f"validator {validator} at offset {start} follows {signatures[-1][0]}; each signs once, in order",
                found=validator,
                offset=start,
            )
        signatures.append((validator, reader.read_int512()))
    return Certificate(session_id, slot, kind, block, tuple(signatures))


def check(certificate: Certificate, public_keys: Sequence[bytes], verify: Verify = ed25519.verify) -> None:
    """Raise if the certificate is not a quorum of these validators. The caller compares the session id."""
    check_count(certificate, len(public_keys))
    signed = signed_bytes(certificate.session_id, certificate.slot, certificate.kind, certificate.block)
    for validator, signature in certificate.signatures:
        if not verify(public_keys[validator], signed, signature):
            raise _no_quorum(certificate, f"the signature of validator {validator} is not its own")


def check_count(certificate: Certificate, validators: int) -> None:
    """Run all of `check` that is cheap."""
    who = [validator for validator, _ in certificate.signatures]
    if any(later <= earlier for earlier, later in pairwise(who)):
        raise _no_quorum(certificate, "its validators are not in rising order, each once")
    if who and not 0 <= who[0] <= who[-1] < validators:
        raise _no_quorum(certificate, f"validator {who[-1]} is not one of the {validators}")
    if len(who) < quorum(validators):
        raise _no_quorum(
            certificate, f"{len(who)} validators signed, {quorum(validators)} of {validators} must"
        )


def _no_quorum(certificate: Certificate, fault: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"certificate {certificate.kind.name} of slot {certificate.slot}: {fault}", code=ErrorCode.NO_QUORUM
    )
