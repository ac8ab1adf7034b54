"""One validator by itself: what it says, when, what it refuses and what it remembers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from rigs.agreement_keys import seed_of
from stagepost.chain.agreement import ballot
from stagepost.chain.agreement.book import SLOTS_AHEAD_MAX, VOTES_KEPT_SLOTS
from stagepost.chain.agreement.candidate import PAYLOAD_BYTES_MAX, Candidate
from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.effects import (
    Ask,
    BlamedValidator,
    Broadcast,
    CheckCandidate,
    DisputedBlock,
    Effect,
    FinalisedBlock,
    Halt,
    Persist,
    Propose,
    RecoveredVotes,
    RefusedPeer,
    Reply,
)
from stagepost.chain.agreement.evidence import EVIDENCE_PER_VALIDATOR_MAX
from stagepost.chain.agreement.member import Member
from stagepost.chain.agreement.messages import FRAME_BYTES_MAX, Proposal, Want, decode_message
from stagepost.chain.agreement.pacing import MemberOptions
from stagepost.chain.agreement.queries import Progress
from stagepost.chain.agreement.votes import NO_BLOCK, Vote, VoteKind, signed_bytes
from stagepost.errors import LocalProtocolError
from stagepost.ground.crypto import ed25519
from tests.worlds.chain.agreement_world import SESSION_ID, START, session_of

ROOT = Path(__file__).parents[4]
OPTIONS = MemberOptions(start_wait_s=1.0, idle_period_s=None)
SESSION = session_of(4)
OTHER = bytes([1]) * 32
Kind = TypeVar("Kind")


def leading(slot: int) -> int:
    return SESSION.leader_of(slot)


FOLLOWER = leading(3)
"""Leads none of the first two slots, and signs none of the certificates below."""

THE_OTHERS = tuple(one for one in range(4) if one != FOLLOWER)


class Driven:
    """A member whose disk is quick, and whose effects are kept."""

    def __init__(self, index: int, options: MemberOptions = OPTIONS, *, writes: bool = True) -> None:
        self.index = index
        self.writes = writes
        self.verified = 0
        self.effects: list[Effect] = []
        self.disk: list[bytes] = []
        self.now = 0.0
        self.member = Member(SESSION, index, seed_of(index), Random(1), 0.0, options, verify=self.verify)

    def verify(self, key: bytes, message: bytes, signature: bytes) -> bool:
        self.verified += 1
        return ed25519.verify(key, message, signature)

    def take(self, effects: list[Effect]) -> list[Effect]:
        """Everything that came of an event, and of the writing after it."""
        taken = list(effects)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Persist) and self.writes:
                self.disk += [record.frame for record in effect.records]
                taken += self.take(self.member.persisted(effect.number, self.now))
        return taken

    def start(self) -> Driven:
        asked = all_of(Ask, self.take(self.member.tick(self.now)))
        for ask in asked:
            self.take(self.member.answered(ask.peer, ask.number, Progress(1, ()).encode(), self.now))
        self.now += 1.0
        self.take(self.member.tick(self.now))
        assert self.member.is_started
        return self

    def hear(self, message: Vote | Certificate | Proposal | Want, peer: int = 3) -> list[Effect]:
        return self.take(self.member.frame_received(peer, message.encode(), self.now))

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.take(self.member.tick(self.now))


def all_of(kind: type[Kind], effects: list[Effect]) -> list[Kind]:
    return [one for one in effects if isinstance(one, kind)]


def said(effects: list[Effect]) -> list[Vote]:
    spoken = [decode_message(one.frame) for one in all_of(Broadcast, effects)]
    return [one for one in spoken if isinstance(one, Vote)]


def signed(who: int, slot: int, kind: VoteKind, block: bytes = NO_BLOCK) -> Vote:
    return Vote(
        who, slot, kind, block, ed25519.sign(seed_of(who), signed_bytes(SESSION_ID, slot, kind, block))
    )


def certified(
    slot: int, kind: VoteKind, block: bytes = NO_BLOCK, signers: tuple[int, ...] = THE_OTHERS
) -> Certificate:
    made = [signed(who, slot, kind, block) for who in signers]
    return Certificate(SESSION_ID, slot, kind, block, tuple((one.validator, one.signature) for one in made))


def proposal(
    slot: int, parent: bytes = START, payload: bytes = b"block", proofs: tuple[Certificate, ...] = ()
) -> Proposal:
    candidate = Candidate(slot, parent, payload)
    return Proposal(
        candidate, signed(leading(slot), slot, VoteKind.PROPOSE, candidate.hash).signature, proofs
    )


def follower() -> Driven:
    return Driven(FOLLOWER).start()


# Speaking


def test_a_vote_is_spoken_only_after_it_was_written() -> None:
    driven = follower()
    driven.writes = False
    offered = proposal(1)
    driven.hear(offered)
    effects = driven.take(driven.member.checked(offered.candidate.hash, None, driven.now))
    (write,) = all_of(Persist, effects)
    assert [type(decode_message(one.frame)) for one in write.records] == [Proposal, Vote]
    assert not said(effects)
    (vote,) = said(driven.member.persisted(write.number, driven.now))
    assert (vote.slot, vote.kind, vote.block) == (1, VoteKind.NOTARISE, offered.candidate.hash)


def test_a_candidate_is_shown_only_after_it_was_written_and_is_the_same_after_a_crash() -> None:
    driven = Driven(leading(1))
    driven.writes = False
    driven.start()
    (asked,) = all_of(Propose, driven.effects)
    assert asked == Propose(1, START, False)
    effects = driven.take(driven.member.proposed(1, b"mine", driven.now))
    (write,) = all_of(Persist, effects)
    assert not all_of(Broadcast, effects)

    again = Driven(leading(1))
    again.take(again.member.restore([one.frame for one in write.records], 0.0))
    again.start()
    shown = [decode_message(one.frame) for one in all_of(Broadcast, again.effects)]
    assert [one.candidate.payload for one in shown if isinstance(one, Proposal)] == [b"mine"]
    assert not all_of(Propose, again.effects), "it has proposed already"


def test_nothing_is_said_before_the_start_and_that_takes_a_quorum_of_answers() -> None:
    driven = Driven(FOLLOWER)
    offered = proposal(1)
    driven.take(driven.member.tick(0.0))
    driven.hear(offered)
    driven.take(driven.member.checked(offered.candidate.hash, None, 0.0))
    ask, _, _ = all_of(Ask, driven.effects)
    driven.take(driven.member.answered(ask.peer, ask.number, Progress(1, ()).encode(), 0.0))
    driven.wait(5.0)
    assert not driven.member.is_started
    assert not said(driven.effects)


def votes_after_a_recovered_final_vote() -> list[str]:
    """Return what a validator signs in a slot that lasts too long, after others returned its vote FINALISE there, which its
    own disk has lost."""
    driven = Driven(FOLLOWER)
    offered = proposal(1)
    recovered = signed(FOLLOWER, 1, VoteKind.FINALISE, offered.candidate.hash)
    for ask in all_of(Ask, driven.take(driven.member.tick(0.0))):
        shown = Progress(1, (recovered.encode(),)).encode()
        driven.take(driven.member.answered(ask.peer, ask.number, shown, 0.0))
    driven.wait(1.0)
    driven.hear(offered)
    for _ in range(20):
        driven.wait(OPTIONS.delta_s * 3)
    records = [decode_message(frame) for frame in driven.disk]
    own = [one for one in records if isinstance(one, Vote) and one.validator == FOLLOWER]
    return sorted({f"{one.slot} {one.kind.name}" for one in [*own, *said(driven.effects)] if one.slot == 1})


def contradictions_signed() -> list[str]:
    """Return the pairs of votes that a ballot signs although the first one forbids the second."""
    kinds = [
        (VoteKind.FINALISE, VoteKind.SKIP),
        (VoteKind.SKIP, VoteKind.FINALISE),
        *((kind, kind) for kind in VoteKind),
    ]
    found = []
    for first, second in kinds:
        votes = Driven(FOLLOWER).member._ballot
        votes.vote(1, first, OTHER)
        try:
            votes.vote(1, second, OTHER)
        except LocalProtocolError:
            continue
        found.append(f"{first.name} {second.name}")
    return found


def test_a_final_vote_that_others_returned_is_not_contradicted_by_a_skip() -> None:
    assert votes_after_a_recovered_final_vote() == ["1 FINALISE"]


def test_a_ballot_signs_no_contradiction() -> None:
    assert contradictions_signed() == []


@pytest.mark.parametrize("option", ["-B", "-O", "-OO"])
def test_votes_are_as_safe_where_python_leaves_asserts_out(option: str) -> None:
    program = (
        f"from {__name__} import contradictions_signed, votes_after_a_recovered_final_vote as votes\n"
        "print(__debug__, votes(), contradictions_signed())"
    )
    ran = subprocess.run(
        [sys.executable, option, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split(maxsplit=1) == [str(option == "-B"), "['1 FINALISE'] []\n"], ran.stderr


def _skips_what_it_called_final(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: Member) -> None:
        self._ballot.vote(self.book.current, VoteKind.SKIP, NO_BLOCK)

    patch.setattr(Member, "_give_up", give_up)
    patch.setattr(ballot, "EXCLUDES", {})


def test_a_skip_of_what_was_called_final_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant the defect: neither the member nor its ballot looks at the vote that was recovered."""
    _skips_what_it_called_final(monkeypatch)
    assert votes_after_a_recovered_final_vote() == ["1 FINALISE", "1 SKIP"]
    assert contradictions_signed() == ["FINALISE SKIP", "SKIP FINALISE"]


