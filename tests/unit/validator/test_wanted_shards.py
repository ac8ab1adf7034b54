"""Splits and merges that a validator proposes: from any shards they lead to the wanted number, and no further."""

from __future__ import annotations

from random import Random

import pytest

from stagepost.chain.master_state import PlanKind
from stagepost.remp.shard import WHOLE_SHARD, Shard
from stagepost.validator.running import plans_towards

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
