"""Receipts that validators sign over many sessions count; what liars make of them is refused by name."""

from __future__ import annotations

from stagepost.errors import ErrorCode
from tests.worlds.remp.receipt_runs import check_receipts
from tests.worlds.remp.session_runs import run_sessions


def test_honest_receipts_count_and_every_lie_is_refused_for_its_reason(run_seed: int) -> None:
    found = check_receipts(run_sessions(run_seed, 2), run_seed)
    assert found["counted"] > 50
    assert found["illegal steps"] > 0
    reasons = {"SIGNATURE", "UNSIGNED", "SOURCE", "ROLE", "FUTURE"}
    assert {reason for reason in ErrorCode if found[reason]} == {f"RECEIPT_{reason}" for reason in reasons}
