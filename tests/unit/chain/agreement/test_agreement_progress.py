"""Asking for what was missed, and answering, at the edges of what is asked, kept and shown."""

from __future__ import annotations

from random import Random

from stagepost.chain.agreement.book import TAIL_BLOCKS_MAX, Book
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.messages import FinalBlock, Proposal, decode_message
from stagepost.chain.agreement.pacing import MemberOptions
from stagepost.chain.agreement.progress import ASKED_AT_ONCE_MAX, OWN_VOTES_SHOWN_MAX, ProgressQueries, answer
from stagepost.chain.agreement.queries import GetProgress, decode_answer
from stagepost.chain.agreement.votes import NO_BLOCK, Vote, VoteKind
from tests.worlds.chain.agreement_world import SESSION_ID, START, session_of

OPTIONS = MemberOptions(query_timeout_s=2.0)


def certificate(slot: int, kind: VoteKind, block: bytes = NO_BLOCK) -> Certificate:
    return Certificate(SESSION_ID, slot, kind, block, ((0, bytes(64)),))


def add_block(book: Book, slot: int, parent: bytes, kind: VoteKind = VoteKind.NOTARISE) -> bytes:
    block = Candidate(slot, parent, b"block")
    book.add_candidate(block.hash, Proposal(block, bytes(64)))
    book.add_certificate(certificate(slot, kind, block.hash))
    book.current = max(book.current, slot + 1)
    return block.hash


def a_chain(blocks: int) -> tuple[Book, list[FinalBlock]]:
    """All of it final, one after another."""
    book, parent, final = Book(0, START), START, []
    for slot in range(1, blocks + 1):
        parent = add_block(book, slot, parent, VoteKind.FINALISE)
        final += book.settle()
    return book, final


def shown(book: Book, query: GetProgress, asker: int = 1) -> list[object]:
    return [decode_message(frame) for frame in decode_answer(answer(query, asker, book, None)).frames]


def test_eight_are_asked_at_once_nobody_twice_and_again_after_two_seconds() -> None:
    asking = ProgressQueries(session_of(13), 12, Book(0, START), Random(1), OPTIONS)
    asking.is_starting = False
    asked = [peer for peer in (*range(12), 0) if asking.ask(peer, now=0.0)]
    assert asked == list(range(ASKED_AT_ONCE_MAX))
    assert not asking.ask(11, now=1.99)
    assert asking.ask(11, now=2.0)


def test_at_the_start_everybody_is_asked_until_he_answers() -> None:
    asking = ProgressQueries(session_of(13), 12, Book(0, START), Random(1), OPTIONS)
    asks = asking.ask_around(False, now=0.0)
    assert [ask.peer for ask in asks] == list(range(12))
    for ask in asks[:8]:
        assert not asking.has_quorum or len(asking.answered_by) >= 8
        assert asking.ended(ask.peer, ask.number)
        assert not asking.ended(ask.peer, ask.number), "once is enough"
        asking.count_answer(ask.peer)
    assert asking.has_quorum
    assert [ask.peer for ask in asking.ask_around(False, now=2.0)] == [8, 9, 10, 11]


def test_a_query_that_ended_without_an_answer_does_not_count() -> None:
    asking = ProgressQueries(session_of(4), 0, Book(0, START), Random(1), OPTIONS)
    for ask in asking.ask_around(False, now=0.0):
        assert asking.ended(ask.peer, ask.number)
    assert not asking.answered_by
    assert not asking.has_quorum
    assert [ask.peer for ask in asking.ask_around(False, now=0.1)] == [1, 2, 3], "asked again at once"


def test_an_answer_of_somebody_else_is_none() -> None:
    asking = ProgressQueries(session_of(4), 0, Book(0, START), Random(1), OPTIONS)
    (ask,) = asking.ask(2, now=0.0)
    assert not asking.ended(1, ask.number)
    assert asking.ended(2, ask.number)


