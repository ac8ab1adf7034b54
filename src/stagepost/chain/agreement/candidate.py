"""Candidates: the blocks that leaders propose for their slots. The part above reads the payload; agreement
only orders it.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from stagepost.chain.agreement.votes import read_slot
from stagepost.chain.configuration import BLOCK_BYTES_MAX
from stagepost.chain.master_block import root_hash
from stagepost.ground.wire.tl import Reader, Writer, constructor_id

PAYLOAD_BYTES_MAX = BLOCK_BYTES_MAX

_ID_ID = constructor_id("agreement.candidateId slot:int parent:int256 block:int256 = agreement.CandidateId")


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """`parent` is the hash of the block before it, or of the session's start."""

    slot: int
    parent: bytes
    payload: bytes

    @property
    def hash(self) -> bytes:
        """Id of the candidate."""
        return candidate_hash(self.slot, self.parent, block_hash(self.payload))

    def write(self, writer: Writer) -> None:
        """Write the bare form."""
        writer.write_int(self.slot)
        writer.write_int256(self.parent)
        writer.write_bytes(self.payload)


def candidate_hash(slot: int, parent: bytes, block: bytes) -> bytes:
    """Return the id of a candidate from the hash of its block, so that a proof needs no payload."""
    writer = Writer()
    writer.write_constructor(_ID_ID)
    writer.write_int(slot)
    writer.write_int256(parent)
    writer.write_int256(block)
    return sha256(writer.written()).digest()


def block_hash(payload: bytes) -> bytes:
    """Return the hash by which a candidate names its block: SHA-256 of root hash and file hash."""
    return sha256(root_hash(payload) + sha256(payload).digest()).digest()


def read_candidate(reader: Reader) -> Candidate:
    return Candidate(
        read_slot(reader),
        reader.read_int256(),
        reader.read_bytes(PAYLOAD_BYTES_MAX, "payload of a candidate"),
    )
