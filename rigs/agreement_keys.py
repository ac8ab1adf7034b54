"""Keys of the validators of an agreement, by number."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256

from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.messages import FinalBlock
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import VoteKind, signed_bytes
from stagepost.ground.crypto import ed25519

KEYS_MAX = 64


@lru_cache(maxsize=KEYS_MAX)
def seed_of(index: int) -> bytes:
    return sha256(b"validator %d" % index).digest()


@lru_cache(maxsize=KEYS_MAX)
def public_key_of(index: int) -> bytes:
    return ed25519.public_key(seed_of(index))


def certified_by_all(
    session: Session,
    candidate: Candidate,
    kind: VoteKind = VoteKind.FINALISE,
    seeds: Mapping[bytes, bytes] | None = None,
) -> FinalBlock:
    """Return the candidate as its leader proposed it, with a certificate that all members signed. `seeds` are by public
    key; those of this module if there are none.
    """
    signing = seeds or {public_key_of(number): seed_of(number) for number in range(KEYS_MAX)}

    def sign(place: int, kind: VoteKind) -> bytes:
        signed = signed_bytes(session.session_id, candidate.slot, kind, candidate.hash)
        return ed25519.sign(signing[session.public_keys[place]], signed)

    signatures = tuple((place, sign(place, kind)) for place in range(session.size))
    certificate = Certificate(session.session_id, candidate.slot, kind, candidate.hash, signatures)
    return FinalBlock(candidate, sign(session.leader_of(candidate.slot), VoteKind.PROPOSE), certificate)
