"""What validators sign, say and store: strict binary forms, as the schema has them, each limit at its edge."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.agreement_keys import public_key_of, seed_of
from stagepost.chain.agreement import candidate, certificate, evidence, messages, queries, votes
from stagepost.chain.agreement.candidate import PAYLOAD_BYTES_MAX, Candidate
from stagepost.chain.agreement.certificate import Certificate, check, decode_certificate
from stagepost.chain.agreement.evidence import Evidence, contradict, is_proof
from stagepost.chain.agreement.messages import (
    FRAME_BYTES_MAX,
    PROOFS_MAX,
    FinalBlock,
    Proposal,
    Want,
    decode_final_block,
    decode_message,
)
from stagepost.chain.agreement.queries import (
    CANDIDATES_ASKED_MAX,
    FRAMES_MAX,
    SKIPS_ASKED_MAX,
    GetProgress,
    Progress,
    decode_answer,
    decode_query,
)
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import (
    NO_BLOCK,
    VALIDATORS_MAX,
    Vote,
    VoteKind,
    faulty_max,
    quorum,
    signed_bytes,
)
from stagepost.errors import DecodeError, ErrorCode, LocalProtocolError, RemoteProtocolError
from stagepost.ground.crypto import ed25519
from tests.fuzz.checks_chain import chain_samples
from tests.worlds.chain import agreement_checker
from tests.worlds.chain.agreement_world import SESSION_ID, START, session_of

ROOT = Path(__file__).parents[4]
BLOCK = bytes(range(32))
KEYS = session_of(7).public_keys

hashes = st.binary(min_size=32, max_size=32)
slots = st.integers(1, 2**31 - 1)
indexes = st.integers(0, VALIDATORS_MAX - 1)
signatures = st.binary(min_size=64, max_size=64)
subjects = st.sampled_from([VoteKind.NOTARISE, VoteKind.FINALISE]).flatmap(
    lambda kind: st.tuples(st.just(kind), hashes)
) | st.just((VoteKind.SKIP, NO_BLOCK))
any_vote = st.builds(
    lambda who, slot, subject, signature: Vote(who, slot, subject[0], subject[1], signature),
    indexes, slots, subjects, signatures,
)  # fmt: skip
any_certificate = st.builds(
    lambda session, slot, subject, signers: Certificate(session, slot, subject[0], subject[1], tuple(sorted(signers.items()))),
    hashes, slots, subjects, st.dictionaries(indexes, signatures, max_size=5),
)  # fmt: skip
any_candidate = st.builds(Candidate, slots, hashes, st.binary(max_size=600))
any_proposal = st.builds(
    Proposal, any_candidate, signatures, st.lists(any_certificate, max_size=3).map(tuple)
)
any_evidence = st.builds(
    lambda who, slot, session, ones: Evidence(
        session,
        Vote(who, slot, VoteKind.NOTARISE, ones[0], bytes(64)),
        Vote(who, slot, VoteKind.NOTARISE, ones[1], bytes(64)),
    ),
    indexes, slots, hashes, st.lists(hashes, min_size=2, max_size=2, unique=True),
)  # fmt: skip
any_message = any_vote | any_certificate | any_proposal | any_evidence | st.builds(Want, slots)


def signed(who: int, slot: int, kind: VoteKind, block: bytes, session: bytes = SESSION_ID) -> Vote:
    return Vote(who, slot, kind, block, ed25519.sign(seed_of(who), signed_bytes(session, slot, kind, block)))


def certificate_of(signers: list[int], kind: VoteKind = VoteKind.FINALISE) -> Certificate:
    made = [signed(who, 9, kind, BLOCK) for who in signers]
    return Certificate(SESSION_ID, 9, kind, BLOCK, tuple((one.validator, one.signature) for one in made))


# The schema


def test_every_line_of_the_schema_is_declared_in_the_code_and_gives_the_same_id() -> None:
    text = (ROOT / "specs/agreement.tl").read_text()
    lines = [line.strip() for line in text.splitlines() if line and not line.startswith(("//", "---"))]
    in_schema = {
        zlib.crc32(line.rstrip(";").replace("(", "").replace(")", "").encode()): line.split()[0]
        for line in lines
    }
    modules = (candidate, certificate, evidence, messages, queries, votes)
    in_code = {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("_ID") and isinstance(value, int)
    }

    always_bare = {"agreement.signature", "agreement.candidate"}
    assert in_code == {one for one, name in in_schema.items() if name not in always_bare}, "or a typing error"
    assert len(in_schema) == 12


# Reading and writing


@given(any_message)
def test_messages_are_read_as_they_were_written(message: Any) -> None:
    assert decode_message(message.encode()) == message


@given(any_message, st.data())
def test_no_message_can_be_cut_short_or_grow(message: Any, data: st.DataObject) -> None:
    frame = message.encode()
    with pytest.raises(DecodeError):
        decode_message(frame[: data.draw(st.integers(0, len(frame) - 1))])
    with pytest.raises(DecodeError):
        decode_message(frame + b"\0\0\0\0")


@given(st.binary(max_size=300))
def test_what_is_read_would_be_written_the_same_way(data: bytes) -> None:
    for tag in (votes.VOTE_ID, certificate.CERTIFICATE_ID, messages.WANT_ID, evidence.EVIDENCE_ID):
        frame = struct.pack("<I", tag) + data
        try:
            message = decode_message(frame)
        except DecodeError:
            continue
        assert message.encode() == frame


@given(st.builds(FinalBlock, any_candidate, signatures, any_certificate))
def test_final_blocks_are_read_as_they_were_written(block: FinalBlock) -> None:
    assert decode_final_block(block.encode()) == block


@given(
    st.builds(
        GetProgress,
        st.integers(0, 2**31 - 1),
        slots,
        slots,
        st.booleans(),
        st.lists(hashes, max_size=CANDIDATES_ASKED_MAX).map(tuple),
        st.lists(slots, max_size=9).map(tuple),
    )
)
def test_queries_are_read_as_they_were_written(query: GetProgress) -> None:
    assert decode_query(query.encode()) == query


@given(st.builds(Progress, slots, st.lists(st.binary(max_size=99), max_size=9).map(tuple)))
def test_answers_are_read_as_they_were_written(answer: Progress) -> None:
    assert decode_answer(answer.encode()) == answer


def test_a_payload_has_256_kib_and_no_more() -> None:
    largest = Proposal(Candidate(1, BLOCK, bytes(PAYLOAD_BYTES_MAX)), bytes(64))
    assert decode_message(largest.encode()) == largest
    with pytest.raises(DecodeError, match="262145"):
        decode_message(Proposal(Candidate(1, BLOCK, bytes(PAYLOAD_BYTES_MAX + 1)), bytes(64)).encode())


def test_the_largest_session_s_largest_proposal_fits_into_a_frame() -> None:
    signers = tuple((who, bytes(64)) for who in range(quorum(VALIDATORS_MAX)))
    proof = Certificate(SESSION_ID, 1, VoteKind.SKIP, NO_BLOCK, signers)
    proposal = Proposal(Candidate(1, BLOCK, bytes(PAYLOAD_BYTES_MAX)), bytes(64), (proof,) * PROOFS_MAX)
    assert len(proposal.encode()) <= FRAME_BYTES_MAX
    assert decode_message(proposal.encode()) == proposal


def test_a_proposal_has_16_proofs_and_no_more() -> None:
    proof = certificate_of([0, 1, 2])
    fits = Proposal(Candidate(1, BLOCK, b""), bytes(64), (proof,) * PROOFS_MAX)
    assert decode_message(fits.encode()) == fits
    with pytest.raises(DecodeError, match="17 items"):
        decode_message(Proposal(fits.candidate, bytes(64), (proof,) * (PROOFS_MAX + 1)).encode())


@pytest.mark.parametrize(
    ("fits", "does_not"),
    [
        (
            GetProgress(0, 1, 1, False, (BLOCK,) * CANDIDATES_ASKED_MAX),
            GetProgress(0, 1, 1, False, (BLOCK,) * 9),
        ),
        (GetProgress(0, 1, 1, False, (), (1,) * SKIPS_ASKED_MAX), GetProgress(0, 1, 1, False, (), (1,) * 65)),
    ],
)
def test_a_query_asks_for_so_much_and_no_more(fits: GetProgress, does_not: GetProgress) -> None:
    assert decode_query(fits.encode()) == fits
    with pytest.raises(DecodeError, match="at most"):
        decode_query(does_not.encode())


def test_an_answer_has_1024_frames_and_no_more() -> None:
    fits = Progress(1, (b"\0",) * FRAMES_MAX)
    assert decode_answer(fits.encode()) == fits
    with pytest.raises(DecodeError, match="at most 1024"):
        decode_answer(Progress(1, (b"\0",) * (FRAMES_MAX + 1)).encode())


@pytest.mark.parametrize("slot", [0, -1])
def test_slots_count_from_1(slot: int) -> None:
    with pytest.raises(DecodeError, match="slots count from 1"):
        decode_message(Want(slot).encode())


def test_there_is_no_fifth_kind_of_vote() -> None:
    frame = bytearray(Vote(0, 1, VoteKind.FINALISE, BLOCK, bytes(64)).encode())
    frame[8] = 4
    with pytest.raises(DecodeError, match="kind of vote at offset 8 is 4"):
        decode_message(bytes(frame))


def test_a_vote_to_skip_names_no_block() -> None:
    with pytest.raises(DecodeError, match="it must be zero"):
        decode_message(Vote(0, 1, VoteKind.SKIP, BLOCK, bytes(64)).encode())


def test_there_is_no_certificate_of_a_proposal() -> None:
    with pytest.raises(DecodeError, match="signed by one"):
        decode_certificate(Certificate(SESSION_ID, 1, VoteKind.PROPOSE, BLOCK, ()).encode())


@pytest.mark.parametrize("signers", [(1, 1), (2, 1)])
def test_signers_stand_in_rising_order_each_once(signers: tuple[int, ...]) -> None:
    made = Certificate(SESSION_ID, 1, VoteKind.FINALISE, BLOCK, tuple((who, bytes(64)) for who in signers))
    with pytest.raises(DecodeError, match="each signs once, in order"):
        decode_certificate(made.encode())


def test_there_are_128_validators_and_no_more() -> None:
    assert decode_message(Vote(127, 1, VoteKind.FINALISE, BLOCK, bytes(64)).encode())
    with pytest.raises(DecodeError, match="indexes are 0 to 127"):
        decode_message(Vote(128, 1, VoteKind.FINALISE, BLOCK, bytes(64)).encode())
    keys = tuple(public_key_of(one) for one in range(VALIDATORS_MAX + 1))
    assert Session(SESSION_ID, keys[:-1], START).size == VALIDATORS_MAX
    with pytest.raises(LocalProtocolError, match="1 to 128 validators, not 129"):
        Session(SESSION_ID, keys, START)
    with pytest.raises(LocalProtocolError, match="not 0"):
        Session(SESSION_ID, (), START)
    with pytest.raises(LocalProtocolError, match="one key"):
        Session(SESSION_ID, keys[:1] * 2, START)


def test_the_hash_of_a_block_is_as_anybody_would_compute_it() -> None:
    for size in (0, 3, 253, 254, 1_000):
        one = Candidate(7, BLOCK, bytes(size))
        assert one.hash == agreement_checker.block_hash(7, BLOCK, bytes(size))


def test_the_hash_of_a_chains_block_covers_its_root_as_anybody_would_compute_it() -> None:
    blocks = [one for one in chain_samples() if agreement_checker.root_hash(one) != NO_BLOCK]
    assert len(blocks) == 2, "one of a shard, one of the masterchain"
    for payload in blocks:
        assert Candidate(7, BLOCK, payload).hash == agreement_checker.block_hash(7, BLOCK, payload)


# Certificates and evidence


@given(st.integers(1, VALIDATORS_MAX))
def test_two_quorums_share_an_honest_validator_and_the_honest_are_one(size: int) -> None:
    assert 2 * quorum(size) - size > faulty_max(size)
    assert size - faulty_max(size) >= quorum(size)
    assert 3 * faulty_max(size) < size


def test_five_of_seven_make_a_certificate_and_four_do_not() -> None:
    check(certificate_of([0, 2, 3, 5, 6]), KEYS)
    agreement_checker.read_certificate(certificate_of([0, 2, 3, 5, 6]).encode(), KEYS, SESSION_ID)
    with pytest.raises(RemoteProtocolError, match="4 validators signed, 5 of 7 must") as caught:
        check(certificate_of([0, 2, 3, 5]), KEYS)
    assert caught.value.code is ErrorCode.NO_QUORUM
    with pytest.raises(AssertionError):
        agreement_checker.read_certificate(certificate_of([0, 2, 3, 5]).encode(), KEYS, SESSION_ID)


@pytest.mark.parametrize("field", ["session_id", "slot", "kind", "block", "signatures"])
def test_a_certificate_covers_all_that_it_says(field: str) -> None:
    good = certificate_of([0, 1, 2, 3, 4])
    other: dict[str, Any] = {
        "session_id": START,
        "slot": 10,
        "kind": VoteKind.NOTARISE,
        "block": START,
        "signatures": (*good.signatures[:4], (5, good.signatures[4][1])),
    }
    fields = {name: getattr(good, name) for name in good.__struct_fields__} | {field: other[field]}
    with pytest.raises(RemoteProtocolError, match="not its own"):
        check(Certificate(**fields), KEYS)


def test_a_certificate_of_strangers_or_doubles_is_none() -> None:
    with pytest.raises(RemoteProtocolError, match="validator 6 is not one of the 4"):
        check(certificate_of([0, 1, 6]), KEYS[:4])
    good = certificate_of([0, 1, 2, 3, 4])
    doubled = Certificate(good.session_id, 9, good.kind, BLOCK, (good.signatures[0],) * 5)
    with pytest.raises(RemoteProtocolError, match="each once"):
        check(doubled, KEYS)


CONTRADICTIONS = [
    (VoteKind.PROPOSE, BLOCK, VoteKind.PROPOSE, START, True),
    (VoteKind.NOTARISE, BLOCK, VoteKind.NOTARISE, START, True),
    (VoteKind.FINALISE, BLOCK, VoteKind.FINALISE, START, True),
    (VoteKind.SKIP, NO_BLOCK, VoteKind.FINALISE, BLOCK, True),
    (VoteKind.SKIP, NO_BLOCK, VoteKind.NOTARISE, BLOCK, False),
    (VoteKind.NOTARISE, BLOCK, VoteKind.FINALISE, BLOCK, False),
    (VoteKind.NOTARISE, BLOCK, VoteKind.NOTARISE, BLOCK, False),
    (VoteKind.PROPOSE, START, VoteKind.NOTARISE, BLOCK, False),
]


@pytest.mark.parametrize(("kind", "block", "other_kind", "other_block", "is_one"), CONTRADICTIONS)
def test_what_an_honest_validator_never_signs_both_is_evidence(
    kind: VoteKind, block: bytes, other_kind: VoteKind, other_block: bytes, is_one: bool
) -> None:
    left, right = signed(3, 8, kind, block), signed(3, 8, other_kind, other_block)
    assert contradict(left, right) is contradict(right, left) is is_one
    found = Evidence(SESSION_ID, left, right)
    assert is_proof(found, KEYS) is is_one
    if is_one:
        assert decode_message(found.encode()) == found
    else:
        with pytest.raises(DecodeError, match="do not contradict"):
            decode_message(found.encode())


def test_evidence_of_others_slots_keys_or_sessions_proves_nothing() -> None:
    left = signed(3, 8, VoteKind.NOTARISE, BLOCK)
    assert not contradict(left, signed(3, 9, VoteKind.NOTARISE, START))
    assert not contradict(left, signed(2, 8, VoteKind.NOTARISE, START))
    forged = Vote(3, 8, VoteKind.NOTARISE, START, signed(2, 8, VoteKind.NOTARISE, START).signature)
    assert not is_proof(Evidence(SESSION_ID, left, forged), KEYS)
    assert not is_proof(Evidence(START, left, signed(3, 8, VoteKind.NOTARISE, START)), KEYS)
    assert not is_proof(Evidence(SESSION_ID, left, signed(3, 8, VoteKind.NOTARISE, START)), KEYS[:3])
