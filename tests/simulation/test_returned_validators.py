"""A validator whose disk is lost, or replaced by an older copy, never signs a second time for anything that it ever signed.

The checker hears every vote, every block of a queue and every receipt of every validator, also frames that got lost.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from stagepost.chain.node.own_memory import MEMORY_FILE, SESSIONS_MAX, MemoryNote, open_memory
from stagepost.errors import StorageError
from stagepost.ground.files.data_folder import RESTORED_FILE, RestoredNote
from stagepost.ground.loop.clock import loop_clock
from stagepost.ground.statemachine.lifecycle import StartAnswers
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.sessions import SessionFacts
from tests.worlds.remp.returned_validators import run_returns

KNOWN_WORST = (21, 29)
SEEDS = 60
"""Runs, at most, until one shows a validator that takes its disk for complete: about one in ten does."""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_a_validator_that_comes_back_signs_nothing_twice(number: int, run_seed: int) -> None:
    print(f"seed {run_seed + number}")
    outcome = run_returns(run_seed + number)
    assert not outcome.faults
    assert outcome.votes > 50
    assert outcome.final


@pytest.mark.slow
@pytest.mark.parametrize("seed", KNOWN_WORST)
def test_known_worst_moments(seed: int) -> None:
    assert not run_returns(seed).faults


@pytest.mark.slow
def test_the_checker_finds_a_validator_that_takes_its_disk_for_complete() -> None:
    """It signs two blocks at one height, or contradicts a receipt."""
    assert any(run_returns(seed, knows_its_gap=False).faults for seed in range(SEEDS))


def session(number: int, from_ms: int, started_by: int = 7) -> LedgerSession:
    facts = SessionFacts(0, 1 << 63, 0, 0, number, bytes(32), ())
    return LedgerSession(facts, (), number, (), started_by, from_ms, from_ms + 1_000)


def test_the_memory_is_complete_after_the_gap_and_where_the_validator_speaks_again(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, lambda: 50_000, is_new=True)
    assert memory.answers(session(1, 50_001)) is StartAnswers.QUORUM
    assert memory.answers(session(2, 50_000)) is StartAnswers.GAP
    assert memory.answers(session(3, 1_000, started_by=0)) is StartAnswers.FOUNDING
    # A clock that is behind takes no session for new.
    assert memory.answers(session(4, 55_000)) is StartAnswers.QUORUM
    assert memory.answers(session(4, 55_001)) is StartAnswers.GAP
    memory.spoke(session(2, 50_000).session_id)
    again = open_memory(tmp_path, lambda: 90_000, is_new=False)
    assert again.answers(session(2, 50_000)) is StartAnswers.QUORUM
    assert again.answers(session(5, 50_000)) is StartAnswers.GAP
    assert again.answers(session(6, 60_000)) is StartAnswers.QUORUM
    for number in range(SESSIONS_MAX + 3):
        again.spoke(b"%032d" % number)
    assert again.note is not None
    assert len(again.note.sessions) == SESSIONS_MAX
    # The stores are gone once more.
    assert open_memory(tmp_path, lambda: 95_000, is_new=True).note == MemoryNote(95_000)


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_clock_that_is_set_ahead_after_the_start_does_not_shorten_the_gap(
    tmp_path: Path, is_restored: bool
) -> None:
    """A machine that begins with the clock of a copy, a minute behind: the validator may have spoken within that minute."""
    now_ms, mono_s = [50_000], [7.0]
    if is_restored:
        note = RestoredNote("validator", "ab", 40_000, 50_000)
        (tmp_path / RESTORED_FILE).write_bytes(msgspec.json.encode(note))
    with loop_clock(lambda: mono_s[0]):
        memory = open_memory(tmp_path, lambda: now_ms[0], is_new=not is_restored)
        now_ms[0], mono_s[0] = 113_000, 10.0
        assert memory.answers(session(1, 80_000)) is StartAnswers.GAP
        assert memory.answers(session(2, 110_001)) is StartAnswers.QUORUM
        # Another process finds what this one learned, and a step back changes nothing.
        now_ms[0] = 60_000
        assert memory.answers(session(1, 60_500)) is StartAnswers.GAP
        now_ms[0] = 120_000
        again = open_memory(tmp_path, lambda: now_ms[0], is_new=False)
        assert again.answers(session(1, 80_000)) is StartAnswers.GAP
        assert again.answers(session(2, 110_001)) is StartAnswers.QUORUM
        # Later steps have nothing to do with the gap.
        now_ms[0] = 500_000
        assert again.answers(session(2, 110_001)) is StartAnswers.QUORUM


def test_a_restore_makes_a_gap_once(tmp_path: Path) -> None:
    assert open_memory(tmp_path, lambda: 5, is_new=False).note is None
    note = RestoredNote("validator", "ab", 40_000, 60_000)
    (tmp_path / RESTORED_FILE).write_bytes(msgspec.json.encode(note))
    # The clock is behind the one that dated the restore.
    memory = open_memory(tmp_path, lambda: 50_000, is_new=False)
    assert memory.note == MemoryNote(60_000, restored="ab@60000")
    assert memory.answers(session(1, 1_000, started_by=0)) is StartAnswers.GAP
    memory.spoke(session(2, 50_000).session_id)
    assert open_memory(tmp_path, lambda: 99_000, is_new=False).note == memory.note
    (tmp_path / RESTORED_FILE).write_bytes(
        msgspec.json.encode(msgspec.structs.replace(note, restored_at_ms=80_000))
    )
    assert open_memory(tmp_path, lambda: 99_000, is_new=False).note == MemoryNote(99_000, restored="ab@80000")


def test_a_memory_that_cannot_be_read_keeps_the_validator_from_starting(tmp_path: Path) -> None:
    for content in ("", "{", json.dumps({"complete_since_ms": 1, "version": 2})):
        (tmp_path / MEMORY_FILE).write_text(content)
        with pytest.raises(StorageError, match=r"memory\.json cannot be read"):
            open_memory(tmp_path, lambda: 1, is_new=False)
