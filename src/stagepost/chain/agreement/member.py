"""A validator of a session, as a core without network and disk: events go in with the time, effects come out.

    frame, answer, persisted, proposed, checked, tick → hear, enter slots, vote, lead → Persist, Broadcast, Ask, Finalised

A slot ends with a certificate: of its block, or that it was skipped. A validator votes for one block in a
slot, votes to skip the slot when it lasts too long, and calls the block final only if it never voted to skip
the slot. Each vote is on disk before anybody hears of it: otherwise a crash would let us vote differently,
and that is what faulty validators do.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from stagepost.chain.agreement.ballot import Ballot, own_vote
from stagepost.chain.agreement.book import Book
from stagepost.chain.agreement.certificate import Certificate, Verify, subject_of
from stagepost.chain.agreement.effects import (
    BlamedValidator,
    Broadcast,
    DisputedBlock,
    Effect,
    FinalisedBlock,
    Halt,
    RecoveredVotes,
    RefusedPeer,
    Reply,
    StalledSlot,
)
from stagepost.chain.agreement.evidence import Evidence
from stagepost.chain.agreement.hearing import BookKeeper, Refusal
from stagepost.chain.agreement.leading import SlotLeader, due_checks, is_justified
from stagepost.chain.agreement.messages import FRAME_BYTES_MAX, Message, Proposal, Want, decode_message
from stagepost.chain.agreement.pacing import NEVER, MemberOptions, SlotClock, Wishes
from stagepost.chain.agreement.progress import Archive, ProgressQueries, answer
from stagepost.chain.agreement.queries import decode_answer, decode_query
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import NO_BLOCK, Vote, VoteKind
from stagepost.errors import DecodeError
from stagepost.ground.crypto import ed25519
from stagepost.ground.statemachine.lifecycle import StartAnswers


class FinalPoint(msgspec.Struct, frozen=True):
    """The last block that the part above has on disk as final."""

    slot: int
    block_hash: bytes


class Member:
    def __init__(
        self,
        session: Session,
        index: int,
        seed: bytes,
        random: Random,
        now: float,
        options: MemberOptions | None = None,
        *,
        final: FinalPoint | None = None,
        archive: Archive | None = None,
        verify: Verify = ed25519.verify,
    ) -> None:
        self.session = session
        self.index = index
        self.options = options or MemberOptions()
        final = final or FinalPoint(0, session.start_hash)
        self.book = Book(final.slot, final.block_hash)
        self._archive = archive
        self._keeper = BookKeeper(session, index, self.book, verify)
        self._ballot = Ballot(session, index, seed, self.book, self._keeper)
        self._queries = ProgressQueries(session, index, self.book, random, self.options)
        self._leader = SlotLeader(session, index, self.book)
        self._clock = SlotClock(session, self.options, now)
        self._wishes = Wishes(session, index, self.options.want_pause_s)
        self._effects: list[Effect] = []
        self._starts_at = now + self.options.start_wait_s
        self._start_stalls_at = now + self.options.stalled_after_s
        self._is_started = False
        self._is_halted = False
        self._has_wish = False
        self._is_moved = False
        self._seen_final = -1

    @property
    def is_started(self) -> bool:
        return self._is_started

    @property
    def is_halted(self) -> bool:
        return self._is_halted

    @property
    def answered_by(self) -> frozenset[int]:
        """Other validators whose answers counted at the start."""
        return frozenset(self._queries.answered_by)

    @property
    def answers_needed(self) -> int:
        """Number of other validators whose answers are needed before this one speaks."""
        return self._queries.answers_needed

    @property
    def slot(self) -> int:
        return self.book.current

    @property
    def timeout_s(self) -> float:
        return self._clock.timeouts.slot_s

    @property
    def evidence(self) -> dict[int, list[Evidence]]:
        """Evidence, by validator."""
        return self._keeper.evidence

    @property
    def next_wake(self) -> float:
        """Time at which `tick` must be called at the latest, in seconds."""
        asking_at = self._queries.next_at
        if self._is_halted:
            return asking_at
        if not self._is_started:
            return min(asking_at, self._starts_at if self._queries.has_quorum else self._start_stalls_at)
        return min(asking_at, self._clock.next_wake)

    # Events

    def restore(self, records: Iterable[bytes], now: float) -> list[Effect]:
        """Read the frames on our disk, in the order in which they were written: once, before any other call."""
        keeper = self._keeper
        keeper.is_trusted = True
        for frame in records:
            message = decode_message(frame)
            own = own_vote(message, self.index, self.session)
            if own is not None and self.book.is_open(own.slot):
                self.book.at(own.slot).own[own.kind] = own.block
                keeper.count_own(own)
            self._hear(message)
            for certificate in keeper.certified:
                self._leave(certificate, now)
            keeper.certified.clear()
        keeper.is_trusted = False
        for kept in keeper.evidence.values():
            self._effects += [BlamedValidator(one) for one in kept]
        keeper.blamed.clear()
        self._finalise(now)
        return self._taken()

    def frame_received(self, peer: int, frame: bytes, now: float) -> list[Effect]:
        self._take_in(peer, frame, now)
        if self._is_moved:
            self._go_on(now)
        return self._taken()

    def query_received(self, peer: int, number: int, data: bytes, now: float) -> list[Effect]:
        try:
            query = decode_query(data)
        except DecodeError as error:
            self._refuse(peer, "Malformed", error.text)
            return self._taken()
        self._effects.append(Reply(peer, number, answer(query, peer, self.book, self._archive)))
        return self._taken()

    def answered(self, peer: int, number: int, data: bytes | None, now: float) -> list[Effect]:
        """Take in the answer to an `Ask`; None if the query failed, timed out or was dropped, which is not an answer."""
        if not self._queries.ended(peer, number) or data is None:
            return self._taken()
        try:
            progress = decode_answer(data)
        except DecodeError as error:
            self._refuse(peer, "Malformed", error.text)
            return self._taken()
        before = self.book.final_slot, self.book.first_unknown
        for frame in progress.frames:
            if not self._take_in(peer, frame, now):
                break
        else:
            self._queries.count_answer(peer)
        self._go_on(now)
        after = self.book.final_slot, self.book.first_unknown
        if after > before and progress.slot > after[1]:
            # The peer knows more, so another question is worth its while.
            self._effects += self._queries.ask(peer, now)
        return self._taken()

    def persisted(self, number: int, now: float) -> list[Effect]:
        """Note that `Persist` number `number`, and all before it, have been carried out."""
        self._effects += self._ballot.written(number)
        self._go_on(now)
        return self._taken()

    def proposed(self, slot: int, payload: bytes | None, now: float) -> list[Effect]:
        """Take the answer to `Propose`. An answer that comes too late is ignored."""
        candidate = self._leader.answered(slot, payload) if self._can_speak else None
        if candidate is not None:
            self._has_wish = False
            self._wishes.fulfil(self.index)
            self._ballot.propose(candidate)
        self._go_on(now)
        return self._taken()

    def checked(self, block_hash: bytes, reason: str | None, now: float) -> list[Effect]:
        """Take the answer to `CheckCandidate`: the reason against the candidate, or None."""
        number = self.book.slot_of(block_hash)
        slot = self.book.get(number) if number is not None else None
        if number is not None and slot is not None:
            if not slot.is_good(block_hash):  # of two answers, the better one
                self.book.add_verdict(number, block_hash, reason)
            self._dispute(number)
            self._go_on(now)
        return self._taken()

    def wants_block(self, now: float) -> list[Effect]:
        """Note that the part above has something for a block."""
        self._has_wish = True
        self._leader.ask_again()
        self._go_on(now)
        return self._taken()

    def tick(self, now: float) -> list[Effect]:
        self._put_off_start(now)
        if not self._is_started and now >= self._starts_at and self._queries.has_quorum:
            self._start(now)
        if self._clock.passed(now) and self._can_speak:
            self._give_up()
        if self._clock.has_stalled(now) or (not self._is_started and now >= self._start_stalls_at):
            self._start_stalls_at = NEVER
            self._effects.append(StalledSlot(self.book.current, self._heard, self.session.quorum))
        if now >= self._queries.next_at:
            self._ask_around(now)
        self._go_on(now)
        return self._taken()

    def _put_off_start(self, now: float) -> None:
        """Wait on while the session goes on without us, where our own past has a gap."""
        if self.options.answers is StartAnswers.GAP and self.book.final_slot != self._seen_final:
            self._seen_final = self.book.final_slot
            self._starts_at = now + max(self.options.start_wait_s, self.options.stalled_after_s)

    # Taking in

    def _take_in(self, peer: int, frame: bytes, now: float) -> bool:
        if len(frame) > FRAME_BYTES_MAX:
            self._refuse(peer, "TooLarge", f"the frame has {len(frame)} bytes, at most {FRAME_BYTES_MAX} fit")
            return False
        subject = subject_of(frame)
        if subject is not None and self.book.has_certificate(*subject):
            return True
        try:
            message = decode_message(frame)
        except DecodeError as error:
            self._refuse(peer, "Malformed", error.text)
            return False
        if isinstance(message, Want):
            if message.slot > self.book.final_slot:
                self._is_moved |= self._wishes.wish(peer, self.book.current, now)
            return True
        refusal = self._hear(message)
        if refusal is not None:
            self._refuse(peer, refusal.rule, refusal.text)
        elif isinstance(message, Vote) and (message.kind, message.slot) == (VoteKind.SKIP, self.book.current):
            # A validator that gave up on this slot waits for its end; it need not want a further slot.
            self._is_moved |= self._wishes.wish(message.validator, self.book.current, now, is_for_one=True)
        self._is_moved |= not isinstance(message, Vote) or message.kind is VoteKind.PROPOSE
        self._take_up(now)
        return refusal is None

    def _hear(self, message: Message) -> Refusal | None:
        match message:
            case Vote():
                return self._keeper.hear_vote(message)
            case Certificate():
                return self._keeper.hear_certificate(message)
            case Proposal():
                return self._keeper.hear_proposal(message)
            case Evidence():
                return self._keeper.hear_evidence(message)
            case Want():
                return None

    def _take_up(self, now: float) -> None:
        """Act on everything that the last messages revealed: contradictions, votes of ours, evidence and
        certificates.
        """
        keeper = self._keeper
        if keeper.broken is not None:
            self._halt(keeper.broken)
        for vote in keeper.of_ours:
            self._take_back(vote)
        keeper.of_ours.clear()
        for evidence in keeper.blamed:
            self._ballot.keep(evidence, None)
            self._effects.append(BlamedValidator(evidence))
            if len(keeper.evidence[evidence.validator]) == 1:
                self._effects.append(Broadcast(evidence.encode()))
        keeper.blamed.clear()
        while keeper.certified:
            self._is_moved = True
            certificate = keeper.certified.pop(0)
            self._ballot.keep(certificate, certificate.slot)
            if self._leave(certificate, now) and certificate.kind is not VoteKind.FINALISE:
                self._effects.append(Broadcast(certificate.encode()))
            self._dispute(certificate.slot)
            self._call_final(certificate.slot)
            slot = self.book.at(certificate.slot)
            if slot.notarised is not None and slot.block is None:
                signers = [who for who, _ in certificate.signatures]
                self._effects += self._queries.ask_signer(signers, certificate.slot, now)

    def _take_back(self, vote: Vote) -> None:
        """Take back a vote with our key that we do not remember."""
        if self._is_started:
            self._halt(f"vote {vote.kind.name} in slot {vote.slot} is signed with our key and is not ours")
            return
        slot = self.book.at(vote.slot)
        if slot.own.setdefault(vote.kind, vote.block) != vote.block:
            self._halt(f"two votes {vote.kind.name} in slot {vote.slot} are signed with our key")
            return
        self._ballot.keep(vote, vote.slot)
        self._effects.append(RecoveredVotes(vote.slot))
        self._keeper.count_own(vote)

    def _leave(self, certificate: Certificate, now: float) -> bool:
        """Leave the current slot if this certificate ends it. Return whether it does."""
        book = self.book
        if certificate.slot < book.current:
            return False
        if certificate.slot == book.current:
            is_skipped = certificate.kind is VoteKind.SKIP
            self._clock.leave(book.current, is_skipped=is_skipped, silent=self._keeper.silent, now=now)
        else:
            self._clock.enter(now)
        book.current = certificate.slot + 1
        book.forget_old_votes()
        return True

    # Going on

    def _go_on(self, now: float) -> None:
        self._is_moved = False
        self._take_up(now)
        self._finalise(now)
        self._effects += due_checks(self.book)
        if self._can_speak:
            self._vote(now)
            self._make_wish(now)
            self._watch(now)
            self._effects += self._leader.ask(self._is_wanted(now))

    def _finalise(self, now: float) -> None:
        before = self.book.current
        settled = self.book.settle()
        if settled:
            self._clock.finalised(block.candidate.slot for block in settled)
        for block in settled:
            candidate, certificate = block.candidate, block.certificate
            self._effects.append(
                FinalisedBlock(
                    candidate.slot, certificate.block, candidate.payload, certificate, block.encode()
                )
            )
        if self.book.current != before:
            self._clock.enter(now)

    def _vote(self, now: float) -> None:
        book = self.book
        slot = book.get(book.current)
        if slot is None or VoteKind.NOTARISE in slot.own:
            return
        leader = self.session.leader_of(book.current)
        first = slot.votes[VoteKind.PROPOSE].get(leader)
        proposal = slot.candidates.get(first.block) if first is not None else None
        if first is None or proposal is None:
            return
        if not is_justified(book, proposal.candidate):
            self._effects += self._queries.ask_signer([leader], book.current, now)
        elif slot.is_good(first.block):
            self._ballot.keep(proposal, book.current)
            self._ballot.vote(book.current, VoteKind.NOTARISE, first.block)

    def _give_up(self) -> None:
        """Vote to skip the current slot, unless this validator has called its block final: it may have learned of that
        vote from others, while its disk knows no certificate that would have ended the slot."""
        current = self.book.current
        own = self.book.at(current).own
        if VoteKind.SKIP not in own and VoteKind.FINALISE not in own:
            self._ballot.vote(current, VoteKind.SKIP, NO_BLOCK)

    def _call_final(self, number: int) -> None:
        slot = self.book.get(number)
        certificate = slot.notarised if slot is not None else None
        if slot is None or certificate is None or slot.is_skipped or not self._can_speak:
            return
        is_settled = certificate.kind is VoteKind.FINALISE
        if not is_settled and VoteKind.FINALISE not in slot.own and VoteKind.SKIP not in slot.own:
            self._ballot.vote(number, VoteKind.FINALISE, certificate.block)

    # Time

    def _is_wanted(self, now: float) -> bool:
        """Return whether somebody waits for a block, even for an empty one."""
        return (
            self._wishes.is_wanted(self.book.current)
            or self._clock.is_idle_for_long(now)
            or (self.book.is_unfinished and self._clock.is_impatient(now))
        )

    def _watch(self, now: float) -> None:
        """Time the current slot while its block is awaited, or while an earlier block is not final. For a silent leader
        its time is over at once.
        """
        slot = self.book.get(self.book.current)
        is_proposed = slot is not None and bool(slot.votes[VoteKind.PROPOSE])
        is_awaited = is_proposed or self.book.is_unfinished or self._is_wanted(now)
        is_leader_silent = self._keeper.is_silent(self.session.leader_of(self.book.current))
        self._clock.watch(is_awaited, now, is_leader_silent=is_leader_silent)

    def _make_wish(self, now: float) -> None:
        if (
            self._has_wish
            and self._wishes.wish(self.index, self.book.current, now)
            and not self._leader.is_ours
        ):
            self._effects.append(Broadcast(Want(self.book.current).encode()))

    @property
    def _heard(self) -> tuple[int, ...]:
        if not self._is_started:
            return tuple(sorted(self._queries.answered_by | {self.index}))
        slot = self.book.at(self.book.current)
        return tuple(sorted({who for votes in slot.votes.values() for who in votes}))

    # Starting and asking

    def _start(self, now: float) -> None:
        """Begin to speak. Votes that a crash kept from being sent are sent now, as they stand on disk."""
        self._is_started = True
        self._queries.is_starting = False
        for peer in self._queries.answered_by:
            self._keeper.note_life(peer, self.book.current)
        self._clock.enter(now)
        if self._is_halted:
            return
        self._effects += self._ballot.said(self.book.current)
        for number, _ in self.book.slots():
            self._call_final(number)

    def _ask_around(self, now: float) -> None:
        is_busy = self._clock.is_awaited or self.book.is_unfinished
        self._effects += self._queries.ask_around(is_busy, now)
        if self._can_speak and self._has_wish and self._clock.is_awaited and not self._leader.is_ours:
            self._effects.append(Broadcast(Want(self.book.current).encode()))

    # Details

    @property
    def _can_speak(self) -> bool:
        return self._is_started and not self._is_halted

    def _dispute(self, number: int) -> None:
        slot = self.book.get(number)
        certificate = slot.notarised if slot is not None else None
        reason = (
            slot.verdicts.get(certificate.block) if slot is not None and certificate is not None else None
        )
        if slot is not None and certificate is not None and reason is not None:
            if certificate.block not in slot.asked_again:
                return  # what we had against it may not count any more
            self._effects.append(DisputedBlock(number, certificate.block, reason))

    def _refuse(self, peer: int, rule: str, text: str) -> None:
        self._effects.append(RefusedPeer(peer, rule, text))

    def _halt(self, text: str) -> None:
        if not self._is_halted:
            self._is_halted = True
            self._effects.append(Halt(text))

    def _taken(self) -> list[Effect]:
        """Return all effects; what is to be written comes first, as one."""
        effects, self._effects = [*self._ballot.to_write(), *self._effects], []
        return effects
