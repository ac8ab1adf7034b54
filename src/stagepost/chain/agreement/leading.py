"""The slots that this validator leads: when the part above is asked for a block and what becomes of its
answer; and the candidates of all leaders: those that may be voted for, and those that the part above must
check.
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


class SlotLeader:
    def __init__(self, session: Session, index: int, book: Book) -> None:
        self._session = session
        self._index = index
        self._book = book
        self._question: _Question | None = None

    @property
    def is_ours(self) -> bool:
        return self._session.leader_of(self._book.current) == self._index

    def ask(self, is_wanted: bool) -> list[Propose]:
        """Ask the part above for a block: once a slot, and again after it said no, when a block is wanted
        that was not wanted before.
        """
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
        """Allow another question after a no: the part above has something new."""
        if self._question is not None and self._question.is_answered:
            self._question = None

    def answered(self, slot: int, payload: bytes | None) -> Candidate | None:
        """Return the candidate to propose; None if the answer is no, or comes too late."""
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
    """Return whether certificates prove that the candidate may stand where it stands: upon a block, with all
    slots between them skipped.
    """
    parent_slot = book.slot_of(candidate.parent)
    if parent_slot is None or parent_slot >= candidate.slot or not book.is_block(candidate.parent):
        return False
    return next(iter(book.not_skipped(parent_slot, candidate.slot)), None) is None


def due_checks(book: Book) -> Iterator[CheckCandidate]:
    """Return the candidates that the part above must check now, parents before children, so that it has the
    state that each stands upon.

    Each candidate that we could vote for, or that a quorum has voted for, comes once. One that a quorum has
    voted for comes again if we found it bad: a reason that depends on the time of the check must not keep one
    validator from building upon a block that the others agreed on.
    """
    for number in sorted(book.to_check):
        book.to_check.discard(number)
        slot = book.at(number)
        certificate = slot.notarised
        for block_hash, proposal in slot.candidates.items():
            candidate = proposal.candidate
            is_notarised = certificate is not None and certificate.block == block_hash
            if slot.is_good(block_hash):
                continue
            if not book.is_good(candidate.parent):
                book.check_after(candidate.parent, number)
                continue
            if is_notarised:
                is_due = block_hash not in slot.asked_again
                slot.asked_again.add(block_hash)
            elif block_hash in slot.asked or block_hash in slot.verdicts:
                is_due = False
            else:
                is_due = number == book.current and is_justified(book, candidate)
                if not is_due and number >= book.current:
                    book.to_check.add(number)  # its turn, or a proof, may still come
            if is_due:
                slot.asked.add(block_hash)
                yield CheckCandidate(number, block_hash, candidate.payload, candidate.parent, is_notarised)
