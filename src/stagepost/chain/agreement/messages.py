"""Binary forms of the messages that validators send unasked, and of what they keep on disk."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stagepost.chain.agreement.candidate import PAYLOAD_BYTES_MAX, Candidate, read_candidate
from stagepost.chain.agreement.certificate import CERTIFICATE_ID, Certificate, read_certificate
from stagepost.chain.agreement.evidence import EVIDENCE_ID, Evidence, read_evidence
from stagepost.chain.agreement.votes import VOTE_ID, Vote, read_slot, read_vote
from stagepost.ground.wire.tl import Reader, Writer, constructor_id

PROOFS_MAX = 16
"""Certificates, at most, that come along with a proposal; a validator that lacks more asks for them."""

CERTIFICATE_BYTES_MIN = 32 + 4 + 4 + 32 + 4
FRAME_BYTES_MAX = PAYLOAD_BYTES_MAX + 128 * 1024
"""Bytes: a full payload and its proofs, with room for about a hundred validators' signatures in each."""

PROPOSAL_ID = constructor_id(
    "agreement.proposal candidate:agreement.candidate signature:int512 proofs:(vector agreement.certificate) "
    "= agreement.Message"
)
WANT_ID = constructor_id("agreement.want slot:int = agreement.Message")
FINAL_BLOCK_ID = constructor_id(
    "agreement.finalBlock candidate:agreement.candidate signature:int512 certificate:agreement.certificate "
    "= agreement.FinalBlock"
)


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """A candidate with its leader's signature, and certificates that prove that its parent may be built upon."""

    candidate: Candidate
    signature: bytes
    proofs: tuple[Certificate, ...] = ()

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(PROPOSAL_ID)
        self.candidate.write(writer)
        writer.write_int512(self.signature)
        writer.write_vector_count(len(self.proofs))
        for proof in self.proofs:
            proof.write(writer)
        return writer.written()


class Want(msgspec.Struct, frozen=True):
    """A request to an idle leader: the sender has something for a block, or waits for one to become final."""

    slot: int

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(WANT_ID)
        writer.write_int(self.slot)
        return writer.written()


class FinalBlock(msgspec.Struct, frozen=True, gc=False):
    """A final block as it is stored and sent to validators that are behind: its certificate is of the best
    kind at hand.
    """

    candidate: Candidate
    signature: bytes
    certificate: Certificate

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(FINAL_BLOCK_ID)
        self.candidate.write(writer)
        writer.write_int512(self.signature)
        self.certificate.write(writer)
        return writer.written()


Message: TypeAlias = Proposal | Vote | Certificate | Want | Evidence


def decode_message(data: bytes) -> Message:
    reader = Reader(data)
    message: Message
    match reader.read_constructor(PROPOSAL_ID, VOTE_ID, CERTIFICATE_ID, WANT_ID, EVIDENCE_ID):
        case identifier if identifier == VOTE_ID:
            message = read_vote(reader)
        case identifier if identifier == CERTIFICATE_ID:
            message = read_certificate(reader)
        case identifier if identifier == PROPOSAL_ID:
            candidate, signature = read_candidate(reader), reader.read_int512()
            count = reader.read_vector_count(PROOFS_MAX, CERTIFICATE_BYTES_MIN)
            message = Proposal(candidate, signature, tuple(read_certificate(reader) for _ in range(count)))
        case identifier if identifier == WANT_ID:
            message = Want(read_slot(reader))
        case _:
            message = read_evidence(reader)
    reader.expect_end()
    return message


def decode_final_block(data: bytes) -> FinalBlock:
    reader = Reader(data)
    reader.read_constructor(FINAL_BLOCK_ID)
    block = FinalBlock(read_candidate(reader), reader.read_int512(), read_certificate(reader))
    reader.expect_end()
    return block
