"""The votes and proposals that this validator signs: each vote once, on disk before it is sent."""

from __future__ import annotations

from stagepost.chain.agreement.book import Book
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.effects import Broadcast, Persist, Record
from stagepost.chain.agreement.evidence import Evidence
from stagepost.chain.agreement.hearing import BookKeeper
from stagepost.chain.agreement.messages import PROOFS_MAX, Message, Proposal
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import Vote, VoteKind, signed_bytes
from stagepost.errors import LocalProtocolError
from stagepost.ground.crypto import ed25519

EXCLUDES = {VoteKind.SKIP: VoteKind.FINALISE, VoteKind.FINALISE: VoteKind.SKIP}
"""The vote that forbids another one in the same slot: a validator does not skip a slot whose block it calls
final.
"""


class Ballot:
    def __init__(self, session: Session, index: int, seed: bytes, book: Book, keeper: BookKeeper) -> None:
        self._session = session
        self._index = index
        self._seed = seed
        self._book = book
        self._keeper = keeper
        self._number = 0
        self._records: list[Record] = []
        self._held: list[tuple[int, Vote, Proposal | None]] = []

    def vote(self, slot: int, kind: VoteKind, block: bytes) -> None:
        self._sign(slot, kind, block)

    def propose(self, candidate: Candidate) -> None:
        """Sign a candidate and send it with the proof that its parent may be built upon, as far as that fits."""
        book, block_hash = self._book, candidate.hash
        parent_slot = book.slot_of(candidate.parent)
        if parent_slot is None:
            raise LocalProtocolError(
                f"the candidate of slot {candidate.slot} stands upon {candidate.parent.hex()}, which is not known here",
                reason="UnknownParent",
            )
        parent = book.get(parent_slot)
        of_parent = book.final_certificate if parent is None else parent.notarised
        between = range(candidate.slot - 1, parent_slot, -1)[:PROOFS_MAX]
        skipped = [book.at(number).certificates[VoteKind.SKIP] for number in between]
        proofs = (*([of_parent] if of_parent is not None else []), *skipped)[:PROOFS_MAX]
        vote = self._sign(candidate.slot, VoteKind.PROPOSE, block_hash)
        proposal = Proposal(candidate, vote.signature, proofs)
        self._held[-1] = (self._number + 1, vote, proposal)
        self.keep(Proposal(candidate, vote.signature), candidate.slot)

    def _sign(self, slot: int, kind: VoteKind, block: bytes) -> Vote:
        own = self._book.at(slot).own
        if kind in own:
            raise LocalProtocolError(
                f"validator {self._index} would vote {kind.name} twice in slot {slot}", reason="VoteTwice"
            )
        excluded = EXCLUDES.get(kind)
        if excluded in own:
            raise LocalProtocolError(
                f"validator {self._index} would vote {kind.name} in slot {slot}, where it has voted {excluded.name}",
                reason="VoteContradicts",
            )
        own[kind] = block
        session = self._session
        signature = ed25519.sign(
            self._seed,
            signed_bytes(session.session_id, slot, kind, block),
            public_key=session.public_keys[self._index],
        )
        vote = Vote(self._index, slot, kind, block, signature)
        self.keep(vote, slot)
        self._held.append((self._number + 1, vote, None))
        return vote

    def keep(self, message: Proposal | Vote | Certificate | Evidence, slot: int | None) -> None:
        self._records.append(Record(slot, message.encode()))

    def to_write(self) -> list[Persist]:
        """Return everything signed since the last call, as one write."""
        if not self._records:
            return []
        self._number += 1
        records, self._records = tuple(self._records), []
        return [Persist(self._number, records)]

    def written(self, number: int) -> list[Broadcast]:
        """Return the messages that may be sent now that write `number` is on disk.

        Our own votes count only from now on, because a certificate made of them would reveal them.
        """
        spoken: list[Broadcast] = []
        while self._held and self._held[0][0] <= number:
            _, vote, proposal = self._held.pop(0)
            if vote.slot <= self._book.final_slot:
                continue
            if proposal is not None:
                self._book.add_candidate(vote.block, proposal)
                self._book.add_verdict(vote.slot, vote.block, None)
            self._keeper.count_own(vote)
            spoken.append(Broadcast((proposal or vote).encode()))
        return spoken

    def said(self, slot: int) -> list[Broadcast]:
        """Return once more all messages of ours for `slot`, also those that a crash kept from being sent."""
        found = self._book.at(slot)
        messages: list[Message] = []
        for kind, votes in found.votes.items():
            vote = votes.get(self._index)
            if vote is not None and kind is not VoteKind.PROPOSE:
                messages.append(vote)
            elif vote is not None and vote.block in found.candidates:
                messages.append(found.candidates[vote.block])
        return [Broadcast(message.encode()) for message in messages]


def own_vote(message: Message, index: int, session: Session) -> Vote | None:
    """Return this validator's vote in a stored message; None if the message contains none."""
    if isinstance(message, Vote) and message.validator == index:
        return message
    if isinstance(message, Proposal) and session.leader_of(message.candidate.slot) == index:
        candidate = message.candidate
        return Vote(index, candidate.slot, VoteKind.PROPOSE, candidate.hash, message.signature)
    return None
