"""The bench measures every step that has a budget, and can fail. No time is asserted here."""

from __future__ import annotations

import pytest

from bench.measure import ROUND_S, Figure, Step, _count, measure
from bench.run import measure_all, table, verdict
from bench.steps import repeated, steps

WHERE = {"processors": 2, "machine": "any", "python": "3", "load": 0, "revision": "none", "date": "today"}
BUDGETS = {
    "KES verify, path not cached": 1.15,
    "KES verify, path cached": 1.05,
    "KES sign, no evolve": 0.55,
    "decode one message of 1.5 kB": 0.06,
    "id hash of one message": 0.04,
    "receive one segment of 1.5 kB": 0.04,
    "decode one receipt, checked": 0.02,
    "signer of a receipt, 35,000 sessions": 0.08,
}


def figures(ratio: float) -> list[Figure]:
    """As if every step had been measured at `ratio`."""
    with steps() as found:
        return [Figure(step.name, ratio, step.limit, unit_us=50.0) for step in found]


def test_every_budget_has_its_step() -> None:
    with steps() as found:
        limits = {step.name: step.limit for step in found if step.limit is not None}

    assert limits == BUDGETS


def test_every_step_runs_and_stands_in_the_table() -> None:
    measured = measure_all(rounds=1)

    shown = table(measured, WHERE)

    assert all(figure.ratio > 0 for figure in measured)
    assert all(figure.step in shown for figure in measured)
    assert "one signature check" in shown


def test_missed_limit_fails_the_check_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    missed = Figure("KES sign, no evolve", ratio=0.47, limit=0.000001, unit_us=50.0)

    assert verdict([*figures(0.01), missed], check=True) == 1
    assert "missed: KES sign, no evolve costs 0.470" in capsys.readouterr().err
    assert "over" in table([missed], WHERE)


def test_missed_limit_is_only_printed_without_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict(figures(99.0), check=False) == 0
    assert capsys.readouterr().err.count("missed:") == len(BUDGETS)


def test_kept_limits_pass_the_check() -> None:
    assert verdict(figures(0.01), check=True) == 0


def test_step_is_repeated_as_often_as_asked() -> None:
    calls: list[int] = []

    repeated(lambda: calls.append(1))(7)

    assert len(calls) == 7


def test_disturbed_rounds_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # Unit, step, unit for each of three rounds; in the second one something else ran beside the step.
    taken = iter([1.0, 0.5, 1.0, 1.0, 9.0, 1.0, 1.0, 0.5, 1.0])
    monkeypatch.setattr("bench.measure._count", lambda repeat: 1)
    monkeypatch.setattr("bench.measure._seconds", lambda repeat, count: next(taken))

    figure = measure(Step("any", lambda count: None, 0.6), lambda count: None, rounds=3)

    assert figure.ratio == 0.5
    assert not figure.is_over


def test_round_is_filled_by_processor_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]

    def repeat(count: int) -> None:
        spent[0] += count * 0.000_001

    monkeypatch.setattr("bench.measure.process_time", lambda: spent[0])

    count = _count(repeat)

    assert count * 0.000_001 >= ROUND_S
    assert count <= 2 * ROUND_S / 0.000_001