def test_a_slot_that_lasts_too_long_is_skipped_and_what_was_skipped_is_not_called_final() -> None:
    driven = follower()
    offered = proposal(1)
    driven.hear(offered)
    (vote,) = said(driven.wait(OPTIONS.delta_s * 3))
    assert (vote.slot, vote.kind) == (1, VoteKind.SKIP)
    effects = driven.hear(certified(1, VoteKind.NOTARISE, offered.candidate.hash))
    assert driven.member.slot == 2
    assert not said(effects)


def test_what_is_called_final_was_not_skipped_and_ends_the_slot() -> None:
    driven = follower()
    offered = proposal(1)
    driven.hear(offered)
    effects = driven.hear(certified(1, VoteKind.NOTARISE, offered.candidate.hash))
    (vote,) = said(effects)
    assert (vote.slot, vote.kind, vote.block) == (1, VoteKind.FINALISE, offered.candidate.hash)
    assert driven.member.slot == 2
    assert decode_message(all_of(Broadcast, effects)[0].frame) == certified(
        1, VoteKind.NOTARISE, offered.candidate.hash
    )


def test_a_block_is_final_with_a_quorum_and_its_ancestors_with_it_in_order() -> None:
    driven = follower()
    first = proposal(1)
    second = proposal(2, first.candidate.hash)
    driven.hear(first)
    driven.hear(certified(1, VoteKind.NOTARISE, first.candidate.hash))
    driven.hear(second)
    final = certified(2, VoteKind.FINALISE, second.candidate.hash)
    told = all_of(FinalisedBlock, driven.hear(final))
    assert [(one.slot, one.block_hash, one.certificate.kind) for one in told] == [
        (1, first.candidate.hash, VoteKind.NOTARISE),
        (2, second.candidate.hash, VoteKind.FINALISE),
    ]
    assert not all_of(FinalisedBlock, driven.hear(final))
    assert driven.member.book.final_slot == 2
    assert [number for number, _ in driven.member.book.slots()] == [3], "of what is final nothing remains"


