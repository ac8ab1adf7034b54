"""Random lives of a node's way in break no promise of authentication; and defects planted there are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stagepost.dmq.mempool import Mempool
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.memory_store import MemoryStore
from stagepost.dmq.node.message_store import StoredState
from stagepost.dmq.node.stored_messages import MessageDraftBook
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.pool_memory import PoolMemories
from stagepost.dmq.validation import MessageValidator
from stagepost.ground.loop.clock import FlooredClock
from tests.simulation.intake_model import Findings, run_life

LIVES = 12
LIVES_TRIED = 40
SEEDS_PER_RUN = 1_000


def test_a_refused_message_changes_nothing_and_no_replay_or_lower_certificate_passes(run_seed: int) -> None:
    found = Findings()
    for number in range(LIVES):
        found.add(run_life(run_seed * SEEDS_PER_RUN + number))

    assert not found.violations, "\n".join(found.violations[:5])
    assert found.rejected > 1_000
    assert found.replayed > 500
    assert found.counters > 300
    assert found.steps_back > 20
    assert found.restarts > 20


Plant = Callable[[pytest.MonkeyPatch], None]


def believes_a_clock_that_was_set_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FlooredClock, "raise_floor", lambda clock, unix_s: None)


def keeps_the_gap_for_a_message_that_the_disk_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoolMemories, "put_back", lambda memories, pool_id, memory: None)


def counts_a_message_before_its_signature_is_checked(patch: pytest.MonkeyPatch) -> None:
    check = MessageValidator.check_cheaply

    def check_and_count(
        validator: MessageValidator, message: DmqMessage, now: float, mono: float, *more: Any
    ) -> Rejected | None:
        return check(validator, message, now, mono, *more) or validator.commit(message, mono)

    patch.setattr(MessageValidator, "check_cheaply", check_and_count)


def forgets_certificates_whose_messages_expired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageDraftBook, "_settle", lambda book, pool: None)


def forgets_messages_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    load = MemoryStore.load

    def load_less(store: MemoryStore) -> StoredState:
        state = load(store)
        return StoredState((), state.pools, state.highest_ms, state.index_max)

    patch.setattr(MemoryStore, "load", load_less)


def remembers_a_message_that_a_full_mempool_refused(patch: pytest.MonkeyPatch) -> None:
    look, check = Intake._look, Mempool.check_limits
    validators: list[MessageValidator] = []

    def look_and_be_known(intake: Intake, *more: Any) -> None:
        validators[:] = [intake._validator]
        look(intake, *more)

    def check_and_remember(mempool: Mempool, message: DmqMessage, *more: Any) -> Rejected | None:
        fault = check(mempool, message, *more)
        if fault is not None:
            validators[0].commit(message, 0.0)
        return fault

    patch.setattr(Intake, "_look", look_and_be_known)
    patch.setattr(Mempool, "check_limits", check_and_remember)


def accepts_a_lower_certificate_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoolMemories, "check_counter", lambda *_: None)


@pytest.mark.parametrize(
    ("plant", "promise"),
    [
        (believes_a_clock_that_was_set_back, "S3"),
        (keeps_the_gap_for_a_message_that_the_disk_refused, "S2"),
        (counts_a_message_before_its_signature_is_checked, "S2"),
        (remembers_a_message_that_a_full_mempool_refused, "S2"),
        (accepts_a_lower_certificate_number, "S6"),
        (forgets_certificates_whose_messages_expired, "S6"),
        (forgets_messages_at_a_restart, "S3"),
    ],
)
def test_a_defect_planted_in_the_way_in_is_noticed(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, promise: str
) -> None:
    plant(monkeypatch)

    for seed in range(LIVES_TRIED):
        if any(violation.startswith(promise) for violation in run_life(seed).violations):
            return
    pytest.fail(f"no life of {LIVES_TRIED} broke {promise}")
