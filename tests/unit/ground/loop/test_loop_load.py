"""A loop that works, or that waits for a processor, is told from one that has time to spare."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stagepost.ground.loop import load as load_module
from stagepost.ground.loop.load import WINDOW_S, LoopLoad, used_s


class Machine:
    """Its clocks are moved by hand."""

    def __init__(self) -> None:
        self.now_s = self.worked_s = 0.0
        self.load = LoopLoad(lambda: self.now_s, lambda: self.worked_s)

    def goes_on(self, seconds: float, share: float) -> None:
        self.now_s += seconds
        self.worked_s += seconds * share


def test_the_share_is_that_of_the_last_window_and_is_kept_until_the_next_is_full() -> None:
    machine = Machine()
    load = machine.load
    assert load.share() == 0.0
    machine.goes_on(WINDOW_S, 0.75)
    assert load.share() == pytest.approx(0.75)
    machine.goes_on(WINDOW_S / 2, 0.0)
    assert load.share() == pytest.approx(0.75)
    machine.goes_on(WINDOW_S, 1.0)
    assert load.share() == pytest.approx(2 / 3)
    machine.goes_on(100 * WINDOW_S, 2.0)  # clocks need not agree
    assert load.share() == 1.0


def test_the_wait_for_a_processor_counts_as_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "schedstat"
    monkeypatch.setattr(load_module, "SCHEDULER", account)
    monkeypatch.setattr(time, "thread_time", lambda: 2.0)
    account.write_text("1000 3500000000 7\n")
    assert used_s() == 5.5


@pytest.mark.parametrize("content", [None, "", "1000", "a b c"])
def test_without_an_account_of_waits_the_load_is_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    account = tmp_path / "schedstat"
    if content is not None:
        account.write_text(content)
    monkeypatch.setattr(load_module, "SCHEDULER", account)
    monkeypatch.setattr(time, "thread_time", lambda: 2.0)
    assert used_s() == 2.0
