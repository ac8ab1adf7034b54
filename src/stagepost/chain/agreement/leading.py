"""The slots that a validator leads: when those above are asked for a block, and what becomes of their answer.

Which candidates may be voted for, and which those above are to look at.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stagepost.chain.agreement.book import Book
from stagepost.chain.agreement.candidate import PAYLOAD_BYTES_MAX, Candidate
from stagepost.chain.agreement.effects import CheckCandidate, Propose
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import VoteKind
from stagepost.errors import LocalProtocolError


class _Question(msgspec.Struct):
    slot: int
    parent: bytes
    is_wanted: bool
    is_answered: bool = False


class Leading:
    def __init__(self, session: Session, index: int, book: Book) -> None:
        self._session = session
        self._index = index
        self._book = book
        self._question: _Question | None = None

    @property
    def is_ours(self) -> bool:
        return self._session.leader_of(self._book.current) == self._index

    def ask(self, is_wanted: bool) -> list[Propose]:
        """Once a slot, and again after a no: when a block is wanted now that was not before."""
        book, question = self._book, self._question
        if not self.is_ours or VoteKind.PROPOSE in book.at(book.current).own:
            return []
        if question is not None and question.slot == book.current:
            has_changed = is_wanted and not question.is_wanted
            if not (question.is_answered and has_changed):
                return []
        parent = book.parent_for(book.current)
        if parent is None:
            return []
        self._question = _Question(book.current, parent, is_wanted)
        return [Propose(book.current, parent, is_wanted)]

    def ask_again(self) -> None:
        """Those above have something new."""
        if self._question is not None and self._question.is_answered:
            self._question = None

    def answered(self, slot: int, payload: bytes | None) -> Candidate | None:
        """The candidate to propose; None for a no, and for an answer that comes too late."""
        question, book = self._question, self._book
        if question is None or question.is_answered or slot != question.slot or slot != book.current:
            return None
        if payload is not None and len(payload) > PAYLOAD_BYTES_MAX:
            raise LocalProtocolError(
                f"the payload for slot {slot} has {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX} fit",
                limit=PAYLOAD_BYTES_MAX,
                found=len(payload),
            )
        question.is_answered = True
        return None if payload is None else Candidate(slot, question.parent, payload)


def is_justified(book: Book, candidate: Candidate) -> bool:
    """Whether it is shown that the candidate may stand where it stands: upon a block, all slots between skipped."""
    parent_slot = book.slot_of(candidate.parent)
    if parent_slot is None or parent_slot >= candidate.slot or not book.is_block(candidate.parent):
        return False
    return not book.not_skipped(parent_slot, candidate.slot)


def due_checks(book: Book) -> Iterator[CheckCandidate]:
    """Each candidate once, parents before children, so that those above have the state that it stands upon: what we
    could vote for, and what a quorum has voted for. The latter again if we had something against it: what depends on when
    it is asked must not keep one validator from building upon what the others have agreed on."""
    for number, slot in book.slots():
        certificate = slot.notarised
        for block_hash, proposal in slot.candidates.items():
            candidate = proposal.candidate
            is_notarised = certificate is not None and certificate.block == block_hash
            if slot.is_good(block_hash) or not book.is_good(candidate.parent):
                continue
            if is_notarised:
                is_due = block_hash not in slot.asked_again
                slot.asked_again.add(block_hash)
            else:
                is_known = block_hash in slot.asked or block_hash in slot.verdicts
                is_due = not is_known and number == book.current and is_justified(book, candidate)
            if is_due:
                slot.asked.add(block_hash)
                yield CheckCandidate(number, block_hash, candidate.payload, candidate.parent, is_notarised)
