"""Votes: the statements that validators sign in a slot, and how many of them decide."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import ZERO_INT256, Reader, Writer, constructor_id

VALIDATORS_MAX = 128
"""Validators of one session, at most: so a proposal with all its proofs stays within a frame."""

NO_BLOCK = ZERO_INT256
"""The hash that a vote to skip a slot names."""

SIGNED_ID = constructor_id(
    "agreement.voteId session:int256 slot:int kind:int block:int256 = agreement.VoteId"
)
VOTE_ID = constructor_id(
    "agreement.vote slot:int kind:int block:int256 validator:int signature:int512 = agreement.Message"
)


class VoteKind(IntEnum):
    """PROPOSE is the leader's signature under its candidate: two of them contradict each other as votes do."""

    PROPOSE = 0
    NOTARISE = 1
    SKIP = 2
    FINALISE = 3


CERTIFIABLE = frozenset({VoteKind.NOTARISE, VoteKind.SKIP, VoteKind.FINALISE})


class Vote(msgspec.Struct, frozen=True, gc=False):
    validator: int
    slot: int
    kind: VoteKind
    block: bytes
    signature: bytes

    def write(self, writer: Writer) -> None:
        """Write the bare form."""
        writer.write_int(self.slot)
        writer.write_int(self.kind)
        writer.write_int256(self.block)
        writer.write_int(self.validator)
        writer.write_int512(self.signature)

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(VOTE_ID)
        self.write(writer)
        return writer.written()


def quorum(validators: int) -> int:
    """Return how many validators, by head, decide: any two quorums share an honest validator while fewer than
    a third are faulty.
    """
    return 2 * validators // 3 + 1


def faulty_max(validators: int) -> int:
    return (validators - 1) // 3


def signed_bytes(session_id: bytes, slot: int, kind: VoteKind, block: bytes) -> bytes:
    """Return the bytes that a validator signs for a vote."""
    writer = Writer()
    writer.write_constructor(SIGNED_ID)
    writer.write_int256(session_id)
    writer.write_int(slot)
    writer.write_int(kind)
    writer.write_int256(block)
    return writer.written()


def read_vote(reader: Reader) -> Vote:
    slot, kind, block = read_subject(reader)
    return Vote(read_validator(reader), slot, kind, block, reader.read_int512())


def read_subject(reader: Reader) -> tuple[int, VoteKind, bytes]:
    """Read slot, kind and block, as votes and certificates name them."""
    slot = read_slot(reader)
    start = reader.offset
    number = reader.read_int()
    if not 0 <= number < len(VoteKind):
        raise TlDecodeError(
            f"the kind of vote at offset {start} is {number}; kinds are 0 to 3", found=number, offset=start
        )
    kind = VoteKind(number)
    start = reader.offset
    block = reader.read_int256()
    if kind is VoteKind.SKIP and block != NO_BLOCK:
        raise TlDecodeError(
            f"a vote to skip slot {slot} names a block at offset {start}; it must be zero", offset=start
        )
    return slot, kind, block


def read_slot(reader: Reader) -> int:
    start = reader.offset
    slot = reader.read_int()
    if slot < 1:
        raise TlDecodeError(
            f"the slot at offset {start} is {slot}; slots count from 1", found=slot, offset=start
        )
    return slot


def read_validator(reader: Reader) -> int:
    start = reader.offset
    validator = reader.read_int()
    if not 0 <= validator < VALIDATORS_MAX:
        raise TlDecodeError(
            f"the validator at offset {start} is {validator}; indexes are 0 to {VALIDATORS_MAX - 1}",
            limit=VALIDATORS_MAX - 1,
            found=validator,
            offset=start,
        )
    return validator
