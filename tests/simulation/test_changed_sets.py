"""The set of validators changes while messages flow: four founders, three that join, one that takes another's place, two that
leave; a shard is split and merged, and validators are killed at random moments. Nothing is lost, every end is proved, and all
sums are exact.

`make soak` plays twenty messages a second with twenty seeds.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from rigs.chain_messages import address
from stagepost.chain.contracts import ContractKind
from stagepost.chain.following import FollowedChain
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.receipts.receipt import Receipt
from tests.worlds.ground.memoised_signatures import memoised_signatures
from tests.worlds.remp.primes_runs import CHANGES_PLAN, run_primes
from tests.worlds.remp.primes_world import PrimesWorld, Sum, distinct_sums

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


SLOWER_MAX = 3.0
"""Times as long, at most, that the median message takes while too few validators approve a proposal: half of the slots that
carried the proposal were lost, and each doubled the time-outs, so that it took a hundred times as long.
"""


def test_a_proposal_that_half_of_the_validators_approve_does_not_slow_the_network(run_seed: int) -> None:
    print(f"seed {run_seed}")
    with memoised_signatures():
        alone, beside = (run_in_virtual_time(_median_s(run_seed, approving)) for approving in (0, 2))
    print(f"{alone:.3f} s without a proposal, {beside:.3f} s beside one")
    assert beside <= SLOWER_MAX * alone


async def _median_s(seed: int, approving: int) -> float:
    """Return the median time of messages to their end, in a network of four of which so many approve a proposal."""
    world = PrimesWorld(4, seed, lifetime_ms=60_000)
    node = world.full_nodes[0]
    begun: dict[bytes, float] = {}
    took: dict[bytes, float] = {}

    def heard(receipt: Receipt) -> None:
        if receipt.kind.name == "Finalized":
            took.setdefault(receipt.message_id, world.clock.mono_s() - begun[receipt.message_id])

    def submit(one: Sum) -> None:
        begun[one.message_id] = world.clock.mono_s()
        node.submit(one.data)

    node.listeners.append(heard)
    await asyncio.sleep(2.0)
    base = world.ledger.master.configuration
    for house in world.validators[:approving]:
        house.running.chain.want_only([msgspec.structs.replace(base, skew_ms=base.skew_ms + 1)])
    accounts = [address(ContractKind.SUM_OF_PRIMES, number) for number in range(4)]
    sums = distinct_sums(world.random, accounts, 15)
    for number, one in enumerate(sums):
        world.at(number / 2, partial(submit, one))
    await world.until(lambda: len(took) == len(sums), "every message is final", 240.0)
    assert world.ledger.master.configuration == base
    await world.close()
    return sorted(took.values())[len(sums) // 2]
