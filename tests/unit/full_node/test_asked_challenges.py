"""Challenges that a full node asks for: whoever says nothing has to answer in its own blocks, the one who asks is charged,
and a validator that lies about an outcome convicts nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec
import pytest

from rigs.catchain_keys import public_key_of, seed_of
from rigs.remp_overlay_world import OPTIONS, House, OverlayWorld, message_bytes
from stagepost.catchain.block import Block, HashVersion, block_id, root_reference
from stagepost.catchain.challenges import OPEN_MAX
from stagepost.catchain.graph import Graph
from stagepost.errors import DecodeError, StorageError
from stagepost.full_node.complaints import (
    ASK_NEXT_S,
    ASKED_MAX,
    SILENT_LIVES,
    ChallengeEnd,
    ChallengeReport,
    QuestionBook,
)
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.wire.tl import ZERO_INT256, key_id
from stagepost.remp.queue.records import LinkAnswer, Totals, answer_in_block, encode_payload
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.statements import (
    AskedChallenge,
    ChallengeOutcome,
    StatementLink,
    empty_chain,
    is_outcome,
)
from stagepost.remp.validator_sets import MESSAGE_TIMEOUT_MS
from stagepost.validator import asked_challenges
from stagepost.validator.asked_challenges import ASK_BURST, ASK_EVERY_S, WhyNotAsked
from tests.worlds.ground.memoised_signatures import memoised_signatures

LIFE_S = 10.0
SHORT_LIVED = msgspec.structs.replace(
    OPTIONS, queue=msgspec.structs.replace(OPTIONS.queue, message_timeout_s=LIFE_S)
)
LOOKED_AFTER_S = LIFE_S + SILENT_LIVES * MESSAGE_TIMEOUT_MS / 1_000 + 5
ACCUSED = 3


def in_world(act: Callable[[OverlayWorld], Coroutine[Any, Any, None]], size: int = 4) -> None:
    async def main() -> None:
        world = OverlayWorld(size, 1, options=SHORT_LIVED)
        world.start()
        await asyncio.sleep(1.0)
        await act(world)
        for house in world.houses:
            await house.running.close()
        assert world.malformed == []

    with memoised_signatures():
        run_in_virtual_time(main())


def hide_closings(house: House) -> None:
    """Let a validator show full nodes nothing but its first receipt of each message, and what it says as a relay."""
    honest = house.tell

    def tell(full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        if not is_outcome(combined_receipt):
            kinds = {one.kind.name for one in CombinedReceipt.decode(combined_receipt).receipts}
            if kinds != {"PutIntoQueue"}:
                return True
        return honest(full_node, combined_receipt, statement)

    house.tell = tell  # type: ignore[method-assign]


def graphs(houses: list[House]) -> list[Graph]:
    return [runner.graph for house in houses for runner in house.running.current.values()]


def answer_nothing(house: House) -> None:
    for runner in house.running.current.values():
        runner._answer = lambda newest: None  # type: ignore[method-assign]


async def keep_talking(world: OverlayWorld, seconds: float) -> None:
    for number in range(round(seconds)):
        world.hand_over(message_bytes(1_000 + number))
        await asyncio.sleep(1.0)


def test_nobody_is_asked_about_validators_that_say_how_a_message_ended() -> None:
    async def act(world: OverlayWorld) -> None:
        world.hand_over(message_bytes(1))
        await asyncio.sleep(LOOKED_AFTER_S + 2 * ASK_NEXT_S)
        assert world.full_node.challenges.asked == 0
        assert world.challenged == []

    in_world(act)


def test_receipts_that_a_validator_hides_are_shown_by_its_own_block() -> None:
    async def act(world: OverlayWorld) -> None:
        accused = world.houses[ACCUSED]
        hide_closings(accused)
        message_id = world.hand_over(message_bytes(1))
        await asyncio.sleep(LOOKED_AFTER_S)
        (report,) = world.challenged
        newest = accused.running.statements.chains.newest(report.known.session_id, message_id)
        assert (report.outcome, report.accused, report.newest) == (
            ChallengeEnd.FURTHER,
            accused.key_id,
            newest,
        )
        assert newest is not None
        assert newest.number > report.known.number
        # One validator was asked, and nobody is blamed for an answer.
        assert sum(house.running.asked.made for house in world.houses) == 1
        assert not any(graph.blamed for graph in graphs(world.houses))

    in_world(act)


def test_a_validator_that_goes_on_without_an_answer_is_convicted_by_more_than_may_lie() -> None:
    async def act(world: OverlayWorld) -> None:
        accused = world.houses[ACCUSED]
        hide_closings(accused)
        answer_nothing(accused)
        world.hand_over(message_bytes(1))
        await asyncio.sleep(LOOKED_AFTER_S)
        assert world.challenged == []
        await keep_talking(world, 45)
        assert (world.challenged[0].outcome, world.challenged[0].accused) == (
            ChallengeEnd.CONVICTED,
            accused.key_id,
        )
        assert all(set(graph.blamed) == {ACCUSED} for graph in graphs(world.houses[:ACCUSED]))

    in_world(act)


def test_a_validator_that_is_down_is_asked_about_and_not_blamed() -> None:
    async def act(world: OverlayWorld) -> None:
        world.wires.cut.add(ACCUSED)
        world.hand_over(message_bytes(1))
        await asyncio.sleep(LOOKED_AFTER_S)
        assert world.full_node.challenges.asked == 1
        await keep_talking(world, 5)
        await asyncio.sleep(4 * ASK_NEXT_S)
        assert world.challenged[0].outcome is ChallengeEnd.UNKNOWN
        assert not any(graph.blamed for graph in graphs(world.houses[:ACCUSED]))

    in_world(act)


# Who is charged


class Asker:
    """A full node's questions to one validator of a world, with all that it is told."""

    def __init__(self, world: OverlayWorld, full_node: bytes | None = None) -> None:
        self.world = world
        self.full_node = world.full_node.source_id if full_node is None else full_node
        self.to = world.houses[0].running
        self.session_id = world.houses[0].plans[0].session_id

    def ask(self, message_id: bytes, accused: int = ACCUSED) -> str | None:
        """Ask once; return why the validator does not make the challenge."""
        before = self.to.asked.refused.copy()
        link = empty_chain(self.session_id, message_id)
        question = AskedChallenge(key_id(public_key_of(accused)), link)
        self.to.message_came(self.full_node, question.encode())
        return next(iter(self.to.asked.refused - before), None)


