"""The bench of REMP end to end reads stages from receipts, names a target that is missed, and tells where time goes. No time
is asserted."""

from __future__ import annotations

from bench.cpu_groups import CpuGroups, group_of
from bench.remp_cost import Cost, ratios
from bench.remp_end_to_end import (
    ENOUGH,
    ENOUGH_HAVE,
    FINAL,
    FINAL_P99_MS_MAX,
    FIRST,
    FIRST_P99_MS_MAX,
    STAGES,
    Stopwatch,
    read_times,
    targets_missed,
)
from stagepost.ground.crypto import ed25519
from tests.worlds.remp.remp_world import FULL_NODE, MESSAGE, said


def test_each_stage_is_reached_once_and_by_the_first() -> None:
    watch = Stopwatch({MESSAGE: 0.0})
    for validator in range(ENOUGH + 1):
        assert (MESSAGE in watch.took[ENOUGH_HAVE]) == (validator >= ENOUGH)
        watch(said(validator, "PutIntoQueue").receipt)
    first = watch.took[FIRST][MESSAGE]
    watch(said(0, "PutIntoQueue", 5).receipt)
    assert watch.took[FIRST][MESSAGE] == first
    assert watch.open_count == 1
    for kind in ("IncludedIntoBlock", "Duplicate", "IncludedIntoAcceptedBlock"):
        watch(said(1, kind).receipt)
    watch(said(FULL_NODE, "Finalized").receipt)
    assert watch.open_count == 0
    assert all(list(watch.took[stage]) == [MESSAGE] for stage in STAGES)
    assert len(watch.blocks) == 1


def test_receipts_of_messages_that_are_not_measured_are_left_alone() -> None:
    watch = Stopwatch()
    watch(said(0, "PutIntoQueue").receipt)
    assert not any(watch.took.values())


def took(first_ms: float, final_ms: float) -> dict[str, dict[bytes, float]]:
    found = {stage: {bytes([one]): 0.01 for one in range(100)} for stage in STAGES}
    found[FIRST] = dict.fromkeys(found[FIRST], first_ms / 1e3)
    found[FINAL] = dict.fromkeys(found[FINAL], final_ms / 1e3)
    return found


def test_a_target_that_is_missed_is_named() -> None:
    assert targets_missed("here", took(FIRST_P99_MS_MAX, FINAL_P99_MS_MAX)) == []
    (missed,) = targets_missed("here", took(FIRST_P99_MS_MAX + 1, FINAL_P99_MS_MAX))
    assert missed == (
        "missed: here a message took 201 ms to PutIntoQueue of the first at the 99th percentile, the target is 200 ms"
    )
    assert len(targets_missed("here", took(FIRST_P99_MS_MAX, FINAL_P99_MS_MAX + 1))) == 1
    assert len(read_times("here", took(1.0, 2.0))) == 3 * len(STAGES)


def test_what_remp_costs_is_a_ratio() -> None:
    found = {reading.name: reading.value for reading in ratios(Cost(0.006, 8.0), Cost(0.003, 10.0))}
    assert found["blocks with REMP against without"] == 0.8
    assert found["processor time with REMP against without"] == 2.0


def test_the_most_particular_group_has_a_file() -> None:
    assert group_of("/x/stagepost/chain/agreement/member.py") == "agreement"
    assert group_of("/x/stagepost/chain/execution.py") == "chain"
    assert group_of("/x/stagepost/chain/node/store.py") == "disk"
    assert group_of("/x/stagepost/chain/node/follower.py") == "chain"
    assert group_of("/x/stagepost/catchain/graph.py") == "queue"
    assert group_of("/x/stagepost/ground/net/bearer.py") == "links"
    assert group_of("/x/elsewhere.py") is None


def test_signatures_are_seen_where_they_are_most_of_the_work() -> None:
    seed = bytes(32)
    public_key = ed25519.public_key(seed)
    signature = ed25519.sign(seed, b"message")
    with CpuGroups() as groups:
        for _ in range(3_000):
            assert ed25519.verify(public_key, b"message", signature)
    shares = groups.shares()
    assert max(shares, key=lambda name: shares[name]) == "signatures"
