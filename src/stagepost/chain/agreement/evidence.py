"""Evidence: two votes of one validator that no honest one signs both. Anybody can check it who knows the
keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stagepost.chain.agreement.certificate import Verify
from stagepost.chain.agreement.votes import Vote, VoteKind, read_vote, signed_bytes
from stagepost.errors import TlDecodeError
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import Reader, Writer, constructor_id

EVIDENCE_PER_VALIDATOR_MAX = 4
"""Pieces of evidence against one validator, at most: a single one convicts; a few help to find out how it
came about.
"""

EVIDENCE_ID = constructor_id(
    "agreement.evidence session:int256 left:agreement.vote right:agreement.vote = agreement.Message"
)


class Evidence(msgspec.Struct, frozen=True):
    session_id: bytes
    left: Vote
    right: Vote

    @property
    def validator(self) -> int:
        return self.left.validator

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(EVIDENCE_ID)
        writer.write_int256(self.session_id)
        self.left.write(writer)
        self.right.write(writer)
        return writer.written()


def contradict(left: Vote, right: Vote) -> bool:
    """Return whether two votes of one validator contradict each other: two blocks for one purpose, or a vote
    to skip a slot and a vote that its block is final.
    """
    if (left.validator, left.slot) != (right.validator, right.slot):
        return False
    if left.kind is right.kind:
        return left.block != right.block
    return {left.kind, right.kind} == {VoteKind.SKIP, VoteKind.FINALISE}


def is_proof(evidence: Evidence, public_keys: Sequence[bytes], verify: Verify = ed25519.verify) -> bool:
    """Return whether both votes contradict each other and are signed by the same validator. The caller
    compares the session id.
    """
    if not contradict(evidence.left, evidence.right) or evidence.validator >= len(public_keys):
        return False
    return all(
        verify(
            public_keys[vote.validator],
            signed_bytes(evidence.session_id, vote.slot, vote.kind, vote.block),
            vote.signature,
        )
        for vote in (evidence.left, evidence.right)
    )


def read_evidence(reader: Reader) -> Evidence:
    start = reader.offset
    evidence = Evidence(reader.read_int256(), read_vote(reader), read_vote(reader))
    if not contradict(evidence.left, evidence.right):
        raise TlDecodeError(f"the two votes at offset {start} do not contradict each other", offset=start)
    return evidence
