"""The kit's list, its choice of cases, its report, and what a run says of results."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from stagepost.dmq.conform.attacker import (
    KEEP_ALIVE,
    OTHER_SIDE,
    PIECE_BYTES_KEPT_MAX,
    PIECES_KEPT_MAX,
    NodeTarget,
    RawSegment,
    Transcript,
)
from stagepost.dmq.conform.cases import CASES
from stagepost.dmq.conform.kit import KitOptions, chosen_cases, load_cast, new_pools
from stagepost.dmq.conform.playbook import ALL_TONGUES
from stagepost.dmq.conform.probing import ANSWERED_WITHIN_S, Probe, quick_patience_s
from stagepost.dmq.conform.report import ALL_HOLD, COULD_NOT_LOOK, DEVIATIONS, ConformReport
from stagepost.dmq.conform.rules import MEMORY, RULES, SERVED
from stagepost.dmq.conform.runner import Abilities, CaseResult, CaseState
from stagepost.dmq.conform.serving import CLIENT_CASES
from stagepost.dmq.message import DmqMessage

ABLE = Abilities(ALL_TONGUES, has_local_seed=True, takes=True, tells=True, judges=True)
BOTH = NodeTarget(3_141, Path("s"), 42)


def result(state: CaseState) -> CaseResult:
    strict = next(case for case in CASES if RULES[case.rule].is_own)
    plain = next(case for case in CASES if not RULES[case.rule].is_own)
    match state:
        case CaseState.DIFFERS:
            return CaseResult(strict, faults=["it stays"])
        case CaseState.DEVIATES:
            return CaseResult(plain, faults=["it stays"])
        case CaseState.NOT_LOOKED:
            return CaseResult(plain, not_looked="no pools")
    return CaseResult(plain)


def report(*states: CaseState) -> ConformReport:
    return ConformReport("here", 42, "auto", [], [result(state) for state in states])


def test_names_of_cases_are_unique_and_every_rule_is_tried() -> None:
    every = (*CASES, *CLIENT_CASES)
    assert len({case.name for case in every}) == len(every)
    assert {case.rule for case in every} == RULES.keys() - {SERVED.name, MEMORY.name}
    assert all(case.rule.startswith("client.") for case in CLIENT_CASES)


@pytest.mark.parametrize("state", CaseState)
def test_a_result_has_the_state_that_it_was_made_for(state: CaseState) -> None:
    assert result(state).state is state


def test_who_is_not_served_deviates_whatever_the_case_tries() -> None:
    found = replace(result(CaseState.DIFFERS), faults=[], unserved="nobody answered")

    assert found.state is CaseState.DEVIATES
    assert found.rule is SERVED


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ((CaseState.HOLDS,), ALL_HOLD),
        ((CaseState.HOLDS, CaseState.DIFFERS), ALL_HOLD),
        ((CaseState.HOLDS, CaseState.NOT_LOOKED), COULD_NOT_LOOK),
        ((CaseState.DEVIATES, CaseState.NOT_LOOKED), DEVIATIONS),
        ((), COULD_NOT_LOOK),
    ],
)
def test_exit_code_never_calls_unseen_things_good(states: tuple[CaseState, ...], code: int) -> None:
    assert report(*states).exit_code == code


def test_json_counts_every_state() -> None:
    counts = report(CaseState.HOLDS, CaseState.HOLDS, CaseState.DEVIATES).as_json()["counts"]

    assert counts == {"holds": 2, "deviates": 1, "differs": 0, "not looked at": 0}


@pytest.mark.parametrize(
    ("found", "options", "reason"),
    [
        (Probe(replace(BOTH, socket=None), ABLE), KitOptions(), "no local socket was given"),
        (Probe(replace(BOTH, port=None), ABLE), KitOptions(), "no address was given"),
        (
            Probe(BOTH, replace(ABLE, tongues=frozenset())),
            KitOptions(),
            "a way of message submission that the node does not speak",
        ),
        (Probe(BOTH, ABLE), KitOptions(only=("mux.*",)), "not among --only"),
        (Probe(BOTH, ABLE), KitOptions(), "a flood: give --floods"),
    ],
)
def test_cases_that_do_not_apply_are_left_out_with_the_reason(
    found: Probe, options: KitOptions, reason: str
) -> None:
    chosen, left_out = chosen_cases(CASES, found, options)

    assert left_out[reason] > 0
    assert len(chosen) + left_out.total() == len(CASES)


def test_everything_is_chosen_where_everything_can_be_looked_at() -> None:
    assert chosen_cases(CASES, Probe(BOTH, ABLE), KitOptions(floods=True)) == (list(CASES), Counter())


@pytest.mark.parametrize(
    ("patience_s", "quick_s"), [(0.3, ANSWERED_WITHIN_S), (12.0, 3.0), (12.4, 3.1), (40.0, 10.0)]
)
def test_a_slow_node_gets_more_time_for_the_first_questions(patience_s: float, quick_s: float) -> None:
    target = NodeTarget(1, None, 42, patience_s=patience_s)
    assert quick_patience_s(target) == pytest.approx(quick_s)


def test_numbers_are_translated_with_their_direction() -> None:
    target = NodeTarget(1, None, 42, lanes={KEEP_ALIVE: 8})

    assert target.lane(KEEP_ALIVE | OTHER_SIDE) == 8 | OTHER_SIDE
    assert RawSegment(KEEP_ALIVE, b"x").bytes_for(target).hex() == "00000000" + "0008" + "0001" + "78"


def test_a_transcript_keeps_so_much_and_counts_everything() -> None:
    transcript = Transcript()
    for _ in range(PIECES_KEPT_MAX + 1):
        transcript.add(True, 0.0, bytes(PIECE_BYTES_KEPT_MAX + 1))
    transcript.add(False, 0.0, b"answer")

    assert len(transcript.pieces) == PIECES_KEPT_MAX + 1
    assert {len(piece.data) for piece in transcript.pieces} == {PIECE_BYTES_KEPT_MAX, 6}
    assert transcript.said_bytes == (PIECES_KEPT_MAX + 1) * (PIECE_BYTES_KEPT_MAX + 1)


def test_pools_of_a_folder_are_the_same_again(tmp_path: Path) -> None:
    new_pools(tmp_path / "kit")
    first, second = load_cast(tmp_path / "kit"), load_cast(tmp_path / "kit")

    assert [pool.pool_id for pool, _ in first.stakes] == [pool.pool_id for pool, _ in second.stakes]
    assert first.evolved_pool.kes_key == second.evolved_pool.kes_key


def test_the_kits_messages_are_those_of_the_node() -> None:
    from stagepost.dmq.conform.forged_messages import Forger, message

    made = message(Forger(evolution=3), start_period=4)

    assert DmqMessage.decode(made.raw).message_id == made.identifier
