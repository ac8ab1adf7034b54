"""Which candidates may be voted for, and which those above are to look at."""

from __future__ import annotations

from collections.abc import Iterator

from stagepost.chain.agreement.book import Book
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.effects import CheckCandidate


def is_justified(book: Book, candidate: Candidate) -> bool:
    """Whether it is shown that the candidate may stand where it stands: upon a block, all slots between skipped."""
    parent_slot = book.slot_of(candidate.parent)
    if parent_slot is None or parent_slot >= candidate.slot or not book.is_block(candidate.parent):
        return False
    return not book.not_skipped(parent_slot, candidate.slot)


def due_checks(book: Book) -> Iterator[CheckCandidate]:
    """Each candidate once, parents before children, so that those above have the state that it stands upon: what we
    could vote for, and what a quorum has voted for."""
    for number, slot in book.slots():
        certificate = slot.notarised
        for block_hash, proposal in slot.candidates.items():
            candidate = proposal.candidate
            if block_hash in slot.asked or block_hash in slot.verdicts or not book.is_good(candidate.parent):
                continue
            is_notarised = certificate is not None and certificate.block == block_hash
            if is_notarised or (number == book.current and is_justified(book, candidate)):
                slot.asked.add(block_hash)
                yield CheckCandidate(number, block_hash, candidate.payload, candidate.parent)
