"""Splits and merges that a validator proposes: from any shards they lead to the wanted number, and no further."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import msgspec
import pytest

from rigs.ports import free_ports
from stagepost.chain.configuration import SHARD_BITS_MAX
from stagepost.chain.master_state import PlanKind
from stagepost.chain.rotation import Plan, lead_towards, planned
from stagepost.devnet.devnet import NETWORK_MAGIC, DevnetPlan, genesis_of, member_of
from stagepost.full_node.network import RempNetwork
from stagepost.remp.shard import WHOLE_SHARD, Shard
from stagepost.validator.running import plans_towards, start_validator
from tests.worlds.chain.chain_world import DecidedChain, a_configuration, a_genesis

AT_MS = 7_000
WHOLE = Shard(0, WHOLE_SHARD)


def applied(present: set[Shard], wanted: int) -> set[Shard]:
    """Return the shards after every plan was done, each of which must fit."""
    after = set(present)
    for plan in plans_towards(wanted, sorted(present, key=lambda one: one.prefix), AT_MS):
        assert plan.at_ms == AT_MS
        children = set(plan.shard.children)
        before, then = ({plan.shard}, children) if plan.kind is PlanKind.SPLIT else (children, {plan.shard})
        assert before <= after
        after = after - before | then
    return after


def some_shards(random: Random, count: int) -> set[Shard]:
    found = {WHOLE}
    while len(found) < count:
        one = random.choice(sorted(found, key=lambda shard: shard.prefix))
        found = found - {one} | set(one.children)
    return found


@pytest.mark.parametrize("wanted", [1, 2, 3, 5, 16])
def test_the_wanted_number_is_reached_and_never_passed(wanted: int, run_seed: int) -> None:
    print(f"seed {run_seed}")
    random = Random(run_seed)
    for count in range(1, 17):
        present = some_shards(random, count)
        for _ in range(16):
            after = applied(present, wanted)
            assert (len(after) >= wanted) is (count >= wanted) or len(after) == wanted
            present = after
        assert len(present) == wanted
        assert plans_towards(wanted, list(present), AT_MS) == []


def test_the_largest_are_split_and_the_smallest_merged() -> None:
    left, right = WHOLE.children
    [split] = plans_towards(4, [left, *right.children], AT_MS)
    assert (split.kind, split.shard) == (PlanKind.SPLIT, left)
    [merge] = plans_towards(2, [left, *right.children], AT_MS)
    assert (merge.kind, merge.shard) == (PlanKind.MERGE, right)


@pytest.mark.parametrize("wanted", [1, 2, 3, 5, 16])
def test_a_validator_votes_for_what_it_would_propose_itself_and_for_nothing_beyond(wanted: int) -> None:
    configuration = msgspec.structs.replace(a_configuration(), shard_bits_max=SHARD_BITS_MAX)
    state = DecidedChain(a_genesis(configuration)).ledger.master
    (first,) = state.shards
    for count in range(1, 17):
        shards = sorted(some_shards(Random(count), count), key=lambda one: one.prefix)
        present = msgspec.structs.replace(
            state, shards=tuple(msgspec.structs.replace(first, shard=one) for one in shards)
        )
        plans = plans_towards(wanted, shards, AT_MS)
        assert lead_towards(wanted, present, plans)
        noted = planned(present, plans)
        assert not isinstance(noted, str)
        for kind in (PlanKind.SPLIT, PlanKind.MERGE):
            further = Plan(kind, WHOLE, AT_MS)
            is_nearer = count < wanted if kind is PlanKind.SPLIT else count > wanted
            assert lead_towards(wanted, present, [further]) is is_nearer
            assert len(plans) < abs(wanted - count) or not lead_towards(wanted, noted, [further])
            assert len(plans) < abs(wanted - count) or not lead_towards(wanted, present, [*plans, further])


@pytest.mark.parametrize(("shards", "votes"), [(None, False), (1, False), (2, True)])
def test_a_running_validator_votes_by_its_setting(shards: int | None, votes: bool, tmp_path: Path) -> None:
    plan = DevnetPlan(validators=1)
    members = tuple(member_of(plan, name, port) for name, port in zip(plan.names, free_ports(2), strict=True))
    network = RempNetwork(NETWORK_MAGIC, genesis_of(plan, AT_MS).encode().hex(), members)

    async def main() -> None:
        running = await start_validator(
            network, plan.seed_of(plan.names[0]), tmp_path / "data", shards=shards
        )
        ledger = running.validator.chain.ledger
        assert ledger.takes_plans(ledger.master, [Plan(PlanKind.SPLIT, WHOLE, AT_MS)]) is votes
        assert ledger.takes_plans(ledger.master, [])
        await running.close()

    asyncio.run(main())
