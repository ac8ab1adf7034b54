"""Clocks that differ: within five seconds no honest message is refused or lost, beyond that the refusal says why."""

from __future__ import annotations

import pytest

from stagepost.dmq import validation
from stagepost.dmq.node import node as dmq_node
from stagepost.dmq.validation import ValidationRules
from tests.simulation.skews import SKEW_ALLOWED_S, SKEWS_S, run_skew


@pytest.mark.parametrize("skew_s", SKEWS_S)
def test_a_clock_that_is_off_costs_no_honest_message_within_the_limit(skew_s: float, run_seed: int) -> None:
    found = run_skew(skew_s, run_seed)

    assert not found.violations, f"skew {skew_s} s, seed {run_seed}: {found.violations[:3]}"
    assert bool(found.refused) is (abs(skew_s) > SKEW_ALLOWED_S)


@pytest.mark.parametrize("skew_s", [5.0, -5.0])
def test_a_node_that_allows_no_skew_is_noticed(monkeypatch: pytest.MonkeyPatch, skew_s: float) -> None:
    def strict(network_magic: int) -> ValidationRules:
        return ValidationRules(message_gap_s=0, skew_s=0)

    monkeypatch.setattr(validation, "rules_for", strict)
    monkeypatch.setattr(dmq_node, "rules_for", strict)

    assert run_skew(skew_s, 1).violations
