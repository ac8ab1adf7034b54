"""The slots after a validator's last final block, as the validator knows them: votes, candidates,
certificates.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.messages import FinalBlock, Proposal
from stagepost.chain.agreement.votes import CERTIFIABLE, Vote, VoteKind

SLOTS_AHEAD_MAX = 16
"""Slots beyond our own, at most, for which votes and candidates are accepted. Certificates are accepted for
any slot: only a quorum can make one.
"""

VOTES_KEPT_SLOTS = 16
"""Slots behind our own, beyond which votes of others and candidates without a certificate are forgotten."""

TAIL_BLOCKS_MAX = 32
"""Final blocks, at most, that are held for validators just behind us."""


class Slot:
    """`own` are the votes that we have signed, on disk or on their way there; `votes` are those that were
    sent. `verdicts` are the answers of the part above about candidates; `asked` are the candidates that it
    was asked about, `asked_again` those that it was asked about once more after they were notarised.
    """

    __slots__ = ("asked", "asked_again", "candidates", "certificates", "own", "verdicts", "votes")

    def __init__(self) -> None:
        self.votes: dict[VoteKind, dict[int, Vote]] = {kind: {} for kind in VoteKind}
        self.candidates: dict[bytes, Proposal] = {}
        self.certificates: dict[VoteKind, Certificate] = {}
        self.own: dict[VoteKind, bytes] = {}
        self.verdicts: dict[bytes, str | None] = {}
        self.asked: set[bytes] = set()
        self.asked_again: set[bytes] = set()

    @property
    def notarised(self) -> Certificate | None:
        """The best certificate of the slot's block; None if there is none."""
        return self.certificates.get(VoteKind.FINALISE) or self.certificates.get(VoteKind.NOTARISE)

    @property
    def is_skipped(self) -> bool:
        return VoteKind.SKIP in self.certificates

    @property
    def block(self) -> Proposal | None:
        """The candidate that has a certificate, if both are here; else None."""
        certificate = self.notarised
        return self.candidates.get(certificate.block) if certificate is not None else None

    def is_good(self, block_hash: bytes) -> bool:
        return self.verdicts.get(block_hash, "not checked yet") is None


