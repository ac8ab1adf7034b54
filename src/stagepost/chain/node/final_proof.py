"""Final blocks and their proofs: as validators agree on them, as they are stored, and as others verify them.

A block with a FINALISE certificate is final. A block that has only a NOTARISE certificate is final by a later
one that rests on it, or because a final master block holds it: the masterchain commits nothing that its
validators do not know as final.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.certificate import Certificate, Verify, check, check_count, read_certificate
from stagepost.chain.agreement.messages import FinalBlock, decode_final_block
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import VoteKind, signed_bytes
from stagepost.chain.history import KeptBlock
from stagepost.chain.shard_block import id_of
from stagepost.errors import ErrorCode, RemoteProtocolError
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import Reader, Writer, constructor_id
from stagepost.remp.shard import BlockId

PENDING_MAX = 64
"""Blocks of one session, at most, that wait for their proof. Agreement makes a block final every few slots.
"""

OTHER_BRANCH = "OtherBranch"
"""Reason for which a block with a certificate that holds is not taken: it stands upon another block than ours. Whoever
sends it need not lie; the session's own quorum may.
"""

_PROOF_ID = constructor_id(
    "stagepost.chain.proof parent:int256 signature:int512 certificate:agreement.certificate = stagepost.chain.Proof"
)


class Proof(msgspec.Struct, frozen=True):
    """The parts of a stored block besides its payload: its parent, its leader's signature, a certificate."""

    parent: bytes
    signature: bytes
    certificate: Certificate

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(_PROOF_ID)
        writer.write_int256(self.parent)
        writer.write_int512(self.signature)
        self.certificate.write(writer)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> Proof:
        reader = Reader(data)
        reader.read_constructor(_PROOF_ID)
        proof = cls(reader.read_int256(), reader.read_int512(), read_certificate(reader))
        reader.expect_end()
        return proof


def kept_block(block: FinalBlock) -> KeptBlock:
    proof = Proof(block.candidate.parent, block.signature, block.certificate)
    return KeptBlock(
        block.certificate.session_id, block.certificate.block, block.candidate.payload, proof.encode()
    )


def final_block(kept: KeptBlock) -> FinalBlock:
    proof = Proof.decode(kept.certificate)
    candidate = Candidate(proof.certificate.slot, proof.parent, kept.payload)
    return FinalBlock(candidate, proof.signature, proof.certificate)


class FinalChain:
    """The final blocks of one session, from whichever source; `count` of them have gone on to the ledger. `is_held`:
    liars make its certificates, and only a block that a final master block holds is believed.
    """

    def __init__(
        self,
        session_id: bytes,
        public_keys: tuple[bytes, ...],
        *,
        count: int = 0,
        top: bytes | None = None,
        slot: int = 0,
        is_held: bool = False,
        verify: Verify = ed25519.verify,
    ) -> None:
        self.session_id = session_id
        self.public_keys = public_keys
        self.count = count
        self._top = session_id if top is None else top
        self._slot = slot
        self._is_held = is_held
        self._verify = verify
        self._pending: list[FinalBlock] = []

    @property
    def next_number(self) -> int:
        """Number of the first block that is not here; blocks count from 1."""
        return self.count + len(self._pending) + 1

    def agreed(self, number: int, block: FinalBlock) -> list[FinalBlock]:
        """Take a block from our own agreement, which has proved it. Return the blocks that go on to the
        ledger.
        """
        if number != self.count + 1 or block.candidate.parent != self._top or self._is_held:
            return []  # somebody else told us before, or told us something else
        self._pending.clear()
        return self._believe([block])

    def offered(
        self, number: int, record: bytes, committed: Collection[BlockId] = ()
    ) -> list[FinalBlock] | None:
        """Take a block from another node. Return the blocks that go on to the ledger now; None if earlier
        blocks are missing. Raise if the proof does not hold.
        """
        if number <= self.count:
            return []
        if number > self.next_number or number > self.count + PENDING_MAX:
            return None
        block = decode_final_block(record)
        if self._is_held and id_of(block.candidate.payload) not in committed:
            return []
        place = number - self.count - 1
        known = self._pending[place] if place < len(self._pending) else None
        if known is not None and known.certificate.block == block.certificate.block:
            if block.certificate.kind is known.certificate.kind:
                return []
        else:
            known = None
        self._check(number, place, block)
        if known is None:
            del self._pending[place:]
            self._pending.append(block)
        elif block.certificate.kind is VoteKind.FINALISE:
            self._pending[place] = block
        return self.settle(committed)

    def settle(self, committed: Collection[BlockId]) -> list[FinalBlock]:
        """Return the blocks that are proved by now; `committed` are blocks that final master blocks hold."""
        for place in range(len(self._pending) - 1, -1, -1):
            block = self._pending[place]
            if block.certificate.kind is VoteKind.FINALISE or id_of(block.candidate.payload) in committed:
                proved, self._pending = self._pending[: place + 1], self._pending[place + 1 :]
                return self._believe(proved)
        return []

    def forget_pending(self) -> None:
        """Forget the blocks that wait for a proof: the node that sent them may have sent blocks that never
        became final.
        """
        self._pending.clear()

    def _believe(self, blocks: list[FinalBlock]) -> list[FinalBlock]:
        self.count += len(blocks)
        self._top, self._slot = blocks[-1].certificate.block, blocks[-1].candidate.slot
        return blocks

    def _check(self, number: int, place: int, block: FinalBlock) -> None:
        before = self._pending[place - 1] if place else None
        parent = self._top if before is None else before.certificate.block
        slot = self._slot if before is None else before.candidate.slot
        candidate, certificate = block.candidate, block.certificate
        fault = other = None
        if certificate.session_id != self.session_id:
            fault = f"its certificate is of session {certificate.session_id.hex()}"
        elif certificate.kind is VoteKind.SKIP or certificate.slot != candidate.slot:
            fault = f"its certificate is {certificate.kind.name} of slot {certificate.slot}"
        elif candidate.hash != certificate.block:
            fault = f"its certificate is of block {certificate.block.hex()}"
        elif candidate.parent != parent:
            other = f"it does not follow block {number - 1}"
        elif candidate.slot <= slot:
            fault = f"its slot {candidate.slot} is not after {slot}"
        if fault is None:
            check_count(certificate, len(self.public_keys))
            check(certificate, self.public_keys, self._verify)
            # Whoever passes the block on in agreement answers for this signature.
            leader = Session(self.session_id, self.public_keys, self.session_id).leader_of(candidate.slot)
            signed = signed_bytes(self.session_id, candidate.slot, VoteKind.PROPOSE, candidate.hash)
            if not self._verify(self.public_keys[leader], signed, block.signature):
                fault = f"the signature of its leader, validator {leader}, is not its own"
        if fault is not None or other is not None:
            raise RemoteProtocolError(
                f"block {number} of session {self.session_id.hex()}: {fault or other}",
                code=ErrorCode.NO_QUORUM,
                reason=OTHER_BRANCH if fault is None else "BadProof",
            )