async def with_messages(world: OverlayWorld, count: int) -> list[bytes]:
    ids = [world.hand_over(message_bytes(number)) for number in range(count)]
    await asyncio.sleep(3.0)
    return ids


def test_a_full_node_may_ask_a_burst_and_then_one_in_a_while() -> None:
    async def act(world: OverlayWorld) -> None:
        ids = await with_messages(world, ASK_BURST + 2)
        asker = Asker(world)
        # Spread over two members, so that none of them has more open challenges of ours than count.
        said = [asker.ask(one, ACCUSED - at % 2) for at, one in enumerate(ids[: ASK_BURST + 1])]
        assert said == [None] * ASK_BURST + [WhyNotAsked.TOO_OFTEN]
        await asyncio.sleep(ASK_EVERY_S - 1)
        assert asker.ask(ids[-1]) == WhyNotAsked.TOO_OFTEN
        await asyncio.sleep(1.1)
        assert asker.ask(ids[-1]) is None
        # What was refused has cost nobody anything: as many challenges are in the graph as were made.
        await asyncio.sleep(5)
        assert world.counts["LinkChallenge"] == 3 * (ASK_BURST + 1)
        assert asker.to.asked.told["answered"] == asker.to.asked.made == ASK_BURST + 1

    in_world(act)


def test_only_as_many_as_count_are_open_against_one_member() -> None:
    async def act(world: OverlayWorld) -> None:
        ids = await with_messages(world, OPEN_MAX + 1)
        answer_nothing(world.houses[ACCUSED])
        asker = Asker(world)
        assert [asker.ask(one) for one in ids] == [None] * OPEN_MAX + [WhyNotAsked.BUSY]
        assert asker.ask(ids[0]) is None  # it waits for that one already
        assert asker.ask(ids[-1], ACCUSED - 1) is None
        await asyncio.sleep(5)
        assert world.counts["LinkChallenge"] == 3 * (OPEN_MAX + 1)

    in_world(act)


def test_what_no_honest_full_node_asks_for_makes_no_challenge() -> None:
    async def act(world: OverlayWorld) -> None:
        (message_id,) = await with_messages(world, 1)
        asker = Asker(world)
        assert asker.ask(bytes(32)) == WhyNotAsked.NOT_ITS_MESSAGE
        assert Asker(world, b"x" * 32).ask(message_id) == WhyNotAsked.NOT_ITS_MESSAGE
        assert asker.ask(message_id, 0) == WhyNotAsked.OURSELVES
        assert asker.ask(message_id, 9) == WhyNotAsked.NOT_A_MEMBER

        def refuse(full_node: bytes, asked: AskedChallenge) -> None:
            raise StorageError("the disk is full")

        asker.to.asked._record = refuse
        assert asker.ask(message_id) == WhyNotAsked.NOT_RECORDED
        with pytest.raises(DecodeError):
            asker.to.message_came(
                asker.full_node,
                AskedChallenge(bytes(32), empty_chain(bytes(32), message_id)).encode() + b"more",
            )
        await asyncio.sleep(2)
        assert (asker.to.asked.made, world.counts["LinkChallenge"]) == (0, 0)

    in_world(act)


