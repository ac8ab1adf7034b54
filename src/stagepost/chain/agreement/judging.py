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
