"""What is believed of somebody who says that blocks are final: nothing without a proof."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec
import pytest

from rigs.agreement_keys import public_key_of, seed_of
from rigs.chain_messages import some_primes
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.messages import FinalBlock
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import NO_BLOCK, VoteKind, signed_bytes
from stagepost.chain.history import KeptBlock
from stagepost.chain.node.final_proof import PENDING_MAX, FinalChain, Proof, final_block, kept_block
from stagepost.chain.shard_block import id_of
from stagepost.errors import DecodeError, ErrorCode, RemoteProtocolError
from stagepost.ground.crypto import ed25519
from tests.worlds.chain.chain_world import DecidedChain

SESSION = sha256(b"a session").digest()
OTHER = sha256(b"another session").digest()
KEYS = tuple(public_key_of(number) for number in range(4))
QUORUM = (0, 1, 2)


def certificate(
    slot: int,
    kind: VoteKind,
    block: bytes,
    signers: tuple[int, ...] = QUORUM,
    session: bytes = SESSION,
) -> Certificate:
    signed = signed_bytes(session, slot, kind, block)
    return Certificate(
        session, slot, kind, block, tuple((who, ed25519.sign(seed_of(who), signed)) for who in signers)
    )


def block(
    slot: int, parent: bytes = SESSION, kind: VoteKind = VoteKind.FINALISE, payload: bytes = b"payload"
) -> FinalBlock:
    candidate = Candidate(slot, parent, payload)
    leader = Session(SESSION, KEYS, SESSION).leader_of(slot)
    proposed = signed_bytes(SESSION, slot, VoteKind.PROPOSE, candidate.hash)
    signature = ed25519.sign(seed_of(leader), proposed)
    return FinalBlock(candidate, signature, certificate(slot, kind, candidate.hash))


def chain() -> FinalChain:
    return FinalChain(SESSION, KEYS)


def hash_of(one: FinalBlock) -> bytes:
    return one.certificate.block


def test_a_block_and_its_proof_are_the_same_after_they_were_kept() -> None:
    one = block(3)
    kept = kept_block(one)
    assert final_block(KeptBlock.decode(kept.encode())) == one
    assert Proof.decode(kept.certificate).encode() == kept.certificate
    with pytest.raises(DecodeError):
        Proof.decode(kept.certificate + b"\0\0\0\0")


def test_blocks_with_a_certificate_are_believed_in_order_each_once() -> None:
    first = block(1)
    second = block(4, hash_of(first))
    follower = chain()
    assert follower.offered(2, second.encode()) is None
    assert follower.offered(1, first.encode()) == [first]
    assert follower.offered(1, first.encode()) == []
    assert follower.offered(2, second.encode()) == [second]
    assert (follower.count, follower.next_number) == (2, 3)


def test_a_block_without_one_waits_for_a_later_one_that_rests_on_it() -> None:
    first = block(1, kind=VoteKind.NOTARISE)
    second = block(2, hash_of(first), VoteKind.NOTARISE)
    third = block(3, hash_of(second))
    follower = chain()
    assert follower.offered(1, first.encode()) == []
    assert follower.offered(2, second.encode()) == []
    assert (follower.count, follower.next_number) == (0, 3)
    assert follower.offered(3, third.encode()) == [first, second, third]


def test_a_better_certificate_of_a_block_that_waits_is_taken() -> None:
    first = block(1, kind=VoteKind.NOTARISE)
    better = block(1)
    second = block(2, hash_of(first), VoteKind.NOTARISE)
    follower = chain()
    follower.offered(1, first.encode())
    follower.offered(2, second.encode())
    assert follower.offered(1, first.encode()) == []
    assert follower.offered(1, better.encode()) == [better]
    assert follower.next_number == 3


def test_a_block_that_never_became_final_gives_way_to_the_one_that_did() -> None:
    lost = block(1, kind=VoteKind.NOTARISE, payload=b"lost")
    won = block(2, payload=b"won")
    follower = chain()
    assert follower.offered(1, lost.encode()) == []
    assert follower.offered(2, block(2, hash_of(lost), VoteKind.NOTARISE).encode()) == []
    assert follower.offered(1, won.encode()) == [won]
    assert follower.next_number == 2


def test_a_block_that_the_masterchain_holds_is_final_by_that() -> None:
    decided = DecidedChain()
    payload = decided.shard_block(decided.whole.session_id, [some_primes(1)]).payload
    block_id = id_of(payload)
    assert block_id is not None
    one = block(1, kind=VoteKind.NOTARISE, payload=payload)
    follower = chain()
    assert follower.offered(1, one.encode()) == []
    assert follower.settle(set()) == []
    assert follower.settle({block_id}) == [one]


def test_what_our_own_agreement_tells_goes_on_once_whoever_was_first() -> None:
    first = block(1)
    second = block(2, hash_of(first))
    follower = chain()
    assert follower.offered(1, first.encode()) == [first]
    assert follower.agreed(1, first) == []
    assert follower.agreed(2, second) == [second]
    assert follower.offered(2, second.encode()) == []


def test_no_more_than_a_named_number_wait_for_their_proof() -> None:
    follower = chain()
    parent = SESSION
    for number in range(1, PENDING_MAX + 1):
        one = block(number, parent, VoteKind.NOTARISE)
        assert follower.offered(number, one.encode()) == []
        parent = hash_of(one)
    assert follower.offered(PENDING_MAX + 1, block(PENDING_MAX + 1, parent).encode()) is None
    follower.forget_pending()
    assert follower.next_number == 1


def changed(**fields: object) -> Callable[[FinalBlock], FinalBlock]:
    return lambda one: msgspec.structs.replace(
        one, certificate=msgspec.structs.replace(one.certificate, **fields)
    )


def forged(one: FinalBlock) -> FinalBlock:
    return changed(signatures=((0, bytes(64)), *one.certificate.signatures[1:]))(one)


BAD: dict[str, Callable[[FinalBlock], FinalBlock]] = {
    "too few signatures": changed(
        signatures=certificate(1, VoteKind.FINALISE, hash_of(block(1)), (0, 1)).signatures
    ),
    "a signature that is not the validator's": forged,
    "a validator who is none of them": lambda one: changed(
        signatures=(*one.certificate.signatures[:2], (4, one.certificate.signatures[2][1]))
    )(one),
    "of another session": lambda one: msgspec.structs.replace(
        one, certificate=certificate(1, VoteKind.FINALISE, hash_of(one), session=OTHER)
    ),
    "that the slot was skipped": lambda one: msgspec.structs.replace(
        one, certificate=certificate(1, VoteKind.SKIP, NO_BLOCK)
    ),
    "of another block": lambda one: msgspec.structs.replace(
        one, certificate=certificate(1, VoteKind.FINALISE, OTHER)
    ),
    "of another slot": lambda one: msgspec.structs.replace(
        one, certificate=certificate(2, VoteKind.FINALISE, hash_of(one))
    ),
    "upon another parent": lambda one: block(1, OTHER),
    "of a leader who did not propose it": lambda one: msgspec.structs.replace(one, signature=bytes(64)),
}


@pytest.mark.parametrize("name", BAD)
def test_a_certificate_that_proves_nothing_is_refused(name: str) -> None:
    follower = chain()
    with pytest.raises(RemoteProtocolError) as refused:
        follower.offered(1, BAD[name](block(1)).encode())
    assert refused.value.code is ErrorCode.NO_QUORUM
    assert follower.next_number == 1
    assert follower.offered(1, block(1).encode()) == [block(1)]


def test_a_slot_that_does_not_rise_is_refused() -> None:
    first = block(5)
    follower = chain()
    follower.offered(1, first.encode())
    with pytest.raises(RemoteProtocolError):
        follower.offered(2, block(5, hash_of(first)).encode())