def test_those_above_are_asked_about_parents_first_and_a_refused_block_gets_no_vote() -> None:
    driven = follower()
    first = proposal(1)
    second = proposal(
        2, first.candidate.hash, proofs=(certified(1, VoteKind.NOTARISE, first.candidate.hash),)
    )
    driven.hear(second)
    assert not all_of(CheckCandidate, driven.effects)
    effects = driven.hear(first)
    assert [one.slot for one in all_of(CheckCandidate, effects)] == [1]
    effects = driven.take(driven.member.checked(first.candidate.hash, None, driven.now))
    assert [one.slot for one in all_of(CheckCandidate, effects)] == [2]
    effects = driven.take(driven.member.checked(second.candidate.hash, "it is bad", driven.now))
    assert not said(effects)


@pytest.mark.parametrize("is_still_bad", [True, False])
def test_what_a_quorum_notarised_is_asked_about_again_and_built_upon_unless_it_is_still_bad(
    is_still_bad: bool,
) -> None:
    driven = follower()
    first = proposal(1)
    driven.hear(first)
    driven.take(driven.member.checked(first.candidate.hash, "its order is not ours", driven.now))
    effects = driven.hear(certified(1, VoteKind.NOTARISE, first.candidate.hash))
    assert not all_of(DisputedBlock, effects)
    (again,) = all_of(CheckCandidate, effects)
    assert (again.block_hash, again.is_notarised) == (first.candidate.hash, True)
    reason = "its state is wrong" if is_still_bad else None
    effects = driven.take(driven.member.checked(first.candidate.hash, reason, driven.now))
    disputed = [DisputedBlock(1, first.candidate.hash, "its state is wrong")] if is_still_bad else []
    assert all_of(DisputedBlock, effects) == disputed
    # An answer to the first question that comes late makes no good block bad.
    driven.take(driven.member.checked(first.candidate.hash, "its state is wrong", driven.now))
    effects = driven.hear(proposal(2, first.candidate.hash))
    asked = [one.slot for one in all_of(CheckCandidate, effects)]
    assert asked == ([] if is_still_bad else [2])


