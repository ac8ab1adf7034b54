"""The bench of topics measures all that it prints, and can fail. No time is asserted here."""

from __future__ import annotations

from bench.topic_log import APPENDED_PER_S_MIN, SCANNED_PER_S_MIN, missed_by, on_one_core


def test_a_round_appends_and_scans_everything() -> None:
    rates = on_one_core(1_200)

    assert rates.keys() == {
        "appended", "appended_cpu", "per_sync", "alone", "scanned", "scanned_cpu", "verified"
    }  # fmt: skip
    assert all(rate > 0 for rate in rates.values())


def test_a_rate_below_its_target_is_named() -> None:
    kept = {"appended": float(APPENDED_PER_S_MIN), "scanned": float(SCANNED_PER_S_MIN)}

    assert missed_by(kept) == []
    assert missed_by(kept | {"scanned": 199_999.0}) == [
        "missed: 199,999 records scanned per second, 200,000 are wanted"
    ]
    assert len(missed_by({"appended": 1.0, "scanned": 1.0})) == 2