def test_who_asks_later_gets_the_answer_that_has_come() -> None:
    async def act(world: OverlayWorld) -> None:
        (message_id,) = await with_messages(world, 1)
        told: list[bytes] = []
        asker = Asker(world)

        def tell(full_node: bytes, said: bytes) -> bool:
            told.append(said)
            return True

        asker.to.asked._tell = tell
        assert asker.ask(message_id) is None
        await asyncio.sleep(3)
        assert asker.ask(message_id) is None
        first, second = told
        assert first == second
        block = ChallengeOutcome.decode(first).block
        subject = asker.session_id + message_id
        assert answer_in_block(block, public_key_of(ACCUSED), subject).number == 1
        assert world.counts["LinkChallenge"] == 3

    in_world(act)


def test_answers_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_challenges, "ANSWERED_MAX", 2)

    async def act(world: OverlayWorld) -> None:
        ids = await with_messages(world, 3)
        asker = Asker(world)
        for one in ids:
            assert asker.ask(one) is None
        await asyncio.sleep(3)
        (session,) = asker.to.asked._sessions.values()
        assert [subject[32:] for _, subject in session.answered] == ids[1:]

    in_world(act)


# Lies about an outcome

SESSION, MESSAGE = b"s" * 32, b"m" * 32
MEMBERS = tuple(range(7))


def link(number: int, mark: bytes = b"r") -> StatementLink:
    hashes = [ZERO_INT256, *(mark * 31 + bytes([at]) for at in range(1, number + 1))]
    before = hashes[number - 1] if number else ZERO_INT256
    return StatementLink(SESSION, MESSAGE, number, before, hashes[number])


def block_with(newest: StatementLink, author: int = ACCUSED) -> bytes:
    payload = encode_payload([Totals(), LinkAnswer(newest)], 1)
    block = Block(bytes(32), author, 1, root_reference(bytes(32), len(MEMBERS)), (), b"", payload)
    content = block_id(bytes(32), ident(author), 1, block.data_hash(HashVersion.WITH_REFERENCES))
    return msgspec.structs.replace(block, signature=ed25519.sign(seed_of(author), content)).encode()


def ident(number: int) -> bytes:
    return key_id(public_key_of(number))


class Book:
    """A book that has asked about the accused, of whose chain it knows two links."""

    def __init__(self, *, linked: frozenset[int] = frozenset(MEMBERS)) -> None:
        self.asked: list[bytes] = []
        self.reports: list[ChallengeReport] = []
        self.recorded: list[tuple[bytes, bytes]] = []
        self.linked = {ident(one) for one in linked}
        self.book = QuestionBook(
            Random(1), self._send, self.reports.append, lambda *one: self.recorded.append(one)
        )
        assert self.book.ask(ident(ACCUSED), link(2), frozenset(map(ident, MEMBERS)), 0.0)

    def _send(self, validator: bytes, question: bytes) -> bool:
        if validator not in self.linked:
            return False
        asked = AskedChallenge.decode(question)
        assert asked.last == link(2)
        assert asked.accused != validator
        self.asked.append(validator)
        return True

    def hear(self, block: bytes, relay: bytes | None = None, known: StatementLink | None = None) -> None:
        outcome = ChallengeOutcome(ident(ACCUSED), SESSION, MESSAGE, block)
        relay = self.asked[-1] if relay is None else relay
        self.book.came(relay, outcome, public_key_of(ACCUSED), known or link(2), 1.0)

    @property
    def outcomes(self) -> list[str]:
        return [str(one.outcome) for one in self.reports]


