"""The referee: whose turn it is, whom to blame, deadlines, and what was said ahead."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stagepost.errors import ErrorCode, LocalProtocolError, ProtocolTimeout, RemoteProtocolError
from stagepost.ground.statemachine.referee import PIPELINE_DEPTH_MAX, Referee
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State


@dataclass(frozen=True)
class Ask:
    patiently: bool = False


@dataclass(frozen=True)
class Answer:
    pass


@dataclass(frozen=True)
class Leave:
    pass


IDLE = State("Idle", Role.CLIENT, timeout_s=300)
QUICK = State("Quick", Role.SERVER, timeout_s=10)
PATIENT = State("Patient", Role.SERVER)
DONE = State("Done", speaker=None, timeout_s=10)
TALK = ProtocolSpec(
    name="Talk",
    initial=IDLE,
    edges=(
        Edge(IDLE, Ask, QUICK, {"patiently": False}),
        Edge(IDLE, Ask, PATIENT, {"patiently": True}),
        Edge(IDLE, Leave, DONE),
        Edge(QUICK, Answer, IDLE),
        Edge(QUICK, Leave, DONE),
        Edge(PATIENT, Answer, IDLE),
    ),
    pipelined={QUICK: IDLE},
)


def a_client(now: float = 0.0) -> Referee:
    return Referee(TALK, Role.CLIENT, now)


def a_server(now: float = 0.0) -> Referee:
    return Referee(TALK, Role.SERVER, now)


def test_a_conversation_begins_in_the_initial_state_with_its_deadline() -> None:
    referee = a_client(now=5.0)

    assert referee.state == referee.speaking_from == IDLE
    assert referee.deadline == 305.0
    assert not referee.is_over


def test_field_values_pick_the_edge() -> None:
    for message, target in ((Ask(patiently=True), PATIENT), (Ask(patiently=False), QUICK)):
        referee = a_client()
        referee.sent(message, now=0.0)
        assert referee.state == target


def test_a_state_without_a_limit_has_no_deadline() -> None:
    referee = a_client()
    referee.sent(Ask(patiently=True), now=1.0)

    assert referee.deadline is None
    referee.check_deadline(now=1e9)


def test_speaking_out_of_turn_is_blamed_on_the_speaker() -> None:
    server = a_server()
    with pytest.raises(LocalProtocolError, match="Ask said in Idle: it is the client's turn"):
        server.sent(Ask(), now=0.0)

    client = a_client()
    with pytest.raises(RemoteProtocolError, match="Ask said in Idle") as caught:
        client.received(Ask(), now=0.0)

    assert (caught.value.code, caught.value.state, caught.value.found) == (
        ErrorCode.PROTOCOL_STATE,
        "Idle",
        "Ask",
    )
    assert server.state == client.state == IDLE


def test_a_message_that_has_no_edge_is_blamed_on_the_speaker() -> None:
    with pytest.raises(LocalProtocolError, match="not allowed there"):
        a_client().sent(Answer(), now=0.0)
    with pytest.raises(RemoteProtocolError, match="not allowed there"):
        a_server().received(Answer(), now=0.0)


def test_nothing_can_be_said_after_the_end() -> None:
    for role in Role:
        referee = Referee(TALK, role, now=0.0)
        (referee.sent if role is Role.CLIENT else referee.received)(Leave(), now=7.0)
        assert referee.is_over
        assert referee.deadline == 17.0
        for message in (Ask(), Answer(), Leave()):
            with pytest.raises(LocalProtocolError):
                referee.sent(message, now=8.0)
            with pytest.raises(RemoteProtocolError):
                referee.received(message, now=8.0)
        assert referee.is_over


def test_silence_is_blamed_on_the_side_that_had_the_word() -> None:
    with pytest.raises(ProtocolTimeout, match="silence in Idle for 300 s") as caught:
        a_server().check_deadline(now=300.0)
    assert (caught.value.code, caught.value.state) == (ErrorCode.PROTOCOL_TIMEOUT, "Idle")

    with pytest.raises(LocalProtocolError) as ours:
        a_client().check_deadline(now=300.0)
    assert ours.value.code is ErrorCode.PROTOCOL_TIMEOUT


def test_just_before_the_deadline_nothing_is_late() -> None:
    a_server().check_deadline(now=299.999)


def test_a_finished_conversation_is_never_late() -> None:
    referee = a_client()
    referee.sent(Leave(), now=0.0)

    referee.check_deadline(now=1e9)


def test_each_message_starts_the_time_of_the_next_state() -> None:
    referee = a_client()
    referee.sent(Ask(), now=100.0)
    assert referee.deadline == 110.0
    referee.received(Answer(), now=109.0)
    assert referee.deadline == 409.0


def test_outstanding_counts_what_the_peer_has_not_answered() -> None:
    referee = a_client()
    counts = [referee.outstanding]
    for _ in range(3):
        referee.sent(Ask(), now=0.0)
        counts.append(referee.outstanding)
    for _ in range(3):
        referee.received(Answer(), now=0.0)
        counts.append(referee.outstanding)

    assert counts == [0, 1, 2, 3, 2, 1, 0]


def test_an_end_said_by_the_peer_cancels_what_was_said_ahead() -> None:
    referee = a_client()
    for _ in range(3):
        referee.sent(Ask(), now=0.0)

    referee.received(Leave(), now=4.0)

    assert referee.is_over
    assert referee.outstanding == 0
    assert referee.deadline == 14.0
    with pytest.raises(RemoteProtocolError):
        referee.received(Answer(), now=5.0)


def test_a_wrong_answer_while_ahead_moves_nothing() -> None:
    referee = a_client()
    referee.sent(Ask(), now=0.0)
    referee.sent(Ask(), now=1.0)

    with pytest.raises(RemoteProtocolError):
        referee.received(Ask(), now=2.0)

    assert (referee.state, referee.outstanding, referee.deadline) == (QUICK, 2, 10.0)


def test_what_cannot_be_said_in_the_resumed_state_cannot_be_said_ahead() -> None:
    referee = a_client()
    referee.sent(Ask(), now=0.0)

    with pytest.raises(LocalProtocolError):
        referee.sent(Answer(), now=0.0)

    assert referee.outstanding == 1


@pytest.mark.parametrize("depth", [1, 2, PIPELINE_DEPTH_MAX])
def test_the_depth_limit_counts_every_unanswered_request(depth: int) -> None:
    referee = Referee(TALK, Role.CLIENT, now=0.0, pipeline_depth_max=depth)
    for _ in range(depth):
        referee.sent(Ask(), now=0.0)

    with pytest.raises(LocalProtocolError) as caught:
        referee.sent(Ask(), now=0.0)

    assert caught.value.limit == depth
    assert referee.outstanding == depth


def test_the_trace_hears_everything_that_was_said_and_nothing_that_was_refused() -> None:
    heard: list[tuple[bool, str, str, str]] = []
    referee = Referee(
        TALK,
        Role.CLIENT,
        now=0.0,
        trace=lambda ours, message, before, after: heard.append(
            (ours, type(message).__name__, before.name, after.name)
        ),
    )
    referee.sent(Ask(), now=0.0)
    with pytest.raises(RemoteProtocolError):
        referee.received(Ask(), now=0.0)
    referee.received(Answer(), now=0.0)
    referee.sent(Leave(), now=0.0)

    assert heard == [
        (True, "Ask", "Idle", "Quick"),
        (False, "Answer", "Quick", "Idle"),
        (True, "Leave", "Idle", "Done"),
    ]


def test_a_spec_lists_its_states_and_messages_once_in_order() -> None:
    assert TALK.states == (IDLE, QUICK, PATIENT, DONE)
    assert TALK.messages == (Ask, Leave, Answer)
    assert TALK.state("Patient") is PATIENT
    assert Role.CLIENT.other is Role.SERVER
    assert Role.SERVER.other is Role.CLIENT


def test_an_edge_accepts_its_exact_message_type_only() -> None:
    class Louder(Ask):
        pass

    edge = Edge(IDLE, Ask, QUICK, {"patiently": False})

    assert edge.accepts(Ask())
    assert not edge.accepts(Ask(patiently=True))
    assert not edge.accepts(Louder())
