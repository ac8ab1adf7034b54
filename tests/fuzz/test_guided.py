"""Guided by coverage, fuzzing finds nothing in the decoders, and finds a planted defect that guessing does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigs.optional import require
from tests.fuzz import kept_inputs
from tests.fuzz.guided import missing_reason, run_guided
from tests.fuzz.harness import Target, Verdict, run_inputs, run_range
from tests.fuzz.kept_inputs import CORPUS, CORPUS_BYTES_MAX, keep_reached, reaching_for
from tests.fuzz.planted import confused_keys
from tests.fuzz.reached import fewest_reaching_all, reached_by
from tests.fuzz.targets import TARGET_NAMES, target

RUNS = 250
RUNS_UNTIL_FOUND = 1_000_000
SEED = 1  # meets the planted defect after some 50,000 inputs; others need up to 200,000


@pytest.fixture
def _guide() -> None:
    if reason := missing_reason():
        require("atheris", reason)


@pytest.mark.fuzz
@pytest.mark.usefixtures("_guide")
@pytest.mark.parametrize("name", TARGET_NAMES)
def test_decoder_refuses_in_order_whatever_is_found_to_reach_new_code(name: str, run_seed: int) -> None:
    chosen = target(name)
    given = len(chosen.samples) + len(reaching_for(name))

    outcome = run_guided(chosen, seed=run_seed, runs=given + RUNS)

    print(outcome)
    assert not outcome.failure, outcome.failure
    assert outcome.inputs > given
    assert outcome.reached > 0, "nothing was instrumented"


@pytest.mark.fuzz
@pytest.mark.usefixtures("_guide")
def test_planted_defect_is_found_by_guidance_and_not_by_guessing() -> None:
    chosen = confused_keys()

    outcome = run_guided(chosen, seed=SEED, runs=RUNS_UNTIL_FOUND)

    assert "a key was read from bytes that we would not write" in outcome.failure
    assert "Traceback" in outcome.failure
    assert outcome.failing_input is not None
    assert outcome.failing_input.hex() in outcome.failure
    assert len(run_inputs(chosen, [outcome.failing_input])) == 1
    assert run_range(chosen, SEED, 0, outcome.inputs).failures == []


@pytest.mark.parametrize("name", TARGET_NAMES)
def test_inputs_kept_for_what_they_reach_are_answered_in_order(name: str) -> None:
    kept = reaching_for(name)

    assert kept
    assert len(set(kept)) == len(kept)
    assert run_inputs(target(name), kept) == []


def test_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) <= CORPUS_BYTES_MAX


# What is kept


def _two_ways(data: bytes) -> Verdict:
    """Reads a head of ours, which takes another way for each kind of item."""
    target("cbor").check(data)
    return Verdict.ACCEPTED


def test_input_that_reaches_nothing_new_is_not_kept() -> None:
    chosen = Target("two-ways", (), _two_ways)
    unsigned, long_unsigned, text = b"\x01", b"\x18\xff", b"\x61a"
    assert reached_by(chosen, unsigned) != reached_by(chosen, text)

    kept = fewest_reaching_all(chosen, [text, text, long_unsigned, unsigned], [])

    assert kept[0] == unsigned
    assert kept == fewest_reaching_all(chosen, kept, [])
    assert fewest_reaching_all(chosen, kept, kept) == []


def test_kept_inputs_survive_a_second_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_inputs, "CORPUS", tmp_path)
    chosen = Target("two-ways", (), _two_ways)

    keep_reached(chosen, [b"\x01", b"\x61a"])
    first = reaching_for("two-ways")
    keep_reached(chosen, [b"\x61a", b"\x61b"])

    assert set(first) == set(reaching_for("two-ways")) == {b"\x01", b"\x61a"}


def test_input_that_breaks_its_check_is_not_kept() -> None:
    def breaks(data: bytes) -> Verdict:
        raise ValueError(data)

    assert fewest_reaching_all(Target("breaks", (), breaks), [b"\x01"], []) == []