def test_a_candidate_needs_proof_that_the_slots_below_it_were_skipped() -> None:
    driven = follower()
    bare = proposal(2)
    driven.hear(certified(1, VoteKind.NOTARISE, OTHER))
    effects = driven.hear(bare)
    assert not all_of(CheckCandidate, effects)
    effects = driven.hear(certified(1, VoteKind.SKIP))
    assert [one.block_hash for one in all_of(CheckCandidate, effects)] == [bare.candidate.hash]


# Idling


def test_a_leader_without_anything_waits_until_it_or_somebody_wants_a_block() -> None:
    driven = Driven(leading(1)).start()
    driven.take(driven.member.proposed(1, None, driven.now))
    driven.effects.clear()
    for _ in range(20):
        driven.wait(1.0)
    assert driven.member.slot == 1
    assert not all_of(Propose, driven.effects)
    assert not said(driven.effects)
    assert all_of(Propose, driven.take(driven.member.wants_block(driven.now))) == [Propose(1, START, True)]
    driven.take(driven.member.proposed(1, None, driven.now))

    other = Driven(leading(1)).start()
    other.take(other.member.proposed(1, None, other.now))
    assert all_of(Propose, other.hear(Want(1))) == [Propose(1, START, True)]


def test_who_wants_a_block_and_does_not_lead_says_so_once_a_round() -> None:
    driven = follower()
    wants = all_of(Broadcast, driven.take(driven.member.wants_block(driven.now)))
    assert [decode_message(one.frame) for one in wants] == [Want(1)]
    assert not all_of(Broadcast, driven.take(driven.member.wants_block(driven.now)))


def test_with_an_idle_period_an_empty_block_is_asked_for_when_it_is_over() -> None:
    driven = Driven(leading(1), MemberOptions(start_wait_s=1.0, idle_period_s=7.0)).start()
    driven.take(driven.member.proposed(1, None, driven.now))
    assert not all_of(Propose, driven.wait(6.9))
    assert all_of(Propose, driven.wait(0.1)) == [Propose(1, START, True)]


# Taking in


def test_cheap_checks_come_before_signatures() -> None:
    driven = follower()
    vote = signed(leading(1), 1, VoteKind.SKIP)
    driven.hear(vote)
    driven.hear(certified(1, VoteKind.NOTARISE, OTHER))
    driven.verified = 0
    driven.hear(vote)
    driven.hear(certified(1, VoteKind.NOTARISE, OTHER, signers=(0, 1, 2, 3)))
    driven.hear(signed(leading(2), 1, VoteKind.NOTARISE, OTHER))
    driven.hear(Vote(7, 1, VoteKind.SKIP, NO_BLOCK, bytes(64)))
    driven.hear(Vote(leading(2), 1, VoteKind.PROPOSE, OTHER, bytes(64)))
    driven.hear(Vote(1, 2 + SLOTS_AHEAD_MAX + 1, VoteKind.SKIP, NO_BLOCK, bytes(64)))
    driven.hear(Certificate(SESSION_ID, 5, VoteKind.SKIP, NO_BLOCK, ((0, bytes(64)), (1, bytes(64)))))
    driven.hear(Certificate(START, 5, VoteKind.SKIP, NO_BLOCK, tuple((one, bytes(64)) for one in range(4))))
    assert driven.verified == 0
    assert [one.rule for one in all_of(RefusedPeer, driven.effects)] == [
        "UnknownValidator", "NotLeader", "NoQuorum", "WrongSession",
    ]  # fmt: skip