class Book:
    def __init__(self, final_slot: int, final_hash: bytes) -> None:
        self.final_slot = final_slot
        self.final_hash = final_hash
        self.current = final_slot + 1
        self.tail: list[FinalBlock] = []
        self.final_certificate: Certificate | None = None
        self._forgotten = final_slot
        self._slots: dict[int, Slot] = {}
        self._slot_of: dict[bytes, int] = {final_hash: final_slot}

    def at(self, slot: int) -> Slot:
        return self._slots.setdefault(slot, Slot())

    def get(self, slot: int) -> Slot | None:
        return self._slots.get(slot)

    def slots(self) -> Iterator[tuple[int, Slot]]:
        """Return the slots with their numbers, in order."""
        for number in sorted(self._slots):
            yield number, self._slots[number]

    def is_open(self, slot: int) -> bool:
        return self.final_slot < slot <= self.current + SLOTS_AHEAD_MAX

    def has_certificate(self, slot: int, kind: int, block: bytes) -> bool:
        """Return whether this certificate is here, or is needed no more."""
        if slot <= self.final_slot:
            return True
        found = self._slots.get(slot)
        held = found.certificates.get(VoteKind(kind)) if found is not None and kind in CERTIFIABLE else None
        return held is not None and held.block == block

    def slot_of(self, block_hash: bytes) -> int | None:
        """Return the slot of the last final block or of a candidate that is here; None for any other hash."""
        return self._slot_of.get(block_hash)

    def add_candidate(self, block_hash: bytes, proposal: Proposal) -> None:
        slot = proposal.candidate.slot
        self.at(slot).candidates[block_hash] = Proposal(proposal.candidate, proposal.signature)
        self._slot_of[block_hash] = slot

    # Questions about the chain

    def is_block(self, block_hash: bytes) -> bool:
        """Return whether this is the last final block, or a candidate with a certificate."""
        number = self._slot_of.get(block_hash)
        if number is None:
            return False
        certificate = None if number == self.final_slot else self._slots[number].notarised
        return number == self.final_slot or (certificate is not None and certificate.block == block_hash)

    def is_good(self, block_hash: bytes) -> bool:
        """Return whether the part above knows the state after this block."""
        number = self._slot_of.get(block_hash)
        if number is None:
            return False
        return number == self.final_slot or self._slots[number].is_good(block_hash)

    def not_skipped(self, parent_slot: int, slot: int) -> list[int]:
        """Return the slots between the two for which no certificate says that they were skipped."""
        between = range(parent_slot + 1, slot)
        return [one for one in between if (found := self._slots.get(one)) is None or not found.is_skipped]

    def parent_for(self, slot: int) -> bytes | None:
        """Return the block that a candidate of `slot` may be built upon, as far as we can prove it; None
        while a proof is missing.
        """
        for number in range(slot - 1, self.final_slot, -1):
            found = self._slots.get(number)
            if found is None:
                return None
            certificate = found.notarised
            if certificate is not None and self.is_good(certificate.block):
                return certificate.block
            if not found.is_skipped:
                return None
        return self.final_hash

    def path_to(self, block_hash: bytes) -> list[Proposal] | None:
        """Return the blocks after the last final one up to this one; None while one of them, or its
        certificate, is missing.
        """
        path: list[Proposal] = []
        while block_hash != self.final_hash:
            number = self._slot_of.get(block_hash)
            if number is None or not self.is_block(block_hash):
                return None
            proposal = self._slots[number].candidates[block_hash]
            path.append(proposal)
            block_hash = proposal.candidate.parent
        return path[::-1]

    @property
    def top(self) -> int:
        """The slot of the newest block that the last final one leads to."""
        certificates = [slot.notarised for slot in self._reached()]
        last = certificates[-1] if certificates else None
        return self.final_slot if last is None else last.slot

    @property
    def first_unknown(self) -> int:
        """First slot of which we know neither a block that our chain leads to nor that it was skipped."""
        number = self.top + 1
        while (slot := self._slots.get(number)) is not None and slot.is_skipped:
            number += 1
        return number

    def _reached(self) -> Iterator[Slot]:
        """Return, in order, the slots whose blocks are here and rest on the last final block through others
        that are here.
        """
        reached = {self.final_hash}
        for _, slot in self.slots():
            block, certificate = slot.block, slot.notarised
            if block is not None and certificate is not None and block.candidate.parent in reached:
                reached.add(certificate.block)
                yield slot

    @property
    def has_orphan(self) -> bool:
        """Return whether a block is here whose parent is not: then our chain took another way below it."""
        blocks = (slot.block for slot in self._slots.values())
        return any(one is not None and one.candidate.parent not in self._slot_of for one in blocks)

    @property
    def is_unfinished(self) -> bool:
        """Return whether a block has a certificate and is not final."""
        return any(slot.notarised is not None for slot in self._slots.values())

    # Going on

    def settle(self) -> list[FinalBlock]:
        """Return the blocks that have become final, in order. Other candidates of their slots are forgotten."""
        newest: Certificate | None = None
        for slot in self._reached():
            newest = slot.certificates.get(VoteKind.FINALISE, newest)
        path = self.path_to(newest.block) if newest is not None else None
        return self._settle(path) if path else []

    def _settle(self, path: list[Proposal]) -> list[FinalBlock]:
        settled: list[FinalBlock] = []
        for proposal in path:
            slot = self._slots[proposal.candidate.slot]
            assert slot.notarised is not None, "a path has certificates"
            settled.append(FinalBlock(proposal.candidate, proposal.signature, slot.notarised))
        last = settled[-1]
        self.tail = [*self.tail, *settled][-TAIL_BLOCKS_MAX:]
        self.final_slot, self.final_hash = last.candidate.slot, last.certificate.block
        self.final_certificate = last.certificate
        self.current = max(self.current, self.final_slot + 1)
        self._slots = {number: slot for number, slot in self._slots.items() if number > self.final_slot}
        self._slot_of = {self.final_hash: self.final_slot} | {
            block: number for block, number in self._slot_of.items() if number > self.final_slot
        }
        return settled

    def forget_old_votes(self) -> None:
        """Bound the memory that a long run of failing slots costs: keep certificates, their blocks, and what
        we signed.
        """
        limit = self.current - VOTES_KEPT_SLOTS
        for number in [one for one in self._slots if self._forgotten < one <= limit]:
            self._forget_votes(self._slots[number])
        self._forgotten = max(self._forgotten, limit)

    def _forget_votes(self, slot: Slot) -> None:
        for votes in slot.votes.values():
            votes.clear()
        kept = slot.notarised.block if slot.notarised is not None else None
        for block in [block for block in slot.candidates if block != kept]:
            del slot.candidates[block]
            del self._slot_of[block]
