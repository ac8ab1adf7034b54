"""Questions of a validator about messages that it missed, and answers to the questions of others.

Every message is sent once to all; a lost message is found by asking, now and then, one validator after
another. The answer goes on where the asker's own knowledge ends, and is never longer than its limits.

At the start a validator asks everybody, because others may hold votes of its own that its disk lost: it may
speak when a quorum has really answered. A query that failed, timed out or was dropped is not an answer. A
validator answers before it has started itself, so validators that start together do not wait for each other
for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from random import Random

from stagepost.chain.agreement.book import Book
from stagepost.chain.agreement.effects import Ask
from stagepost.chain.agreement.messages import FinalBlock, Proposal, decode_final_block
from stagepost.chain.agreement.pacing import MemberOptions
from stagepost.chain.agreement.queries import (
    ANSWER_BYTES_MAX,
    CANDIDATES_ASKED_MAX,
    FRAMES_MAX,
    SKIPS_ASKED_MAX,
    GetProgress,
    Progress,
)
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import VoteKind
from stagepost.ground.statemachine.lifecycle import StartAnswers

SLOTS_PER_ANSWER_MAX = 32
OWN_VOTES_SHOWN_MAX = 256
ASKED_AT_ONCE_MAX = 8

Archive = Callable[[int], bytes | None]
"""Function from a slot to the record of the first final block of that slot or a later one, as `Finalised`
gave it; None if there is none.
"""


class ProgressQueries:
    """The queries under way; nothing here outlives a restart. `answered_by`: validators whose answers counted
    at the start.
    """

    def __init__(
        self, session: Session, index: int, book: Book, random: Random, options: MemberOptions
    ) -> None:
        self._session = session
        self._book = book
        self._random = random
        self._options = options
        self._others = [peer for peer in range(session.size) if peer != index]
        self._number = 0
        self._asked: dict[int, tuple[int, float]] = {}
        self._signer_asked_in = 0
        self.is_starting = True
        self.answered_by: set[int] = set()
        self.next_at = 0.0

    @property
    def has_quorum(self) -> bool:
        """Return whether enough validators have answered that this one knows what can be known of its own past."""
        return len(self.answered_by) >= self.answers_needed

    @property
    def answers_needed(self) -> int:
        """Number of other validators whose answers are needed before this one speaks."""
        answers = self._options.answers
        needs_all = (
            self._book.final_slot > 0 if answers is StartAnswers.FOUNDING else answers is StartAnswers.GAP
        )
        return len(self._others) if needs_all else self._session.quorum - 1

    def ask_around(self, is_busy: bool, now: float) -> list[Ask]:
        """Ask everybody at the start; afterwards one validator after another."""
        options = self._options
        pause_s = options.ask_every_s if is_busy or self.is_starting else options.ask_when_idle_s
        self.next_at = now + pause_s * self._random.uniform(0.75, 1.25)
        if self.is_starting:
            left = [peer for peer in self._others if peer not in self.answered_by]
            if left or options.answers is not StartAnswers.GAP:
                return [ask for peer in left for ask in self.ask(peer, now)]
        return self.ask(self._random.choice(self._others), now) if self._others else []

    def ask_signer(self, signers: Iterable[int], slot: int, now: float) -> list[Ask]:
        """Ask one of `signers` for what we lack in `slot`. At most once per slot.

        They signed the slot's certificate, and have its block; or its proposal, and can show why its parent may be
        built upon.
        """
        others = [peer for peer in signers if peer in self._others]
        if not others or slot <= self._signer_asked_in:
            return []
        self._signer_asked_in = slot
        return self.ask(self._random.choice(others), now)

    def ask(self, peer: int, now: float) -> list[Ask]:
        """Ask `peer`, unless it or too many others have not answered an earlier query yet."""
        self._asked = {number: one for number, one in self._asked.items() if now < one[1]}
        waiting = [whom for whom, _ in self._asked.values()]
        if peer in waiting or (len(waiting) >= ASKED_AT_ONCE_MAX and not self.is_starting):
            return []
        self._number += 1
        self._asked[self._number] = peer, now + self._options.query_timeout_s
        return [Ask(peer, self._number, self.query().encode())]

    def ended(self, peer: int, number: int) -> bool:
        """Forget query `number` to `peer`, answered or failed. Return whether it was under way: late answers are nobody's
        fault, and of no use."""
        if self._asked.get(number, (None, 0.0))[0] != peer:
            return False
        del self._asked[number]
        return True

    def count_answer(self, peer: int) -> None:
        """Count a real answer of `peer`, all of whose messages have been heard."""
        if self.is_starting:
            self.answered_by.add(peer)

    def query(self) -> GetProgress:
        book = self._book
        # Below an orphan, either the very next final block is missing or one behind those that we know: both are tried.
        is_from_final = book.has_orphan and self._random.random() < 0.5
        return GetProgress(
            book.final_slot,
            book.final_slot + 1 if is_from_final else book.first_unknown,
            book.current,
            self.is_starting,
            tuple(missing_candidates(book))[:CANDIDATES_ASKED_MAX],
            tuple(islice(missing_skips(book), SKIPS_ASKED_MAX)),
        )


def missing_candidates(book: Book) -> Iterator[bytes]:
    """Return the blocks that have a certificate but are not here."""
    for number in sorted(book.lacking):
        certificate = book.at(number).notarised
        if certificate is not None:
            yield certificate.block


def missing_skips(book: Book) -> Iterator[int]:
    """Return the slots whose SKIP certificates we need to tell whether the candidate of our slot may be built
    where it is.
    """
    slot = book.get(book.current)
    for proposal in slot.candidates.values() if slot is not None else ():
        parent_slot = book.slot_of(proposal.candidate.parent)
        if parent_slot is not None:
            yield from book.not_skipped(parent_slot, book.current)


def answer(query: GetProgress, asker: int, book: Book, archive: Archive | None) -> bytes:
    frames: list[bytes] = []
    size = 0
    for frame in _frames(query, asker, book, archive):
        size += len(frame)
        if len(frames) >= FRAMES_MAX or (frames and size > ANSWER_BYTES_MAX):
            break
        frames.append(frame)
    return Progress(book.current, tuple(frames)).encode()


def _frames(query: GetProgress, asker: int, book: Book, archive: Archive | None) -> Iterator[bytes]:
    if query.is_starting:
        yield from _votes_of(asker, book)
    yield from _wanted(query, book)
    yield from _final_blocks(query, book, archive)
    yield from _open_slots(query, book)
    yield from _open_votes(query, book)


def _votes_of(validator: int, book: Book) -> Iterator[bytes]:
    """Return the validator's own votes, newest first: those it must not contradict."""
    shown = 0
    for _, slot in book.newest_slots():
        for votes in slot.votes.values():
            vote = votes.get(validator)
            if vote is None:
                continue
            if shown >= OWN_VOTES_SHOWN_MAX:
                return
            shown += 1
            yield vote.encode()


