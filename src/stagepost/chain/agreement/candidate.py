"""Candidates: the blocks that leaders propose for their slots. The part above reads the payload; agreement
only orders it.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from stagepost.chain.agreement.votes import read_slot
from stagepost.ground.wire.tl import Reader, Writer, constructor_id

PAYLOAD_BYTES_MAX = 256 * 1024

CANDIDATE_ID = constructor_id(
    "agreement.candidate slot:int parent:int256 payload:bytes = agreement.Candidate"
)


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """`parent` is the hash of the block before it, or of the session's start."""

    slot: int
    parent: bytes
    payload: bytes

    @property
    def hash(self) -> bytes:
        writer = Writer()
        writer.write_constructor(CANDIDATE_ID)
        self.write(writer)
        return sha256(writer.written()).digest()

    def write(self, writer: Writer) -> None:
        """Write the bare form."""
        writer.write_int(self.slot)
        writer.write_int256(self.parent)
        writer.write_bytes(self.payload)


def read_candidate(reader: Reader) -> Candidate:
    return Candidate(
        read_slot(reader),
        reader.read_int256(),
        reader.read_bytes(PAYLOAD_BYTES_MAX, "payload of a candidate"),
    )
