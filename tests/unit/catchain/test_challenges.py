"""Challenges: a member that goes on without an answer is convicted by its own blocks, and an honest one never is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from rigs.catchain_keys import public_key_of
from stagepost.catchain import challenges as rules
from stagepost.catchain.budgets import AuthorAccount, Budget, Rates
from stagepost.catchain.challenges import (
    ANSWERS_PER_BLOCK,
    BLOCKS_TO_ANSWER,
    OPEN_MAX,
    ChallengeBook,
    ChallengeFault,
    MemberChallenge,
    OpenChallenge,
)
from stagepost.catchain.covers import Covers
from stagepost.ground.wire.tl import key_id
from stagepost.remp.queue.records import Header, LinkAnswer, LinkChallenge, content_of, date_rules
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.queue.state import SKEW_MS, PendingRecords, RecordLimits
from stagepost.remp.receipts.statements import empty_chain
from tests.worlds.catchain.catchain_attackers import (
    Attacker,
    ChallengeFlooder,
    Flooder,
    RepeatedChallenger,
    Unanswering,
    challenge_of,
    is_honest,
    world_with,
)
from tests.worlds.catchain.catchain_world import SESSION, World
from tests.worlds.remp.queue_world import Validator, message

IDS = [key_id(public_key_of(place)) for place in range(4)]
WHAT = b"session and message"
MESSAGES = 100


def validator(world: World, index: int) -> Validator:
    peer = world.peers[index]
    assert isinstance(peer, Validator)
    return peer


def honest(world: World) -> list[Validator]:
    return [peer for peer in world.peers if is_honest(peer) and isinstance(peer, Validator)]


def keep_busy(world: World) -> None:
    """Hand each member a message every 50 ms, so that each makes many blocks."""
    for number in range(MESSAGES):
        for place in range(world.size):
            one = message(1_000 * (place + 1) + number)
            world.at(1.0 + number * 0.05, partial(validator(world, place).hand_over, one))


def busy_world(attackers: dict[int, type[Attacker]], *, size: int = 4, until: float = 9.0) -> World:
    world = world_with(size, 5, attackers, loss=0.0)
    world.start_all()
    keep_busy(world)
    world.at(2.0, partial(validator(world, 0).challenge, size - 1, 7))
    world.run(until)
    return world


# The rule


def book_with(*, height: int = 5, count: int = 1) -> ChallengeBook:
    """Return a book in which member 0 challenges member 1 in one block of branch 1."""
    book = ChallengeBook(IDS)
    challenges = [MemberChallenge(IDS[1], b"%d" % number) for number in range(count)]
    book.delivered(0, 1, height, b"hash", challenges)
    return book


def rows(heights: dict[int, int]) -> Covers:
    return Covers(tuple(sorted(heights)), tuple(heights[one] for one in sorted(heights)))


def after(
    book: ChallengeBook, height: int, before: tuple[OpenChallenge, ...], answers: tuple[bytes, ...] = ()
) -> tuple[OpenChallenge, ...]:
    covered = rows({1: 5} if before else {1: 4})
    return book.after(1, height, before, covered, rows({1: 5}), answers)


def test_an_answer_in_the_last_block_but_one_is_in_time_and_in_the_last_too_late() -> None:
    book = book_with()
    still = after(book, 10, ())
    assert still == (OpenChallenge(0, b"0", 10),)
    last = 10 + BLOCKS_TO_ANSWER - 1
    for height in range(11, last):
        assert after(book, height, still) == still
    assert after(book, last - 1, still, (b"0",)) == ()
    with pytest.raises(
        ChallengeFault, match=f"block {BLOCKS_TO_ANSWER} of its author that rests on a challenge"
    ):
        after(book, last, still, (b"0",))


def test_a_block_that_does_not_rest_on_the_challenge_does_not_count() -> None:
    book = book_with(height=5)
    assert book.after(1, 10, (), rows({1: 3}), rows({1: 4}), ()) == ()
    assert book.after(1, 10, (), rows({}), rows({}), ()) == ()


def test_of_one_challenger_so_many_count_at_once_and_each_subject_once() -> None:
    book = book_with(count=OPEN_MAX + 1)
    still = after(book, 10, ())
    assert [one.subject for one in still] == [b"%d" % number for number in range(OPEN_MAX)]
    book.delivered(2, 2, 1, b"other", [MemberChallenge(IDS[1], b"0")])
    both = book.after(1, 11, still, rows({1: 5}), rows({1: 5, 2: 1}), ())
    assert len(both) == OPEN_MAX + 1, "another member may ask the same"
    assert not [
        one
        for one in book.after(1, 12, both, rows({1: 5, 2: 1}), rows({1: 5, 2: 1}), (b"0",))
        if one.subject == b"0"
    ]


def test_challenges_count_in_the_same_order_whatever_came_first() -> None:
    one, other = ChallengeBook(IDS), ChallengeBook(IDS)
    placed = [(0, 3, [b"a", b"b", b"c"]), (0, 4, [b"d", b"e"]), (2, 3, [b"f"])]
    for book, order in ((one, placed), (other, [placed[2], placed[0], placed[1]])):
        branches: dict[int, int] = {}
        for source, height, subjects in order:
            branch = branches.setdefault(source, len(branches) + 1)
            book.delivered(
                source, branch, height, b"%d" % height, [MemberChallenge(IDS[1], what) for what in subjects]
            )
    covers, covers_other = {1: 4, 2: 3}, {2: 4, 1: 3}
    assert one.after(1, 9, (), rows({}), rows(covers), ()) == other.after(
        1, 9, (), rows({}), rows(covers_other), ()
    )


@pytest.mark.parametrize("accused", [IDS[0], b"nobody".ljust(32)])
def test_a_challenge_of_oneself_or_of_nobody_here_counts_nowhere(accused: bytes) -> None:
    book = ChallengeBook(IDS)
    book.delivered(0, 1, 1, b"hash", [MemberChallenge(accused, WHAT)])
    assert not any(book.is_anybody_waiting_for(place) for place in range(4))


def test_the_same_challenge_twice_in_one_chain_is_refused() -> None:
    book, one = ChallengeBook(IDS), MemberChallenge(IDS[1], WHAT)
    book.refuse_repeated(1, 0, [one, MemberChallenge(IDS[2], WHAT), MemberChallenge(IDS[1], b"another")])
    with pytest.raises(ChallengeFault, match="twice"):
        book.refuse_repeated(1, 0, [one, one])
    book.delivered(0, 1, 3, b"hash", [one])
    with pytest.raises(ChallengeFault, match="twice"):
        book.refuse_repeated(1, 3, [one])


def test_a_branch_knows_what_its_author_asked_below_the_fork_and_nothing_above() -> None:
    book = ChallengeBook(IDS)
    below, above = MemberChallenge(IDS[1], b"below"), MemberChallenge(IDS[1], b"above")
    book.delivered(0, 1, 3, b"three", [below])
    book.delivered(0, 1, 4, b"four", [above])
    book.forked(2, 1, 3)
    book.refuse_repeated(2, 3, [above])
    with pytest.raises(ChallengeFault, match="twice"):
        book.refuse_repeated(2, 3, [below])
    book.refuse_repeated(1, 3, [above])


# An honest member's payloads


BUDGET = Budget(0, Rates(bytes_burst=20_000, bytes_per_s=1_000, headers_burst=2, headers_per_s=1))


def link_of(number: int) -> LinkAnswer:
    return LinkAnswer(empty_chain(SESSION, message(number).message_id))


def test_answers_go_first_and_at_most_so_many_in_one_block() -> None:
    pending = PendingRecords(RecordLimits(), BUDGET)
    for number in range(ANSWERS_PER_BLOCK + 1):
        pending.add(link_of(number))
    first = content_of(pending.next_payload(1, 0, AuthorAccount()) or b"")
    assert first is not None
    assert len(first.answers) == ANSWERS_PER_BLOCK
    second = content_of(pending.next_payload(2, 0, BUDGET.after(AuthorAccount(), first.totals)) or b"")
    assert second is not None
    assert len(second.answers) == 1
    assert not pending


def test_no_block_is_made_while_the_budget_has_no_room_for_the_answers() -> None:
    pending = PendingRecords(RecordLimits(), BUDGET)
    account = BUDGET.after(AuthorAccount(), AuthorAccount().totals.plus((0, 0, 1), 0))
    account = BUDGET.after(account, account.totals.plus((0, 0, BUDGET.rates.bytes_burst - 300), 0))
    for number in range(5):
        pending.add(link_of(number))
    assert pending.next_payload(1, 0, account, is_due=True) is None
    assert pending.is_held_back
    assert len(pending) == 5
    payload = pending.next_payload(2, 10_000, account)
    content = content_of(payload or b"")
    assert content is not None
    assert len(content.answers) == 5
    assert BUDGET.fault_in(account, content) is None


def test_a_challenge_is_charged_as_a_header_is() -> None:
    pending = PendingRecords(RecordLimits(), BUDGET)
    account = BUDGET.after(AuthorAccount(), AuthorAccount().totals.plus((0, 0, 1), 0))
    for number in range(3):
        pending.add(LinkChallenge(IDS[1], empty_chain(SESSION, message(number).message_id)))
    content = content_of(pending.next_payload(1, 0, account) or b"")
    assert content is not None
    assert len(content.challenges) == content.amounts[0] == BUDGET.rates.headers_burst
    assert pending.is_held_back


# A network


def test_who_goes_on_without_an_answer_is_blamed_by_its_own_blocks() -> None:
    world = busy_world({3: Unanswering})
    for peer in honest(world):
        assert peer.blamed == {3}, f"member {peer.index} blames {peer.blamed}"
        assert f"block {BLOCKS_TO_ANSWER} of its author" in peer.member.graph.fault_of(3)


def test_who_answers_is_not_blamed() -> None:
    world = busy_world({})
    for peer in honest(world):
        assert not peer.blamed
    assert world.peers[3].member.graph.top(3).height > 2 * BLOCKS_TO_ANSWER


def test_who_makes_no_blocks_is_silent_and_that_is_no_offence() -> None:
    world = world_with(4, 5, {3: Unanswering}, loss=0.0)
    world.start_all()
    world.run(1.0)
    world.peers[3].member._is_halted = True
    validator(world, 0).challenge(3, 7)
    world.run(60.0)
    assert not any(peer.blamed for peer in world.peers)


@pytest.mark.parametrize("crash_at", [2.1, 2.3])
def test_a_crash_between_challenge_and_answer_convicts_nobody(crash_at: float) -> None:
    world = world_with(4, 5, {}, loss=0.0)
    world.start_all()
    keep_busy(world)
    for place in range(3):
        world.at(2.0 + place * 0.1, partial(validator(world, place).challenge, 3, place))
    world.at(crash_at, world.peers[3].crash)
    world.at(crash_at + 0.5, world.peers[3].start_if_down)
    world.run(9.0)
    assert not any(peer.blamed for peer in world.peers)
    contents = [content_of(payload) for source, _, _, payload in world.peers[0].delivered if source == 3]
    assert len({subject for one in contents if one is not None for subject in one.answers}) == 3


class ChallengeBurst(Flooder):
    """Asks one member for thousands of things at once, as its budget allows."""

    is_provable = False
    headers = 1_260

    def flood_payload(
        self, headers: list[Header], number: int, account: AuthorAccount
    ) -> tuple[bytes, AuthorAccount]:
        asked = [challenge_of(0, number + place) for place in range(len(headers))]
        return self.payload(asked, 9_000 + number, account)


@pytest.mark.parametrize("kind", [ChallengeFlooder, ChallengeBurst])
def test_a_flood_of_challenges_convicts_no_honest_member(kind: type[Attacker]) -> None:
    world = world_with(4, 5, {3: kind}, loss=0.0)
    world.dates = date_rules(0, SKEW_MS, Rates())
    world.start_all()
    keep_busy(world)
    world.run(9.0)
    for peer in honest(world):
        assert not peer.blamed, f"member {peer.index} blames {peer.blamed}"
        assert peer.member.graph.top(0).height > BLOCKS_TO_ANSWER
    contents = [content_of(payload) for source, _, _, payload in world.peers[1].delivered if source == 0]
    assert sum(len(one.answers) for one in contents if one is not None) >= OPEN_MAX


def test_who_asks_the_same_twice_is_blamed() -> None:
    world = world_with(4, 5, {3: RepeatedChallenger}, loss=0.0)
    world.start_all()
    world.run(20.0)
    for peer in honest(world):
        assert peer.blamed == {3}
        assert "twice" in peer.member.graph.fault_of(3)


# The tests can tell


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = {
    "answers are forgotten": (
        lambda patch: patch.setattr(ReliableQueue, "answer", lambda queue, newest: []),
        test_who_answers_is_not_blamed,
    ),
    "nobody has to answer": (
        lambda patch: patch.setattr(ChallengeBook, "after", lambda *_: ()),
        test_who_goes_on_without_an_answer_is_blamed_by_its_own_blocks,
    ),
    "a challenge counts as often as it is made": (
        lambda patch: patch.setattr(ChallengeBook, "refuse_repeated", lambda *_: None),
        test_who_asks_the_same_twice_is_blamed,
    ),
    "a member may have to answer anything at once": (
        lambda patch: patch.setattr(rules, "OPEN_MAX", 1 << 30),
        partial(test_a_flood_of_challenges_convicts_no_honest_member, ChallengeBurst),
    ),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_is_noticed(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, notice = PLANTED[defect]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        notice()
