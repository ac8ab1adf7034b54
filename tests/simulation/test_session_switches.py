"""Sessions follow one another and lose nothing; and the runs can tell when they would.

Each round has a switch at a random instant: new validators, all of them or some or none, a split, a merge, or two
switches one right behind the other, with the masterchain going on or not; messages, loss, a partition, crashes around
it, and a dishonest node. Then calm, and everything must be settled within thirty seconds. The table of attacks stands
in test_catchain_attacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stagepost.remp.queue import session_switch
from stagepost.remp.queue.hearing import RecordIntake
from stagepost.remp.queue.message_cache import Fresh, MessageCache
from stagepost.remp.queue.message_states import FINAL, OPEN
from stagepost.remp.queue.state import QueueState
from tests.worlds.remp.session_attackers import SESSION_ATTACKERS, OldSessionReplayer
from tests.worlds.remp.session_checks import CALM_S, SessionRun
from tests.worlds.remp.session_runs import run_sessions
from tests.worlds.remp.session_seats import Seat

ROUNDS = 3
SEEDS = 4
REGRESSIONS = (9, 154, 227, 261124)
"""Seeds that once found something."""

SEEDS_TRIED = 12


def switches_of(run: SessionRun) -> int:
    assert max(run.settled_after_s) <= CALM_S
    return run.switches


@pytest.mark.parametrize("number", range(SEEDS))
def test_nothing_is_lost_revived_or_collated_twice(number: int, run_seed: int) -> None:
    """A failure names its own seed, and `run_sessions(seed, rounds)` repeats it."""
    assert switches_of(run_sessions(run_seed + number, ROUNDS)) >= 0


@pytest.mark.parametrize(("number", "kind"), list(enumerate(SESSION_ATTACKERS)))
def test_a_dishonest_node_does_no_harm_to_sessions(number: int, kind: type[Seat], run_seed: int) -> None:
    run = run_sessions(run_seed + SEEDS + number, ROUNDS, kinds=[kind])
    assert switches_of(run) >= 0
    assert len(run.world.chain.final) > 0


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_once_went_wrong_goes_right(seed: int) -> None:
    assert switches_of(run_sessions(seed, 4)) > 0


# Planted defects


def _counts_one_validator_twice(patch: pytest.MonkeyPatch) -> None:
    def counts(self: QueueState, entry: Any) -> bool:
        return 3 * 2 * len(entry.rejected_by) >= 2 * len(self.session.current)

    patch.setattr(QueueState, "do_most_reject", counts)


def _accepts_an_old_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecordIntake, "_is_alive", lambda self, seqno: True)


def _forwards_processed_bodies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_switch, "OPEN", OPEN | {FINAL})
    patch.setattr(session_switch, "FINAL", None)


def _drops_digests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_switch, "_digests", lambda *_: [])


def _skips_the_uid_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageCache, "freshness", lambda self, message_id: Fresh(message_id))


DEFECTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Sequence[type[Seat]], str]] = [
    (_counts_one_validator_twice, (), "is not in the chain"),
    (
        _accepts_an_old_session,
        (OldSessionReplayer,),
        "was revived|not settled|nothing more|stands in the chain twice",
    ),
    (_forwards_processed_bodies, (), "hands on bodies of what is final"),
    (_drops_digests, (), "does not know message"),
    (_skips_the_uid_check, (), "stands in the chain twice"),
]


@pytest.mark.parametrize(
    ("plant", "kinds", "noticed"), DEFECTS, ids=[plant.__name__ for plant, _, _ in DEFECTS]
)
def test_a_planted_defect_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None],
    kinds: Sequence[type[Seat]],
    noticed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=noticed):
        _some_runs(kinds)


def _some_runs(kinds: Sequence[type[Seat]]) -> None:
    for seed in range(SEEDS_TRIED):
        run_sessions(seed, ROUNDS, kinds=kinds)
