"""The set of validators changes while messages flow: four founders, three that join, one that takes another's place, two that
leave; a shard is split and merged, and validators are killed at random moments. Nothing is lost, every end is proved, and all
sums are exact.

`make soak` plays twenty messages a second with twenty seeds.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stagepost.chain.following import FollowedChain
from tests.worlds.remp.primes_runs import CHANGES_PLAN, run_primes

MESSAGES_EACH = 4
"""Messages to each account: a tenth of what the soak sends."""


def test_nothing_is_lost_while_the_set_changes(run_seed: int) -> None:
    print(f"seed {run_seed}")
    plan = msgspec.structs.replace(CHANGES_PLAN, messages=MESSAGES_EACH)
    outcome = run_primes(run_seed, plan)
    assert outcome.proved["executed"] == outcome.final == plan.accounts * plan.messages
    assert outcome.shards_seen == 2
    assert outcome.crashes > 0


def test_validators_that_vote_without_an_approval_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check: Any = FollowedChain.check_master

    def votes_for_all(self: FollowedChain, *arguments: Any) -> Any:
        *others, _ = arguments
        return check(self, *others, None)

    monkeypatch.setattr(FollowedChain, "check_master", votes_for_all)
    plan = msgspec.structs.replace(CHANGES_PLAN, messages=1, crashes=0)
    with pytest.raises(AssertionError, match="fewer approvals than a quorum changed the set"):
        run_primes(1, plan)