def test_the_last_32_final_blocks_are_held_and_older_ones_come_from_the_archive() -> None:
    book, final = a_chain(TAIL_BLOCKS_MAX + 3)
    assert [one.candidate.slot for one in book.tail] == list(range(4, TAIL_BLOCKS_MAX + 4))
    first = [one for one in shown(book, GetProgress(3, 4, 4)) if isinstance(one, Proposal)]
    assert [one.candidate.slot for one in first] == list(range(4, TAIL_BLOCKS_MAX + 4))

    asked: list[int] = []

    def archive(slot: int) -> bytes:
        asked.append(slot)
        return final[slot - 1].encode()

    frames = decode_answer(answer(GetProgress(0, 1, 1), 1, book, archive)).frames
    blocks = [one for one in map(decode_message, frames) if isinstance(one, Proposal)]
    assert [one.candidate.slot for one in blocks] == list(range(1, 33))
    assert asked == [1, 2, 3, 4]


def test_a_starting_validator_is_shown_its_newest_256_votes() -> None:
    book = Book(0, START)
    for slot in range(1, OWN_VOTES_SHOWN_MAX + 11):
        book.at(slot).votes[VoteKind.SKIP][1] = Vote(1, slot, VoteKind.SKIP, NO_BLOCK, bytes(64))
        book.at(slot).votes[VoteKind.SKIP][2] = Vote(2, slot, VoteKind.SKIP, NO_BLOCK, bytes(64))
    book.current = OWN_VOTES_SHOWN_MAX + 11
    votes = shown(book, GetProgress(0, 1, 1, is_starting=True))[:OWN_VOTES_SHOWN_MAX]
    assert [one.slot for one in votes if isinstance(one, Vote) and one.validator == 1] == list(
        range(OWN_VOTES_SHOWN_MAX + 10, 10, -1)
    )


def test_we_ask_from_where_our_chain_ends_and_skipped_slots_count_as_known() -> None:
    book = Book(0, START)
    assert (book.top, book.first_unknown) == (0, 1)
    block = add_block(book, 1, START)
    book.add_certificate(certificate(2, VoteKind.SKIP))
    book.add_certificate(certificate(3, VoteKind.SKIP))
    assert (book.top, book.first_unknown) == (1, 4)
    add_block(book, 5, bytes([9]) * 32)
    assert book.first_unknown == 4, "a block whose parent is missing does not count"
    assert book.has_orphan
    add_block(book, 6, block)
    assert (book.top, book.first_unknown) == (6, 7), "slots that a block leaves out behind it need no asking"


def test_below_an_orphan_both_the_next_final_block_and_the_next_unknown_one_are_asked_for() -> None:
    book = Book(0, START)
    add_block(book, 1, START)
    add_block(book, 5, bytes([9]) * 32)
    asking = ProgressQueries(session_of(4), 0, book, Random(1), OPTIONS)
    assert {asking.query().from_slot for _ in range(20)} == {1, 2}


def test_what_is_final_by_an_older_certificate_does_not_wait_for_a_newer_one() -> None:
    book = Book(0, START)
    first = add_block(book, 1, START, VoteKind.FINALISE)
    add_block(book, 9, bytes([9]) * 32, VoteKind.FINALISE)
    assert [one.certificate.block for one in book.settle()] == [first]
    assert book.final_slot == 1


def test_a_leader_builds_on_the_newest_good_block_over_skipped_slots_and_waits_for_what_it_lacks() -> None:
    book = Book(0, START)
    block = add_block(book, 1, START)
    assert book.parent_for(2) is None, "it was not judged yet"
    book.add_verdict(1, block, None)
    assert book.parent_for(2) == block
    assert book.parent_for(3) is None, "nobody knows what became of slot 2"
    book.add_certificate(certificate(2, VoteKind.SKIP))
    assert book.parent_for(3) == block
    book.add_verdict(1, block, "bad")
    assert book.parent_for(3) is None
    book.add_certificate(certificate(1, VoteKind.SKIP))
    assert book.parent_for(3) == START
