"""The chain goes on while f validators are down or withhold votes, and a run notices when it would not.

Two further executions of the same kind have their tests elsewhere: a lone start in `test_chain_agreement.py`, and a
time-out after a recovered FINALISE vote in `test_agreement_member.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stagepost.chain.agreement import member
from stagepost.chain.agreement.book import Book
from stagepost.chain.agreement.effects import CheckCandidate
from stagepost.chain.agreement.hearing import BookKeeper
from stagepost.chain.agreement.leading import due_checks
from stagepost.chain.agreement.pacing import TIMEOUT_S_MAX, SlotClock, Timeouts
from tests.worlds.chain.agreement_pace import (
    ALL_WITHIN_S,
    MOST_WITHIN_S,
    SIZES,
    lines_per_slot,
    longest_silence,
    run_after_silent_hour,
    share_of_final_slots,
)

SEEDS_WITHOUT_PROGRESS = (9, 39)
"""Seeds of forty with which none of the slots became final when a notarised slot counted as good."""

SHARE_MIN = 0.9


@pytest.mark.parametrize("seed", SEEDS_WITHOUT_PROGRESS)
def test_a_withheld_finalise_vote_and_a_steady_delay_cost_few_slots(seed: int) -> None:
    assert share_of_final_slots(seed, until=200.0) >= SHARE_MIN


@pytest.mark.parametrize("is_down", [True, False], ids=["down", "withholding"])
@pytest.mark.parametrize("size", SIZES)
def test_with_f_down_or_withholding_a_block_is_final_within_a_minute(
    size: int, is_down: bool, run_seed: int
) -> None:
    """The soak runs a hundred seeds of each, of which 99 take at most 25 s; `longest_silence(seed, …)` repeats this one."""
    found = longest_silence(run_seed, size, is_down=is_down, until=40.0 if size > 13 else 80.0)
    assert found.seconds <= ALL_WITHIN_S, f"seed {run_seed}: {found}"


def test_after_an_hour_without_answers_time_outs_are_30_seconds_at_most() -> None:
    longest_s, until_final_s = run_after_silent_hour(1)
    assert longest_s == TIMEOUT_S_MAX
    assert until_final_s <= 4 * TIMEOUT_S_MAX


def test_a_slot_costs_the_same_work_however_many_before_it_are_open() -> None:
    assert lines_per_slot(200) <= 1.5 * lines_per_slot(20)


# Planted defects


def _counts_notarised_slots_as_good(patch: pytest.MonkeyPatch) -> None:
    leave = SlotClock.leave

    def hasty(self: SlotClock, slot: int, *, is_skipped: bool, silent: int, now: float) -> None:
        leave(self, slot, is_skipped=is_skipped, silent=silent, now=now)
        if self._notarised.pop(slot, None) is not None:
            self.timeouts.slot_succeeded(0.0)

    patch.setattr(SlotClock, "leave", hasty)


def _waits_for_silent_leaders_and_is_slow_to_double(patch: pytest.MonkeyPatch) -> None:
    def slow(self: Timeouts, silent: int) -> None:
        self._failed += 1
        if self._failed > self._session.faulty_max:
            self._failed = self._good = 0
            self.level += 1

    patch.setattr(BookKeeper, "is_silent", lambda *_: False)
    patch.setattr(Timeouts, "slot_failed", slow)


def _checks_all_slots_again(patch: pytest.MonkeyPatch) -> None:
    def thorough(book: Book) -> Iterator[CheckCandidate]:
        book.to_check.update(number for number, _ in book.slots())
        return due_checks(book)

    patch.setattr(member, "due_checks", thorough)


def test_time_outs_that_trust_notarised_slots_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _counts_notarised_slots_as_good(monkeypatch)
    shares = [share_of_final_slots(seed, until=120.0) for seed in range(12)]
    assert min(shares) < SHARE_MIN


def test_waiting_for_silent_leaders_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _waits_for_silent_leaders_and_is_slow_to_double(monkeypatch)
    assert longest_silence(1, 21, is_down=True, until=40.0).seconds > MOST_WITHIN_S


def test_time_outs_without_a_bound_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.chain.agreement.pacing.TIMEOUT_S_MAX", 100_000.0)
    assert run_after_silent_hour(1)[0] > TIMEOUT_S_MAX


def test_work_that_grows_with_open_slots_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _checks_all_slots_again(monkeypatch)
    assert lines_per_slot(200) > 1.5 * lines_per_slot(20)
