"""Payloads that concern the graph itself: nothing, or the proof of a fork. All others are for the parts
above."""

from __future__ import annotations

import msgspec

from stagepost.catchain.block import DEPENDENCY_ID as REFERENCE_ID
from stagepost.catchain.block import Dependency, read_dependency
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES, Reader, Writer, constructor_bytes, constructor_id

FORK_ID = constructor_id(
    "catchain.block.data.fork left:catchain.block.Dep right:catchain.block.Dep = catchain.block.inner.Data"
)
NOTHING_ID = constructor_id("catchain.block.data.nop = catchain.block.inner.Data")
BAD_BLOCK_ID = constructor_id("catchain.block.data.badBlock block:catchain.block = catchain.block.inner.Data")

NOTHING = constructor_bytes(NOTHING_ID)
"""Payload without content, since a payload must not be empty."""

_OURS = {constructor_bytes(one) for one in (FORK_ID, NOTHING_ID, BAD_BLOCK_ID)}


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


def is_for_upper_parts(payload: bytes) -> bool:
    return payload[:CONSTRUCTOR_BYTES] not in _OURS


def read_fork_proof(payload: bytes) -> ForkProof | None:
    """Return the proof; None for a payload of another kind. Raise `DecodeError` for a payload that claims to
    be a proof and is not."""
    if payload[:CONSTRUCTOR_BYTES] != constructor_bytes(FORK_ID):
        return None
    reader = Reader(payload)
    reader.read_constructor(FORK_ID)
    references: list[Dependency] = []
    for _ in range(2):
        reader.read_constructor(REFERENCE_ID)
        references.append(read_dependency(reader))
    reader.expect_end()
    proof = ForkProof(*references)
    if not proof.is_contradictory:
        raise TlDecodeError("the two blocks of a fork proof do not contradict each other", offset=0)
    return proof
