"""Payloads that concern the graph itself: nothing, or the proof of a fork. All others are for the parts above. Where
blocks are dated, a proof stands behind a payload of these parts, so that no block is without date and totals.
"""

from __future__ import annotations

import msgspec

from stagepost.catchain.block import DEPENDENCY_ID as REFERENCE_ID
from stagepost.catchain.block import Dependency, read_dependency
from stagepost.errors import DecodeError, TlDecodeError
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES, Reader, Writer, constructor_bytes, constructor_id

FORK_ID = constructor_id(
    "catchain.block.data.fork left:catchain.block.Dep right:catchain.block.Dep = catchain.block.inner.Data"
)
NOTHING_ID = constructor_id("catchain.block.data.nop = catchain.block.inner.Data")
BAD_BLOCK_ID = constructor_id("catchain.block.data.badBlock block:catchain.block = catchain.block.inner.Data")
VECTOR_ID = constructor_id("catchain.block.data.vector msgs:(vector bytes) = catchain.block.inner.Data")

NOTHING = constructor_bytes(NOTHING_ID)
"""Payload without content, since a payload must not be empty."""

_FORK, _VECTOR = constructor_bytes(FORK_ID), constructor_bytes(VECTOR_ID)
_OURS = {constructor_bytes(one) for one in (FORK_ID, NOTHING_ID, BAD_BLOCK_ID)}
_PARTS = 2
_PART_BYTES_MIN = 4


class ForkProof(msgspec.Struct, frozen=True):
    """Two blocks of one author at one height, both signed."""

    left: Dependency
    right: Dependency

    @property
    def source(self) -> int:
        return self.left.source

    @property
    def is_contradictory(self) -> bool:
        """Return whether the two references prove a fork, if both signatures are valid."""
        left, right = self.left, self.right
        return (
            left.source == right.source and left.height == right.height and left.data_hash != right.data_hash
        )

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(FORK_ID)
        for reference in (self.left, self.right):
            writer.write_constructor(REFERENCE_ID)
            reference.write(writer)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> ForkProof:
        reader = Reader(data)
        reader.read_constructor(FORK_ID)
        references: list[Dependency] = []
        for _ in range(2):
            reader.read_constructor(REFERENCE_ID)
            references.append(read_dependency(reader))
        reader.expect_end()
        proof = cls(*references)
        if not proof.is_contradictory:
            raise TlDecodeError("the two blocks of a fork proof do not contradict each other", offset=0)
        return proof


def proof_behind(payload: bytes, proof: ForkProof) -> bytes:
    """Return the payload of a block that holds `payload`, for the parts above, and a proof behind it."""
    writer = Writer()
    writer.write_constructor(VECTOR_ID)
    writer.write_vector_count(_PARTS)
    writer.write_bytes(payload)
    writer.write_bytes(proof.encode())
    return writer.written()


def upper_part(payload: bytes) -> bytes | None:
    """Return the part of a payload that is for the parts above; None if there is none."""
    first = payload[:CONSTRUCTOR_BYTES]
    if first != _VECTOR:
        return None if first in _OURS else payload
    try:
        return read_parts(payload)[0]
    except DecodeError:
        return None


def read_fork_proof(payload: bytes) -> ForkProof | None:
    """Return the proof; None for a payload of another kind. Raise `DecodeError` for a payload that claims to
    be a proof and is not."""
    first = payload[:CONSTRUCTOR_BYTES]
    if first == _VECTOR:
        return ForkProof.decode(read_parts(payload)[1])
    return ForkProof.decode(payload) if first == _FORK else None


def read_parts(payload: bytes) -> tuple[bytes, bytes]:
    """Return both parts of a payload that is a vector: that of the parts above, and the proof."""
    reader = Reader(payload)
    reader.read_constructor(VECTOR_ID)
    count = reader.read_vector_count(_PARTS, _PART_BYTES_MIN)
    parts = [reader.read_bytes(len(payload), "part of a payload") for _ in range(count)]
    reader.expect_end()
    if count != _PARTS or parts[0][:CONSTRUCTOR_BYTES] in {*_OURS, _VECTOR}:
        raise TlDecodeError(
            "a vector in a payload is a payload of the parts above and a fork proof", offset=0, found=count
        )
    return parts[0], parts[1]
