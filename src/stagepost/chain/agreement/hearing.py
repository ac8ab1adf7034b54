"""Check the messages of other validators and enter them into the book: cheap checks first, signatures last,
nothing twice.

A validator's first vote of a kind in a slot counts. A second one that contradicts it is evidence, and counts
only inside a certificate that somebody else made of it.
"""

from __future__ import annotations

import msgspec

from stagepost.chain.agreement.book import SLOTS_AHEAD_MAX, Book, Slot
from stagepost.chain.agreement.certificate import Certificate, Verify, check_count
from stagepost.chain.agreement.evidence import EVIDENCE_PER_VALIDATOR_MAX, Evidence, contradict, is_proof
from stagepost.chain.agreement.messages import Proposal
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import CERTIFIABLE, Vote, VoteKind, signed_bytes
from stagepost.errors import RemoteProtocolError

SILENT_AFTER_ROUNDS = 2
"""Rounds in which every validator leads once: one of whom no vote was heard in so many is silent."""


class Refusal(msgspec.Struct, frozen=True):
    rule: str
    text: str


class BookKeeper:
    """The caller takes away `certified`, `blamed`, `of_ours` and `broken`: new certificates, new evidence,
    votes with our key that we do not remember, and a contradiction that cannot arise while fewer than a third
    are faulty.
    """

    def __init__(self, session: Session, index: int, book: Book, verify: Verify) -> None:
        self._session = session
        self._index = index
        self._book = book
        self._verify = verify
        self.is_trusted = False
        self.certified: list[Certificate] = []
        self.blamed: list[Evidence] = []
        self.of_ours: list[Vote] = []
        self.broken: str | None = None
        self.evidence: dict[int, list[Evidence]] = {}
        self._heard_in: dict[int, int] = {}

    def note_life(self, validator: int, slot: int) -> None:
        """Note that `validator` was heard, by a valid vote in `slot` or, at our start, by its answer."""
        self._heard_in[validator] = max(slot, self._heard_in.get(validator, slot))

    def is_silent(self, validator: int) -> bool:
        """Return whether no vote of another validator was heard for the last two rounds of slots, or ever."""
        heard_in = self._heard_in.get(validator)
        oldest = self._book.current - SILENT_AFTER_ROUNDS * self._session.size
        return validator != self._index and (heard_in is None or heard_in < oldest)

    @property
    def silent(self) -> int:
        """Number of silent validators."""
        return sum(map(self.is_silent, range(self._session.size)))

    def hear_vote(self, vote: Vote) -> Refusal | None:
        session, book = self._session, self._book
        if vote.validator >= session.size:
            return Refusal("UnknownValidator", f"validator {vote.validator} is not one of the {session.size}")
        if vote.kind is VoteKind.PROPOSE and vote.validator != session.leader_of(vote.slot):
            return Refusal("NotLeader", f"validator {vote.validator} does not lead slot {vote.slot}")
        is_open = book.is_open(vote.slot)
        is_new = is_open and not self._is_known(book.at(vote.slot), vote)
        if not is_new and not self._is_sign_of_life(vote):
            return None
        if not self._is_signed(vote):
            return _bad_signature(vote)
        self.note_life(vote.validator, vote.slot)
        if is_new:
            self._learn(book.at(vote.slot), vote)
        return None

    def hear_certificate(self, certificate: Certificate) -> Refusal | None:
        if certificate.session_id != self._session.session_id:
            return Refusal("WrongSession", f"certificate of slot {certificate.slot} is of another session")
        if certificate.slot <= self._book.final_slot:
            return None
        slot = self._book.get(certificate.slot)
        held = None if slot is None else slot.certificates.get(certificate.kind)
        if held is not None and held.block == certificate.block:
            return None
        try:
            check_count(certificate, self._session.size)
        except RemoteProtocolError as error:
            return Refusal("NoQuorum", error.text)
        for vote in certificate.votes:
            spoken = None if slot is None else slot.votes[vote.kind].get(vote.validator)
            if spoken != vote and not self._is_signed(vote):
                return _bad_signature(vote)
        slot = self._book.at(certificate.slot)
        for vote in certificate.votes:
            self.note_life(vote.validator, vote.slot)
            self._remember(slot, vote)
        self._certify(slot, certificate)
        return None

    def hear_proposal(self, proposal: Proposal) -> Refusal | None:
        """Keep a candidate that is the first of its leader in that slot, or that has a certificate. Return
        why it is refused; None if it is not.
        """
        for proof in proposal.proofs:
            refusal = self.hear_certificate(proof)
            if refusal is not None:
                return refusal
        candidate = proposal.candidate
        book = self._book
        if not book.is_open(candidate.slot):
            return None
        slot, block_hash = book.at(candidate.slot), candidate.hash
        if block_hash in slot.candidates:
            return None
        leader = self._session.leader_of(candidate.slot)
        vote = Vote(leader, candidate.slot, VoteKind.PROPOSE, block_hash, proposal.signature)
        refusal = self.hear_vote(vote)
        if refusal is not None:
            return refusal
        first, certificate = slot.votes[VoteKind.PROPOSE].get(leader), slot.notarised
        if first is not None and first.block == block_hash:
            # Its signature was checked; the one that came now may be anything.
            book.add_candidate(block_hash, Proposal(candidate, first.signature))
        elif certificate is not None and certificate.block == block_hash:
            if not self._is_signed(vote):
                return _bad_signature(vote)
            book.add_candidate(block_hash, proposal)
        return None

    def hear_evidence(self, evidence: Evidence) -> Refusal | None:
        if evidence.session_id != self._session.session_id:
            return Refusal("WrongSession", "evidence of another session")
        kept = self.evidence.get(evidence.validator, [])
        if len(kept) >= EVIDENCE_PER_VALIDATOR_MAX or evidence in kept:
            return None
        verify = self._verify if not self.is_trusted else lambda *_: True
        if not is_proof(evidence, self._session.public_keys, verify):
            return Refusal("ForgedEvidence", f"it proves nothing against validator {evidence.validator}")
        self._blame(evidence.left, evidence.right)
        return None

    def count_own(self, vote: Vote) -> None:
        """Count a vote of ours that is on disk."""
        slot = self._book.at(vote.slot)
        slot.votes[vote.kind][vote.validator] = vote
        self._count(slot, vote)

    # Details

    def _is_sign_of_life(self, vote: Vote) -> bool:
        """Return whether a vote that decides nothing any more is the first of its validator for a round: the votes of
        the slowest are always late, and it is not silent.
        """
        slot = vote.slot
        heard_in = self._heard_in.get(vote.validator, 0)
        is_near = slot <= self._book.current + SLOTS_AHEAD_MAX
        return vote.validator != self._index and is_near and slot > heard_in + self._session.size

    def _is_known(self, slot: Slot, vote: Vote) -> bool:
        """Return whether the vote is of no use: it or its certificate is here, or there is enough evidence
        against the validator.
        """
        if vote.validator == self._index:
            return slot.own.get(vote.kind) == vote.block
        known = slot.votes[vote.kind].get(vote.validator)
        if known is not None:
            return known.block == vote.block or self._is_convicted(vote.validator)
        certificate = slot.certificates.get(vote.kind)
        return certificate is not None and certificate.block == vote.block

    def _is_convicted(self, validator: int) -> bool:
        return len(self.evidence.get(validator, ())) >= EVIDENCE_PER_VALIDATOR_MAX

    def _is_signed(self, vote: Vote) -> bool:
        if self.is_trusted:
            return True
        signed = signed_bytes(self._session.session_id, vote.slot, vote.kind, vote.block)
        return self._verify(self._session.public_keys[vote.validator], signed, vote.signature)

    def _learn(self, slot: Slot, vote: Vote) -> None:
        if self._remember(slot, vote):
            self._count(slot, vote)

    def _remember(self, slot: Slot, vote: Vote) -> bool:
        """Store the vote, and blame its validator if it contradicts another vote. Return whether it counts."""
        if vote.validator == self._index and slot.own.get(vote.kind) != vote.block:
            self.of_ours.append(vote)
            return False
        for votes in slot.votes.values():
            other = votes.get(vote.validator)
            if other is not None and contradict(other, vote):
                self._blame(other, vote)
        return slot.votes[vote.kind].setdefault(vote.validator, vote).block == vote.block

    def _blame(self, left: Vote, right: Vote) -> None:
        kept = self.evidence.setdefault(left.validator, [])
        evidence = Evidence(self._session.session_id, left, right)
        if len(kept) < EVIDENCE_PER_VALIDATOR_MAX and evidence not in kept:
            kept.append(evidence)
            self.blamed.append(evidence)

    def _count(self, slot: Slot, vote: Vote) -> None:
        if vote.kind not in CERTIFIABLE or vote.kind in slot.certificates:
            return
        votes = [one for one in slot.votes[vote.kind].values() if one.block == vote.block]
        if len(votes) >= self._session.quorum:
            signatures = tuple(sorted((one.validator, one.signature) for one in votes))
            self._certify(
                slot, Certificate(self._session.session_id, vote.slot, vote.kind, vote.block, signatures)
            )

    def _certify(self, slot: Slot, certificate: Certificate) -> None:
        held = slot.certificates
        blocks = {one.block for one in (*held.values(), certificate) if one.kind is not VoteKind.SKIP}
        kinds = {*held, certificate.kind}
        if len(blocks) > 1:
            self.broken = f"two blocks have certificates in slot {certificate.slot}"
        elif kinds >= {VoteKind.SKIP, VoteKind.FINALISE}:
            self.broken = f"slot {certificate.slot} is both skipped and final"
        if self.broken is not None:
            self.broken += ": a third of the validators or more are faulty"
            return
        self._book.add_certificate(certificate)
        self.certified.append(certificate)


def _bad_signature(vote: Vote) -> Refusal:
    return Refusal(
        "Signature",
        f"vote {vote.kind.name} in slot {vote.slot}: the signature of validator {vote.validator} is not its own",
    )
