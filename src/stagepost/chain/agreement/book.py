"""What a validator knows of the slots after its last final block: votes, candidates, certificates."""

from __future__ import annotations

from collections.abc import Iterator

from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.messages import FinalBlock, Proposal
from stagepost.chain.agreement.votes import CERTIFIABLE, Vote, VoteKind

SLOTS_AHEAD_MAX = 16
"""How far beyond our own slot votes and candidates are taken in. Certificates are taken from anywhere: only a quorum
can make one."""

VOTES_KEPT_SLOTS = 16
"""Behind our own slot, others' votes and candidates without a certificate are forgotten."""

TAIL_BLOCKS_MAX = 32
"""Final blocks that are held for those who are just behind."""


class Slot:
    """`own` is what we have signed, on disk or on its way there; `votes` what was spoken. `verdicts`: what those above
    say of a candidate; `asked` those that they were asked about, before and after it was notarised."""

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
        """The best certificate of its block."""
        return self.certificates.get(VoteKind.FINALISE) or self.certificates.get(VoteKind.NOTARISE)

    @property
    def is_skipped(self) -> bool:
        return VoteKind.SKIP in self.certificates

    @property
    def block(self) -> Proposal | None:
        """The candidate that has a certificate, if both are here."""
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
        """In order."""
        for number in sorted(self._slots):
            yield number, self._slots[number]

    def is_open(self, slot: int) -> bool:
        return self.final_slot < slot <= self.current + SLOTS_AHEAD_MAX

    def has_certificate(self, slot: int, kind: int, block: bytes) -> bool:
        """Or needs none any more."""
        if slot <= self.final_slot:
            return True
        found = self._slots.get(slot)
        held = found.certificates.get(VoteKind(kind)) if found is not None and kind in CERTIFIABLE else None
        return held is not None and held.block == block

    def slot_of(self, block_hash: bytes) -> int | None:
        """Of the last final block, or of a candidate that is here."""
        return self._slot_of.get(block_hash)

    def add_candidate(self, block_hash: bytes, proposal: Proposal) -> None:
        slot = proposal.candidate.slot
        self.at(slot).candidates[block_hash] = Proposal(proposal.candidate, proposal.signature)
        self._slot_of[block_hash] = slot

    # Questions about the chain

    def is_block(self, block_hash: bytes) -> bool:
        """Whether it is the last final block, or a candidate with a certificate."""
        number = self._slot_of.get(block_hash)
        if number is None:
            return False
        certificate = None if number == self.final_slot else self._slots[number].notarised
        return number == self.final_slot or (certificate is not None and certificate.block == block_hash)

    def is_good(self, block_hash: bytes) -> bool:
        """Whether those above know the state after it."""
        number = self._slot_of.get(block_hash)
        if number is None:
            return False
        return number == self.final_slot or self._slots[number].is_good(block_hash)

    def not_skipped(self, parent_slot: int, slot: int) -> list[int]:
        """The slots between the two for which no certificate says that they were skipped."""
        between = range(parent_slot + 1, slot)
        return [one for one in between if (found := self._slots.get(one)) is None or not found.is_skipped]

    def parent_for(self, slot: int) -> bytes | None:
        """What a candidate of this slot may be built upon, as far as we can prove it; None while something is missing."""
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
        """The blocks after the last final one up to this one; None while one of them, or its certificate, is missing."""
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
        """The first slot of which we know neither a block that our chain leads to nor that it was skipped."""
        number = self.top + 1
        while (slot := self._slots.get(number)) is not None and slot.is_skipped:
            number += 1
        return number

    def _reached(self) -> Iterator[Slot]:
        """The slots, in order, whose blocks are here and rest on the last final one through others that are."""
        reached = {self.final_hash}
        for _, slot in self.slots():
            block, certificate = slot.block, slot.notarised
            if block is not None and certificate is not None and block.candidate.parent in reached:
                reached.add(certificate.block)
                yield slot

    @property
    def has_orphan(self) -> bool:
        """Whether a block is here whose parent is not: our chain took another way below it."""
        blocks = (slot.block for slot in self._slots.values())
        return any(one is not None and one.candidate.parent not in self._slot_of for one in blocks)

    @property
    def is_unfinished(self) -> bool:
        """Whether a block has a certificate and is not final."""
        return any(slot.notarised is not None for slot in self._slots.values())

    # Going on

    def settle(self) -> list[FinalBlock]:
        """The blocks that have become final, in order. Of others in their slots nothing remains."""
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
        """Keeps what a long run of failing slots costs small: certificates, their blocks, and what we signed."""
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
