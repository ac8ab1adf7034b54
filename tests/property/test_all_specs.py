"""What follows from a declaration, for every protocol: both sides agree, nothing undeclared passes, all can end."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from stagepost.dmq.specs import ALL_SPECS
from stagepost.dmq.submission import RequestMessageIds
from stagepost.errors import LocalProtocolError
from stagepost.ground.statemachine.referee import PIPELINE_DEPTH_MAX, Referee
from stagepost.ground.statemachine.spec import ProtocolSpec, Role
from tests.worlds.ground.spec_checks import graph_faults, published_faults, refusal_faults
from tests.worlds.ground.strategies import an_example, examples_of, saying
from tests.worlds.pipeline.published_tables import PUBLISHED

WALK_STEPS_MAX = 20
every_spec = pytest.mark.parametrize("spec", ALL_SPECS, ids=lambda spec: spec.name)
PIPELINING_SPECS = tuple(spec for spec in ALL_SPECS if spec.pipelined)
every_pipelining_spec = pytest.mark.parametrize("spec", PIPELINING_SPECS, ids=lambda spec: spec.name)


def test_the_specs_are_those_that_were_published() -> None:
    assert {spec.name for spec in ALL_SPECS} == set(PUBLISHED)


@every_spec
def test_states_limits_and_transitions_are_the_published_ones(spec: ProtocolSpec) -> None:
    assert published_faults(spec, PUBLISHED[spec.name]) == []


@every_spec
def test_every_state_is_reachable_and_can_end_and_no_two_edges_compete(spec: ProtocolSpec) -> None:
    assert graph_faults(spec) == []


@given(st.sampled_from(ALL_SPECS), st.data())
@settings(max_examples=300)
def test_both_sides_agree_along_every_legal_walk(spec: ProtocolSpec, data: DataObject) -> None:
    sides = {role: Referee(spec, role, now=0.0) for role in Role}
    for step in range(WALK_STEPS_MAX):
        speaker = sides[Role.CLIENT].state.speaker
        if speaker is None:
            assert all(referee.is_over for referee in sides.values())
            break
        edge = data.draw(st.sampled_from(list(spec.edges_from(sides[speaker].state))))
        message = data.draw(saying(edge, 5, 4))
        now = float(step)
        for role, referee in sides.items():
            (referee.sent if role is speaker else referee.received)(message, now=now)
            assert referee.state == edge.target
            limit = edge.target.timeout_s
            assert referee.deadline == (None if limit is None else now + limit)


@every_spec
def test_exactly_one_edge_accepts_each_message(spec: ProtocolSpec) -> None:
    for state in spec.states:
        for kind in spec.messages:
            for message in examples_of(kind):
                accepting = [edge for edge in spec.edges_from(state) if edge.accepts(message)]
                assert len(accepting) <= 1


@every_spec
def test_every_undeclared_pair_is_refused_with_the_right_blame_and_moves_nothing(spec: ProtocolSpec) -> None:
    others = [message for other in ALL_SPECS for kind in other.messages for message in examples_of(kind)]
    foreign = [message for message in others if type(message) not in spec.messages]

    assert refusal_faults(spec, PUBLISHED[spec.name], foreign) == []


# Sending ahead


def _asker(spec: ProtocolSpec) -> Role:
    """Who has the word in Idle, and may ask again before the answer comes."""
    speaker = spec.state("Idle").speaker
    assert speaker is not None
    return speaker


def _in_idle(spec: ProtocolSpec, **options: Any) -> tuple[Referee, Referee]:
    """The asker and the answerer, both in Idle."""
    asker = Referee(spec, _asker(spec), now=0.0, **options)
    answerer = Referee(spec, _asker(spec).other, now=0.0)
    if spec.initial.name == "Init":
        (init,) = spec.edges_from(spec.initial)
        answerer.sent(an_example(init), now=0.0)
        asker.received(an_example(init), now=0.0)
    return asker, answerer


def _ahead_edges(spec: ProtocolSpec) -> list[Any]:
    return [edge for edge in spec.edges_from(spec.state("Idle")) if edge.target in spec.pipelined]


@given(st.sampled_from(PIPELINING_SPECS), st.data())
@settings(max_examples=200)
def test_asking_ahead_in_any_interleaving_agrees_with_a_peer_that_answers_in_order(
    spec: ProtocolSpec, data: DataObject
) -> None:
    asker, answerer = _in_idle(spec)
    under_way: deque[Any] = deque()
    for step in range(30):
        answers_now: bool = data.draw(st.booleans())
        if under_way and answers_now:
            answerer.received(under_way.popleft(), now=step)
            answer = an_example(next(spec.edges_from(answerer.state)))
            awaited = asker.state
            assert awaited == answerer.state
            answerer.sent(answer, now=step)
            asker.received(answer, now=step)
        else:
            edge = data.draw(st.sampled_from(_ahead_edges(spec)))
            question = an_example(edge)
            asker.sent(question, now=step)
            under_way.append(question)
        assert asker.outstanding == len(under_way)
        assert asker.state == (
            answerer.spec.next_state(answerer.state, under_way[0]) if under_way else answerer.state
        )

    while under_way:
        answerer.received(under_way.popleft(), now=99)
        answer = an_example(next(spec.edges_from(answerer.state)))
        answerer.sent(answer, now=99)
        asker.received(answer, now=99)
    assert asker.state == answerer.state == spec.state("Idle")
    assert asker.outstanding == 0


@every_pipelining_spec
def test_no_more_than_the_depth_limit_may_be_unanswered(spec: ProtocolSpec) -> None:
    asker, _ = _in_idle(spec)
    question = an_example(_ahead_edges(spec)[0])
    for _ in range(PIPELINE_DEPTH_MAX):
        asker.sent(question, now=0.0)

    with pytest.raises(LocalProtocolError) as refused:
        asker.sent(question, now=0.0)

    assert refused.value.limit == PIPELINE_DEPTH_MAX == asker.outstanding
    asker.received(an_example(next(spec.edges_from(asker.state))), now=0.0)
    asker.sent(question, now=0.0)
    assert asker.outstanding == PIPELINE_DEPTH_MAX


@every_pipelining_spec
def test_a_blocking_request_is_never_sent_ahead(spec: ProtocolSpec) -> None:
    for edge in _ahead_edges(spec):
        asker, _ = _in_idle(spec)
        asker.sent(an_example(edge), now=0.0)

        with pytest.raises(LocalProtocolError, match="cannot be pipelined"):
            asker.sent(RequestMessageIds(True, 0, 1), now=0.0)

        assert asker.outstanding == 1
        assert asker.state == edge.target


@every_pipelining_spec
def test_nothing_is_sent_ahead_of_the_answer_to_a_blocking_request(spec: ProtocolSpec) -> None:
    for edge in spec.edges_from(spec.state("Idle")):
        asker, _ = _in_idle(spec)
        asker.sent(RequestMessageIds(True, 0, 1), now=0.0)

        with pytest.raises(LocalProtocolError):
            asker.sent(an_example(edge), now=0.0)

        assert asker.state.name == "MessageIdsBlocking"


@every_pipelining_spec
def test_the_end_is_never_said_ahead(spec: ProtocolSpec) -> None:
    ends = [edge for edge in spec.edges_from(spec.state("Idle")) if edge.target.speaker is None]
    for end in ends:
        asker, _ = _in_idle(spec)
        asker.sent(an_example(_ahead_edges(spec)[0]), now=0.0)

        with pytest.raises(LocalProtocolError):
            asker.sent(an_example(end), now=0.0)

        assert not asker.is_over


@every_pipelining_spec
def test_the_answering_side_may_not_speak_ahead(spec: ProtocolSpec) -> None:
    for edge in _ahead_edges(spec):
        _, answerer = _in_idle(spec)
        answerer.received(an_example(edge), now=0.0)

        with pytest.raises(LocalProtocolError):
            answerer.sent(an_example(edge), now=0.0)

        assert answerer.state == edge.target


@every_pipelining_spec
def test_while_asking_ahead_the_deadline_is_that_of_the_oldest_unanswered_request(spec: ProtocolSpec) -> None:
    asker, _ = _in_idle(spec)
    first, second = _ahead_edges(spec)
    first_limit, second_limit = first.target.timeout_s, second.target.timeout_s
    assert first_limit is not None
    assert second_limit is not None

    asker.sent(an_example(first), now=100.0)
    asker.sent(an_example(second), now=105.0)
    assert asker.deadline == 100.0 + first_limit

    asker.received(an_example(next(spec.edges_from(first.target))), now=107.0)
    assert asker.deadline == 107.0 + second_limit