def test_forged_votes_certificates_candidates_and_evidence_are_refused() -> None:
    driven = follower()
    good = certified(1, VoteKind.SKIP)
    forged = Certificate(SESSION_ID, 1, VoteKind.SKIP, NO_BLOCK, (*good.signatures[:2], (3, bytes(64))))
    driven.hear(Vote(1, 1, VoteKind.SKIP, NO_BLOCK, bytes(64)))
    driven.hear(forged)
    driven.hear(Proposal(Candidate(1, START, b""), bytes(64)))
    assert [one.rule for one in all_of(RefusedPeer, driven.effects)] == ["Signature"] * 3
    assert driven.member.slot == 1


@pytest.mark.parametrize("frame", [b"", b"\0" * 40, bytes(FRAME_BYTES_MAX + 1)])
def test_garbage_is_refused(frame: bytes) -> None:
    driven = follower()
    (refused,) = all_of(RefusedPeer, driven.take(driven.member.frame_received(2, frame, driven.now)))
    assert (refused.peer, refused.rule) == (2, "TooLarge" if len(frame) > FRAME_BYTES_MAX else "Malformed")


def test_garbage_in_place_of_a_query_or_an_answer_is_refused() -> None:
    driven = follower()
    assert all_of(RefusedPeer, driven.member.query_received(1, 1, b"?", driven.now))
    (ask,) = all_of(Ask, driven.wait(OPTIONS.ask_when_idle_s * 2))
    assert not driven.member.answered((ask.peer + 1) % 4, ask.number, b"?", driven.now), "nobody asked him"
    assert all_of(RefusedPeer, driven.member.answered(ask.peer, ask.number, b"?", driven.now))


def test_votes_are_taken_in_for_16_slots_ahead_and_no_more() -> None:
    driven = follower()
    for slot in (1 + SLOTS_AHEAD_MAX, 2 + SLOTS_AHEAD_MAX):
        driven.hear(signed(1, slot, VoteKind.SKIP))
    assert [number for number, _ in driven.member.book.slots()][-1] == 1 + SLOTS_AHEAD_MAX


def test_a_certificate_from_far_ahead_brings_us_there() -> None:
    driven = follower()
    driven.hear(certified(500, VoteKind.SKIP))
    assert driven.member.slot == 501


def test_of_two_candidates_the_first_is_kept_and_the_other_only_with_a_certificate() -> None:
    driven = follower()
    first, second = proposal(1), proposal(1, payload=b"another")
    driven.hear(first)
    (blamed,) = all_of(BlamedValidator, driven.hear(second))
    assert blamed.evidence.validator == leading(1)
    assert set(driven.member.book.at(1).candidates) == {first.candidate.hash}
    effects = driven.hear(certified(1, VoteKind.NOTARISE, second.candidate.hash))
    (ask,) = all_of(Ask, effects)
    assert ask.peer in THE_OTHERS
    driven.hear(second)
    assert set(driven.member.book.at(1).candidates) == {first.candidate.hash, second.candidate.hash}


def test_of_contradictions_four_are_kept_and_no_more_are_looked_at() -> None:
    driven = follower()
    bad = leading(1)
    for number in range(EVIDENCE_PER_VALIDATOR_MAX + 3):
        driven.hear(signed(bad, 1, VoteKind.NOTARISE, bytes([number]) * 32))
    assert len(all_of(BlamedValidator, driven.effects)) == EVIDENCE_PER_VALIDATOR_MAX
    assert len(driven.member.evidence[bad]) == EVIDENCE_PER_VALIDATOR_MAX
    driven.verified = 0
    driven.hear(signed(bad, 1, VoteKind.NOTARISE, bytes([99]) * 32))
    assert driven.verified == 0
    told = [decode_message(one.frame) for one in all_of(Broadcast, driven.effects)]
    assert len(told) == 1, "one is enough to tell"

    again = Driven(driven.index)
    effects = again.take(again.member.restore(driven.disk, 0.0))
    assert len(all_of(BlamedValidator, effects)) == EVIDENCE_PER_VALIDATOR_MAX, "it is remembered"


