"""The bench of the chain reads what it prints from the times that validators took, and can fail. No time is asserted."""

from __future__ import annotations

import pytest

from bench.chain import CERTIFICATE_P99_MS_MAX, MASTER_P99_MS_MAX, VALIDATORS, Times, read, read_state_size

IDLE, LOADED = (0.0, 10.0), (10.0, 20.0)


def times(certificate_ms: float, master_ms: float) -> list[Times]:
    """Of one validator: a block in every tenth of a second, those under load slower than any target."""
    begun = [number / 10 for number in range(200)]
    return [
        {
            "to_certificate": [(at, certificate_ms / 1e3 if at < 10.0 else 9.0) for at in begun],
            "to_master": [(at, master_ms / 1e3 if at < 10.0 else 9.0) for at in begun],
            "blocks": begun,
            "master_blocks": begun[::2],
        }
    ]


def test_times_when_idle_and_rates_under_load_are_read() -> None:
    readings, missed = read("here", times(40.0, 90.0), IDLE, LOADED)
    found = {reading.name: reading.value for reading in readings}
    where = f"{VALIDATORS} validators here"
    assert missed == []
    assert found[f"{where}, idle: to the certificate, p99"] == pytest.approx(40.0)
    assert found[f"{where}, idle: to the masterchain, p50"] == pytest.approx(90.0)
    assert found[f"{where}, loaded: to the masterchain, p50"] == pytest.approx(9_000.0)
    assert found[f"{where}, loaded: shard blocks"] == pytest.approx(10.0)
    assert found[f"{where}, loaded: master blocks"] == pytest.approx(5.0)


def test_the_state_grows_by_less_than_a_kilobyte_a_message() -> None:
    found = {reading.name.rpartition(": ")[2]: reading.value for reading in read_state_size(seconds=2)}
    assert 64 < found["a message, stored"] < 1_024
    assert found["all, stored"] == pytest.approx(found["a message, stored"] * 360_000 / 1e6)


def test_a_target_that_is_missed_when_idle_is_named() -> None:
    late = times(CERTIFICATE_P99_MS_MAX + 1, MASTER_P99_MS_MAX - 1)
    (missed,) = read("here", late, IDLE, LOADED)[1]
    assert "took 151 ms to the certificate" in missed
    assert len(read("here", times(1_000.0, 1_000.0), IDLE, LOADED)[1]) == 2
