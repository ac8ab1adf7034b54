"""Every checker can fail: a history without fault passes all, and one planted fault is found by the rule it breaks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

import pytest

from stagepost.simulation import checkers
from stagepost.simulation import history as history_module
from stagepost.simulation.checkers import LIVENESS, SAFETY, judge
from stagepost.simulation.history import (
    History,
    ListenerConnection,
    Listing,
    Made,
    NotifiedMessage,
    SubmissionAnswer,
)

START = 1_000_000.0
FIRST, SECOND, FORGED, SHORT = b"first....", b"second...", b"forged...", b"short...."


def an_answer(
    raw: bytes, at_s: float, node: str = "a", life: int = 1, accepted: bool = True
) -> SubmissionAnswer:
    return SubmissionAnswer(node, life, at_s, START + at_s, raw, accepted)


def a_listing(node: str, at_s: float, why: str, *raws: bytes, life: int = 1) -> Listing:
    return Listing(node, life, at_s, START + at_s, raws, why)


def heard(raw: bytes, at_s: float) -> NotifiedMessage:
    return NotifiedMessage(at_s, START + at_s, raw)


def a_good_history() -> History:
    """Two nodes, two long messages and a short one; node a restarts at 50 s."""
    history = History(START, ended_at_s=100.0)
    history.made = {
        FIRST: Made(int(START) + 1_000),
        SECOND: Made(int(START) + 1_000),
        FORGED: Made(int(START) + 1_000, "its signature is broken"),
        SHORT: Made(int(START) + 20),
    }
    history.answers = [
        an_answer(FIRST, 1),
        an_answer(FORGED, 2, accepted=False),
        an_answer(SHORT, 3),
        an_answer(FIRST, 4, accepted=False),
        an_answer(SECOND, 60, node="b"),
    ]
    history.cursors = [
        ListenerConnection("a", 1, 0, 0.5, heard=[heard(FIRST, 1.1), heard(SHORT, 3.1)], closed_at_s=45.0),
        ListenerConnection("a", 2, 1, 55.0, heard=[heard(FIRST, 55.1), heard(SECOND, 61.0)]),
        ListenerConnection("b", 1, 2, 0.5, heard=[heard(FIRST, 2.0), heard(SHORT, 4.0), heard(SECOND, 60.1)]),
    ]
    history.listings = [
        a_listing("a", 50, "restart", FIRST, life=2),
        a_listing("a", 90, "final", FIRST, SECOND, life=2),
        a_listing("b", 90, "final", FIRST, SECOND),
    ]
    return history


def test_a_good_history_passes_every_checker() -> None:
    assert judge(a_good_history(), (*SAFETY, *LIVENESS)) == []


def reports_a_bug(history: History) -> None:
    history.bugs.append("nobody handled: KeyError")


def accuses_an_honest_peer(history: History) -> None:
    history.accusations.append("a says of b: peer broke a rule: PROTOCOL_WINDOW")


def accepts_a_forgery(history: History) -> None:
    history.answers[1] = replace(history.answers[1], accepted=True)


def tells_a_forgery(history: History) -> None:
    history.cursors[0].heard.append(heard(FORGED, 5))


def lists_an_invention(history: History) -> None:
    history.listings[1] = a_listing("a", 90, "final", FIRST, SECOND, b"invented", life=2)


def repeats(history: History) -> None:
    history.cursors[2].heard.append(heard(FIRST, 61))


def lists_twice(history: History) -> None:
    history.listings[2] = a_listing("b", 90, "final", FIRST, SECOND, FIRST)


def changes_the_order(history: History) -> None:
    history.listings[2] = a_listing("b", 90, "final", SECOND, FIRST)


def skips(history: History) -> None:
    history.cursors[2].heard.pop()


def skips_a_short_one(history: History) -> None:
    history.cursors[0].heard.pop()


def skips_what_came_from_a_peer(history: History) -> None:
    history.cursors[1].heard.pop()


def forgets_at_the_restart(history: History) -> None:
    history.listings[0] = a_listing("a", 50, "restart", life=2)


def forgets_what_came_from_a_peer(history: History) -> None:
    history.listings.append(a_listing("b", 70, "restart", SECOND, life=2))


def accepts_a_replay(history: History) -> None:
    history.answers[3] = replace(history.answers[3], accepted=True)


def accepts_a_replay_after_the_restart(history: History) -> None:
    history.answers.append(an_answer(FIRST, 70, life=2))


def shows_what_expired(history: History) -> None:
    history.cursors[1].heard.insert(0, heard(SHORT, 55))


def lists_what_expired(history: History) -> None:
    history.listings[0] = a_listing("a", 50, "restart", FIRST, SHORT, life=2)


def accepts_what_expired(history: History) -> None:
    history.answers.append(an_answer(SHORT, 40, node="b"))


def refuses_an_honest_message(history: History) -> None:
    history.answers.append(
        replace(an_answer(SECOND, 61), accepted=False, reason="KES_SIGNATURE: it does not hold")
    )


def loses_a_message_on_the_way(history: History) -> None:
    history.listings[1] = a_listing("a", 90, "final", FIRST, life=2)


def holds_what_no_program_submitted_there(history: History) -> None:
    """Nobody was told that it is accepted, but one node has it and the other has not."""
    history.made[b"unanswered"] = Made(int(START) + 1_000)
    history.listings[2] = a_listing("b", 90, "final", FIRST, SECOND, b"unanswered")


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (reports_a_bug, "no_bug_was_reported"),
        (accuses_an_honest_peer, "no_honest_peer_is_accused"),
        (accepts_a_forgery, "only_genuine_messages"),
        (tells_a_forgery, "only_genuine_messages"),
        (lists_an_invention, "only_genuine_messages"),
        (repeats, "no_cursor_repeats"),
        (lists_twice, "no_cursor_repeats"),
        (changes_the_order, "cursors_of_a_node_agree_on_the_order"),
        (skips, "no_cursor_skips"),
        (skips_a_short_one, "no_cursor_skips"),
        (skips_what_came_from_a_peer, "open_cursors_have_heard_what_is_listed"),
        (forgets_at_the_restart, "what_was_accepted_survives_a_restart"),
        (forgets_what_came_from_a_peer, "what_was_told_survives_a_restart"),
        (accepts_a_replay, "no_replay_is_accepted"),
        (accepts_a_replay_after_the_restart, "no_replay_is_accepted"),
        (shows_what_expired, "nothing_expired_is_shown"),
        (lists_what_expired, "nothing_expired_is_shown"),
        (accepts_what_expired, "nothing_expired_is_shown"),
        (refuses_an_honest_message, "honest_messages_were_accepted"),
        (loses_a_message_on_the_way, "every_accepted_message_is_everywhere"),
        (holds_what_no_program_submitted_there, "mempools_agree"),
    ],
)
def test_a_planted_fault_is_found_by_the_rule_it_breaks(plant: Callable[[History], None], rule: str) -> None:
    history = a_good_history()
    plant(history)

    violations = judge(history, (*SAFETY, *LIVENESS))

    assert any(violation.startswith(f"{rule}:") for violation in violations), violations


def test_every_checker_is_planted_against() -> None:
    planted = {
        mark.args[1][index][1]
        for mark in test_a_planted_fault_is_found_by_the_rule_it_breaks.pytestmark  # type: ignore[attr-defined]
        for index in range(len(mark.args[1]))
    }

    assert planted == {check.__name__ for check in (*SAFETY, *LIVENESS)}


def test_checkers_share_no_code_with_the_nodes() -> None:
    for module in (checkers, history_module):
        lines = inspect.getsource(module).splitlines()
        ours = [line for line in lines if "import" in line and "stagepost" in line]
        assert [line for line in ours if "stagepost.simulation" not in line] == []