def _wanted(query: GetProgress, book: Book) -> Iterator[bytes]:
    for block in query.candidates:
        number = book.slot_of(block)
        slot = book.get(number) if number is not None else None
        if slot is not None and block in slot.candidates:
            yield slot.candidates[block].encode()
    for number in query.skips:
        slot = book.get(number)
        if slot is not None and slot.is_skipped:
            yield slot.certificates[VoteKind.SKIP].encode()


def _final_blocks(query: GetProgress, book: Book, archive: Archive | None) -> Iterator[bytes]:
    """Return the final blocks, each after its certificate, from which the asker learns that it wants the
    block.
    """
    if book.final_slot <= query.final_slot:
        return
    number = query.from_slot
    for _ in range(SLOTS_PER_ANSWER_MAX):
        block = _final_block(number, book, archive)
        if block is None:
            break
        yield block.certificate.encode()
        yield Proposal(block.candidate, block.signature).encode()
        number = block.candidate.slot + 1
    if number > book.final_slot and book.final_certificate is not None:
        yield book.final_certificate.encode()


def _final_block(number: int, book: Book, archive: Archive | None) -> FinalBlock | None:
    if book.tail and number > book.tail[0].candidate.slot:
        return next((block for block in book.tail if block.candidate.slot >= number), None)
    record = archive(number) if archive is not None else None
    return decode_final_block(record) if record is not None else next(iter(book.tail), None)


def _open_slots(query: GetProgress, book: Book) -> Iterator[bytes]:
    told = 0
    for _, slot in book.slots(query.from_slot):
        if not (slot.certificates or slot.candidates):
            continue
        if told >= SLOTS_PER_ANSWER_MAX:
            return
        told += 1
        for certificate in slot.certificates.values():
            yield certificate.encode()
        for proposal in slot.candidates.values():
            yield proposal.encode()


def _open_votes(query: GetProgress, book: Book) -> Iterator[bytes]:
    """Return the votes of the slots that can still move: those where the asker and we are, and that of the
    block that waits to become final.
    """
    for number in sorted({book.top, query.slot - 1, query.slot, book.current - 1, book.current}):
        slot = book.get(number)
        if slot is None:
            continue
        if VoteKind.FINALISE in slot.certificates and number < query.from_slot:
            yield slot.certificates[VoteKind.FINALISE].encode()
        for kind, votes in slot.votes.items():
            if kind is not VoteKind.PROPOSE and kind not in slot.certificates:
                yield from (vote.encode() for vote in votes.values())