def test_votes_of_slots_long_past_are_forgotten_and_ours_are_not() -> None:
    driven = follower()
    driven.hear(Want(1))
    driven.wait(OPTIONS.delta_s * 3)
    for slot in range(1, VOTES_KEPT_SLOTS + 2):
        driven.hear(certified(slot, VoteKind.SKIP))
    old = driven.member.book.at(1)
    assert not any(old.votes.values())
    assert old.is_skipped
    assert VoteKind.SKIP in old.own
    assert any(driven.member.book.at(3).votes.values())


def test_a_payload_over_the_limit_is_a_mistake_of_those_above() -> None:
    driven = Driven(leading(1)).start()
    with pytest.raises(LocalProtocolError, match="at most 262144 fit"):
        driven.member.proposed(1, bytes(PAYLOAD_BYTES_MAX + 1), driven.now)
    assert all_of(Broadcast, driven.take(driven.member.proposed(1, bytes(PAYLOAD_BYTES_MAX), driven.now)))


# Memory


def test_a_vote_of_ours_that_we_do_not_remember_is_taken_back_while_we_listen() -> None:
    driven = Driven(FOLLOWER)
    own = signed(driven.index, 1, VoteKind.SKIP)
    effects = driven.hear(own)
    assert all_of(RecoveredVotes, effects) == [RecoveredVotes(1)]
    driven.start()
    offered = proposal(1)
    driven.hear(offered)
    effects = driven.hear(certified(1, VoteKind.NOTARISE, offered.candidate.hash))
    assert not said(effects), "it skipped this slot, and remembers it now"


def test_a_vote_of_ours_that_we_did_not_give_stops_us_once_we_speak() -> None:
    driven = follower()
    (halt,) = all_of(Halt, driven.hear(signed(driven.index, 1, VoteKind.SKIP)))
    assert "signed with our key" in halt.text
    offered = proposal(1)
    driven.hear(offered)
    effects = driven.take(driven.member.checked(offered.candidate.hash, None, driven.now))
    assert not said([*effects, *driven.wait(5.0)])


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (certified(1, VoteKind.NOTARISE, OTHER), certified(1, VoteKind.FINALISE, START), "two blocks"),
        (certified(1, VoteKind.SKIP), certified(1, VoteKind.FINALISE, OTHER), "both skipped and final"),
    ],
)
def test_what_only_a_faulty_third_can_bring_about_stops_us(
    left: Certificate, right: Certificate, text: str
) -> None:
    driven = follower()
    driven.hear(left)
    (halt,) = all_of(Halt, driven.hear(right))
    assert text in halt.text
    assert driven.member.is_halted


def test_a_restart_goes_on_in_the_slot_where_it_was_and_repeats_its_votes() -> None:
    driven = follower()
    driven.hear(certified(1, VoteKind.SKIP))
    offered = proposal(2, proofs=(certified(1, VoteKind.SKIP),))
    driven.hear(offered)
    driven.take(driven.member.checked(offered.candidate.hash, None, driven.now))
    driven.wait(OPTIONS.delta_s * 6)
    spoken = {one.encode() for one in said(driven.effects) if one.slot == 2}
    assert len(spoken) == 2

    again = Driven(driven.index)
    again.take(again.member.restore(driven.disk, 0.0))
    assert again.member.slot == 2
    again.start()
    assert {one.encode() for one in said(again.effects)} == spoken
    again.take(again.member.checked(offered.candidate.hash, None, again.now))
    again.wait(30.0)
    assert {one.encode() for one in said(again.effects)} == spoken


def test_an_answer_shows_a_starting_validator_its_own_votes() -> None:
    driven = follower()
    own = signed(leading(1), 1, VoteKind.SKIP)
    driven.hear(own)
    other = Driven(leading(1))
    ask = next(one for one in all_of(Ask, other.take(other.member.tick(0.0))) if one.peer == driven.index)
    (reply,) = all_of(Reply, driven.member.query_received(leading(1), 1, ask.query, driven.now))
    effects = other.take(other.member.answered(driven.index, ask.number, reply.answer, 0.0))
    assert all_of(RecoveredVotes, effects) == [RecoveredVotes(1)]
