"""The start of a member: which answers count, and what it waits for before it speaks."""

from __future__ import annotations

from random import Random

import pytest

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.catchain.block import incarnation_of
from stagepost.catchain.effects import Ask, Effect, Persist
from stagepost.catchain.graph import Graph
from stagepost.catchain.member import Member, MemberOptions
from stagepost.catchain.queries import BlockNotFound, Difference, Sent, encode_answer
from stagepost.ground.wire.tl import key_id
from tests.worlds.catchain.catchain_world import SESSION

SIZE = 4
NOTHING_NEW = encode_answer(Difference((0,) * SIZE))


class Driven:
    """Member 0, whose payload is always at hand."""

    def __init__(self, start_wait_s: float = 1.0, current: tuple[int, ...] | None = None) -> None:
        keys = [public_key_of(index) for index in range(SIZE)]
        graph = Graph(incarnation_of(SESSION, [key_id(key) for key in keys]), keys)
        options = MemberOptions(start_wait_s=start_wait_s, idle_timeout_s=4.0)
        self.now = 0.0
        self.asked: dict[int, Ask] = {}
        self.made: list[Persist] = []
        self.member = Member(
            graph,
            0,
            seed_of(0),
            lambda is_due, account: b"a payload",
            Random(1),
            0.0,
            options,
            current=current,
        )

    def take(self, effects: list[Effect]) -> None:
        self.asked |= {one.peer: one for one in effects if isinstance(one, Ask)}
        self.made += [one for one in effects if isinstance(one, Persist) and one.is_own]

    def wait(self, seconds: float) -> None:
        """Tick in small steps; whoever was asked gets no answer here."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.05
            self.take(self.member.tick(self.now))

    def answer(self, peer: int, answer: bytes | None) -> None:
        self.take(self.member.answered(peer, self.asked[peer].number, answer, self.now))


def asking(**options: object) -> Driven:
    driven = Driven(**options)  # type: ignore[arg-type]
    driven.wait(0.3)
    assert driven.asked.keys() == {1, 2, 3}, "everybody is asked"
    return driven


def test_a_quorum_of_answers_starts_it_and_not_before_the_wait_is_over() -> None:
    driven = asking()
    driven.answer(1, NOTHING_NEW)
    driven.answer(3, NOTHING_NEW)
    assert driven.member.answered_by == {1, 3}
    assert not driven.member.is_started
    driven.wait(1.0)
    assert driven.member.is_started


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(None, id="failed"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00" * 32, id="malformed"),
        pytest.param(encode_answer(BlockNotFound()), id="another kind"),
        pytest.param(encode_answer(Sent(0)), id="a number"),
        pytest.param(encode_answer(Difference(())), id="of no member"),
        pytest.param(encode_answer(Difference((1, 0, 0, 0))), id="more of ours, still on its way"),
    ],
)
def test_what_is_not_an_answer_does_not_count(second: bytes | None) -> None:
    driven = asking()
    driven.answer(1, NOTHING_NEW)
    driven.answer(2, second)
    driven.take(driven.member.speak_soon(driven.now))
    for _ in range(60):
        driven.wait(1.0)
        driven.answer(2, second)
        driven.answer(3, None)
    assert driven.member.answered_by == {1}
    assert not driven.member.is_started
    assert not driven.made


def test_the_same_answer_twice_counts_once() -> None:
    driven = asking()
    for _ in range(20):
        driven.answer(1, NOTHING_NEW)
        driven.wait(1.0)
    assert driven.member.answered_by == {1}
    assert not driven.member.is_started


def test_previous_members_do_not_count_at_the_start() -> None:
    driven = Driven(current=(0, 1, 2))
    driven.wait(0.3)
    assert driven.member.answers_needed == 2
    driven.answer(1, NOTHING_NEW)
    for _ in range(200):
        driven.wait(0.2)
        if 3 in driven.asked:
            driven.answer(3, NOTHING_NEW)
    assert driven.member.answered_by == {1}
    assert not driven.member.is_started
    driven.answer(2, NOTHING_NEW)
    driven.wait(0.1)
    assert driven.member.is_started


def test_in_a_session_that_begins_while_we_run_nobody_is_asked_first() -> None:
    driven = Driven(start_wait_s=0.0)
    driven.take(driven.member.tick(0.0))
    assert driven.member.is_started
