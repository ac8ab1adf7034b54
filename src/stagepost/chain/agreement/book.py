"""The slots after a validator's last final block, as the validator knows them: votes, candidates,
certificates.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
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
    """`to_check`: slots with a candidate that the part above may have to check now. `lacking`: slots with a certificate
    whose block is not here.

    No answer here walks through all slots: when nothing becomes final for long, a further slot costs as much as the
    first.
    """

    def __init__(self, final_slot: int, final_hash: bytes) -> None:
        self.final_slot = final_slot
        self.final_hash = final_hash
        self.current = final_slot + 1
        self.tail: list[FinalBlock] = []
        self.final_certificate: Certificate | None = None
        self.to_check: set[int] = set()
        self.lacking: set[int] = set()
        self._forgotten = final_slot
        self._slots: dict[int, Slot] = {}
        self._numbers: list[int] = []
        self._slot_of: dict[bytes, int] = {final_hash: final_slot}
        self._begin_at_final_block()

    def _begin_at_final_block(self) -> None:
        """Know of nothing but the last final block. `_link` adds one slot after another."""
        self._top = self.final_slot
        self._called_final: Certificate | None = None
        self._notarised: list[int] = []
        self._reached = {self.final_hash}
        self._unreached: dict[bytes, set[int]] = {}
        self._check_after: dict[bytes, set[int]] = {}
        self._skipped: dict[int, int] = {}

    def at(self, slot: int) -> Slot:
        found = self._slots.get(slot)
        if found is None:
            found = self._slots[slot] = Slot()
            insort(self._numbers, slot)
        return found

    def get(self, slot: int) -> Slot | None:
        return self._slots.get(slot)

    def slots(self, first: int = 0) -> Iterator[tuple[int, Slot]]:
        """Return the slots with their numbers, in order, from number `first` on."""
        for place in range(bisect_left(self._numbers, first), len(self._numbers)):
            number = self._numbers[place]
            yield number, self._slots[number]

    def newest_slots(self) -> Iterator[tuple[int, Slot]]:
        """Return the slots with their numbers, newest first."""
        for number in reversed(self._numbers):
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
        number = proposal.candidate.slot
        self.at(number).candidates[block_hash] = Proposal(proposal.candidate, proposal.signature)
        self._slot_of[block_hash] = number
        self._link(number)

    def add_certificate(self, certificate: Certificate) -> None:
        self.at(certificate.slot).certificates[certificate.kind] = certificate
        self._link(certificate.slot)

    def add_verdict(self, slot: int, block_hash: bytes, reason: str | None) -> None:
        """Note what the part above says about a candidate: the reason against it, or None."""
        self.at(slot).verdicts[block_hash] = reason
        if reason is None:
            self.to_check |= self._check_after.pop(block_hash, set())

    def check_after(self, parent: bytes, slot: int) -> None:
        """Put `slot` into `to_check` once the state after block `parent` is known."""
        self._check_after.setdefault(parent, set()).add(slot)

    def _link(self, number: int) -> None:
        """Connect what is new in a slot, its block or a certificate, with what it rests on and what rests on it."""
        slot = self._slots[number]
        self.to_check.add(number)
        if slot.is_skipped:
            self._skipped.setdefault(number, number + 1)
        if slot.notarised is None:
            return
        place = bisect_left(self._notarised, number)
        if self._notarised[place : place + 1] != [number]:
            self._notarised.insert(place, number)
        if slot.block is None:
            self.lacking.add(number)
        else:
            self.lacking.discard(number)
            self._reach(number)

    def _reach(self, number: int) -> None:
        """Note that the slot's block, and all that waited for it, rest on the last final block, if its parent does."""
        reached_now = [number]
        while reached_now:
            number = reached_now.pop()
            slot = self._slots[number]
            block, certificate = slot.block, slot.notarised
            if block is None or certificate is None:
                continue
            if block.candidate.parent not in self._reached:
                self._unreached.setdefault(block.candidate.parent, set()).add(number)
                continue
            self._reached.add(certificate.block)
            reached_now += self._unreached.pop(certificate.block, ())
            self._top = max(self._top, number)
            if certificate.kind is VoteKind.FINALISE and (
                self._called_final is None or self._called_final.slot < number
            ):
                self._called_final = certificate

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

    def not_skipped(self, parent_slot: int, slot: int) -> Iterator[int]:
        """Return the slots between the two for which no certificate says that they were skipped."""
        number = self._after_skipped(parent_slot + 1)
        while number < slot:
            yield number
            number = self._after_skipped(number + 1)

    def _after_skipped(self, number: int) -> int:
        """Return the first slot, from `number` on, that was not skipped. The way there is shortened for the next time."""
        passed: list[int] = []
        while (following := self._skipped.get(number)) is not None:
            passed.append(number)
            number = following
        for one in passed:
            self._skipped[one] = number
        return number

    def parent_for(self, slot: int) -> bytes | None:
        """Return the block that a candidate of `slot` may be built upon, as far as we can prove it; None
        while a proof is missing.
        """
        parent_slot, parent = self.final_slot, self.final_hash
        for place in range(bisect_left(self._notarised, slot) - 1, -1, -1):
            found = self._slots[self._notarised[place]]
            certificate = found.notarised
            if certificate is not None and self.is_good(certificate.block):
                parent_slot, parent = certificate.slot, certificate.block
                break
            if not found.is_skipped:
                return None
        return parent if self._after_skipped(parent_slot + 1) >= slot else None

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
        return self._top

    @property
    def first_unknown(self) -> int:
        """First slot of which we know neither a block that our chain leads to nor that it was skipped."""
        return self._after_skipped(self._top + 1)

    @property
    def has_orphan(self) -> bool:
        """Return whether a block is here whose parent is not: then our chain took another way below it."""
        return any(parent not in self._slot_of for parent in self._unreached)

    @property
    def is_unfinished(self) -> bool:
        """Return whether a block has a certificate and is not final."""
        return bool(self._notarised)

    # Going on

    def settle(self) -> list[FinalBlock]:
        """Return the blocks that have become final, in order. Other candidates of their slots are forgotten."""
        newest = self._called_final
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
        self._numbers = self._numbers[bisect_right(self._numbers, self.final_slot) :]
        self._slots = {number: self._slots[number] for number in self._numbers}
        self._slot_of = {self.final_hash: self.final_slot} | {
            block: number for block, number in self._slot_of.items() if number > self.final_slot
        }
        self.to_check.clear()
        self.lacking.clear()
        self._begin_at_final_block()
        for number in self._numbers:
            self._link(number)
        return settled

    def forget_old_votes(self) -> None:
        """Bound the memory that a long run of failing slots costs: keep certificates, their blocks, and what
        we signed.
        """
        limit = self.current - VOTES_KEPT_SLOTS
        first, end = (bisect_right(self._numbers, one) for one in (self._forgotten, limit))
        for number in self._numbers[first:end]:
            self._forget_votes(self._slots[number])
        self._forgotten = max(self._forgotten, limit)

    def _forget_votes(self, slot: Slot) -> None:
        for votes in slot.votes.values():
            votes.clear()
        kept = slot.notarised.block if slot.notarised is not None else None
        for block in [block for block in slot.candidates if block != kept]:
            del slot.candidates[block]
            del self._slot_of[block]