@pytest.mark.parametrize(
    ("newest", "known", "outcome"),
    [
        (link(2), link(2), ChallengeEnd.SAME),
        (link(3), link(2), ChallengeEnd.FURTHER),
        (link(9), link(2), ChallengeEnd.FURTHER),
        (link(1), link(2), ChallengeEnd.FEWER),
        (link(0), link(2), ChallengeEnd.FEWER),
        (link(2, b"x"), link(2), ChallengeEnd.OTHER),
        (link(3, b"x"), link(2), ChallengeEnd.OTHER),
        # What came while the question was under way counts as known.
        (link(3), link(3), ChallengeEnd.SAME),
        (link(3, b"x"), link(3), ChallengeEnd.OTHER),
    ],
)
def test_an_answer_is_compared_with_what_is_known(
    newest: StatementLink, known: StatementLink, outcome: ChallengeEnd
) -> None:
    book = Book()
    book.hear(block_with(newest), known=known)
    (report,) = book.reports
    assert (report.outcome, report.newest) == (outcome, newest)
    assert bool(report.block) is (outcome is ChallengeEnd.OTHER)
    book.hear(block_with(newest))  # a second time says nothing new
    assert len(book.reports) == 1


@pytest.mark.parametrize(
    "block",
    [
        block_with(link(3), author=ACCUSED + 1),
        block_with(msgspec.structs.replace(link(3), message_id=b"n" * 32)),
        block_with(msgspec.structs.replace(link(3), session_id=b"t" * 32)),
        block_with(link(3))[:-4],
        block_with(link(3)).replace(link(3).receipt, b"z" * 32),
        b"no block",
    ],
    ids=["another author", "another message", "another session", "cut", "changed", "no block"],
)
def test_an_answer_that_the_accused_has_not_signed_is_refused(block: bytes) -> None:
    book = Book()
    with pytest.raises(DecodeError):
        book.hear(block)
    assert book.reports == []


def test_fewer_than_may_lie_convict_nobody() -> None:
    book = Book()
    for _ in range(9):
        book.hear(b"", relay=book.asked[0])  # one of seven says it again and again
    assert len(book.asked) == 2
    book.hear(b"")
    assert len(book.asked) == 3
    assert book.reports == []
    book.hear(b"")
    assert book.outcomes == ["convicted"]
    stranger = Book()
    stranger.hear(b"", relay=next(one for one in map(ident, MEMBERS) if one not in stranger.asked))
    assert stranger.reports == []


def test_a_true_answer_ends_what_a_liar_began() -> None:
    book = Book()
    book.hear(b"")
    book.hear(block_with(link(2)))
    assert book.outcomes == ["same"]


def test_the_next_one_is_asked_until_enough_were_and_then_the_outcome_is_unknown() -> None:
    book = Book(linked=frozenset(MEMBERS) - {0})
    for at in range(1, 20):
        book.book.tick(at * ASK_NEXT_S)
    assert ident(ACCUSED) not in book.asked
    assert ident(0) not in book.asked
    assert len(set(book.asked)) == len(book.asked) == 5
    assert book.outcomes == ["unknown"]
    assert book.book.next_wake is None
    assert Book(linked=frozenset()).outcomes == ["unknown"]


def test_each_message_and_member_is_asked_about_once_until_the_message_is_forgotten() -> None:
    book = Book()
    members = frozenset(map(ident, MEMBERS))
    assert not book.book.ask(ident(ACCUSED), link(2), members, 1.0)
    assert book.book.ask(ident(ACCUSED + 1), link(2), members, 1.0)
    book.book.forget(MESSAGE)
    assert book.book.next_wake is None
    book.hear(block_with(link(2)), relay=book.asked[0])
    assert book.reports == []
    assert book.book.ask(ident(ACCUSED), link(2), members, 2.0)
    assert [one for one, _ in book.recorded] == [ident(ACCUSED), ident(ACCUSED + 1), ident(ACCUSED)]


def test_the_number_of_awaited_outcomes_is_bounded_and_nothing_is_asked_unrecorded() -> None:
    book = Book()
    members = frozenset(map(ident, MEMBERS))
    links = [
        msgspec.structs.replace(link(2), message_id=bytes([0, 0, *divmod(at, 256)]) * 8)
        for at in range(ASKED_MAX)
    ]
    book.book = QuestionBook(Random(1), lambda *one: True, book.reports.append, lambda *one: None)
    assert [book.book.ask(ident(ACCUSED), one, members, 0.0) for one in links] == [True] * ASKED_MAX
    assert not book.book.ask(ident(ACCUSED), link(2), members, 0.0)

    def refuse(accused: bytes, message_id: bytes) -> None:
        raise StorageError("the disk is full")

    book.book = QuestionBook(Random(1), book._send, book.reports.append, refuse)
    asked = len(book.asked)
    assert not book.book.ask(ident(ACCUSED), link(2), members, 0.0)
    assert len(book.asked) == asked
