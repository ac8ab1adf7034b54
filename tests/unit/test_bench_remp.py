"""The bench of REMP end to end reads stages from receipts, names a target that is missed, states gross and net cost with
the unit beside them, and tells where time goes. No time is asserted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import stagepost
from bench.cpu_groups import GROUPS, CpuGroups, group_of
from bench.remp_cost import Cost, cost_of, ratios
from bench.remp_end_to_end import (
    AS_PROCESSES,
    ENOUGH,
    ENOUGH_HAVE,
    FINAL,
    FIRST,
    IDLE_S,
    IN_ONE_PROCESS,
    STAGES,
    TARGETS,
    UNIT_CHECKS_DURING,
    Stopwatch,
    Target,
    Unit,
    UnitProbe,
    read_cost,
    read_times,
    read_unit,
)
from bench.whole_path import Reading
from rigs.remp_world import FULL_NODE, MESSAGE, said
from stagepost.ground.crypto import ed25519


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
    most, least = Target("final, p99", 500), Target("most before the queue grows", 200, is_least=True)
    assert most.missed_by([Reading("final, p99", 500.0, "ms")]) is None
    assert most.missed_by([Reading("final, p99", 501.0, "ms")]) == (
        "missed: final, p99: 501 ms, the target is at most 500"
    )
    assert least.missed_by([Reading("most before the queue grows", 200.0, "/s")]) is None
    assert least.missed_by([Reading("most before the queue grows", 150.0, "/s")]) == (
        "missed: most before the queue grows: 150 /s, the target is at least 200"
    )
    assert most.missed_by([]) == "missed: final, p99: not measured"


def test_every_target_is_of_a_reading_that_is_taken() -> None:
    cost = read_cost(f"{IN_ONE_PROCESS} at 100/s", 0.3, Cost(0.008, 0.006, 8.0), 1e-4)
    times = [
        one
        for where in (IN_ONE_PROCESS, AS_PROCESSES)
        for one in read_times(f"{where} at 100/s", took(1.0, 2.0))
    ]
    assert len(times) == 2 * 3 * len(STAGES)
    taken = {one.name for one in (*cost, *times)} | {f"{IN_ONE_PROCESS}: most before the queue grows"}
    assert {one.name for one in TARGETS} <= taken


def test_net_cost_is_gross_cost_without_the_idle_network_of_the_same_time() -> None:
    cost = cost_of(cpu_s=6.0, lasted_s=10.0, idle=0.2, messages=800, blocks=40)
    assert cost == Cost(gross_s=6.0 / 800, net_s=4.0 / 800, blocks_per_s=4.0)


def test_what_remp_costs_is_a_ratio() -> None:
    found = {
        reading.name: reading.value for reading in ratios(Cost(0.008, 0.006, 8.0), Cost(0.004, 0.002, 10.0))
    }
    assert found["blocks with REMP against without"] == 0.8
    assert found["gross processor time with REMP against without"] == 2.0
    assert found["net processor time with REMP against without"] == 3.0


def test_cost_is_stated_idle_gross_and_net_in_time_and_in_units() -> None:
    found = {r.name: r.value for r in read_cost("here", idle=0.3, cost=Cost(0.008, 0.006, 8.0), unit_s=1e-4)}
    expected = {
        "here: idle, processor time": 300.0,
        "here: idle, in units": 3_000.0,
        "here: a message gross, processor time": 8.0,
        "here: a message gross, in units": 80.0,
        "here: a message net, processor time": 6.0,
        "here: a message net, in units": 60.0,
    }
    assert found == pytest.approx(expected)
    assert IDLE_S >= 20


@pytest.mark.parametrize(("after_us", "is_disturbed"), [(109, False), (91, False), (111, True), (89, True)])
def test_a_unit_that_changed_is_said(after_us: int, is_disturbed: bool) -> None:
    readings = read_unit("here", Unit(100e-6, 100e-6, after_us * 1e-6))
    assert [round(reading.value) for reading in readings[:3]] == [100, 100, after_us]
    assert ["DISTURBED" in reading.name for reading in readings[3:]] == [True] * is_disturbed


def test_the_unit_is_measured_during_the_load_and_counts_its_own_time() -> None:
    counts: list[int] = []

    def check(checks: int) -> None:
        counts.append(checks)
        sum(range(20_000))

    probe = UnitProbe(check)

    async def measure() -> float:
        done = asyncio.Event()
        asyncio.get_running_loop().call_soon(done.set)
        return await probe.measure_until(done)

    assert 0 < asyncio.run(measure()) < probe.used_s
    assert counts == [UNIT_CHECKS_DURING] * 2


def test_the_most_particular_group_has_a_file() -> None:
    assert group_of("/x/stagepost/chain/agreement/member.py") == "agreement"
    assert group_of("/x/stagepost/chain/execution.py") == "chain"
    assert group_of("/x/stagepost/chain/node/store.py") == "disk"
    assert group_of("/x/stagepost/chain/node/follower.py") == "chain"
    assert group_of("/x/stagepost/catchain/graph.py") == "queue"
    assert group_of("/x/stagepost/ground/net/bearer.py") == "links"
    assert group_of("/x/elsewhere.py") is None


def test_every_part_of_a_group_names_a_file_that_exists() -> None:
    names = [str(path) for path in Path(stagepost.__file__).parent.rglob("*.py")]
    parts = [part for _, parts in GROUPS for part in parts]
    outside = {"/nacl/", "/asyncio/", "/selectors.py"}
    assert [part for part in parts if part not in outside and not any(part in name for name in names)] == []


def test_signatures_are_seen_where_they_are_most_of_the_work() -> None:
    seed = bytes(32)
    public_key = ed25519.public_key(seed)
    signature = ed25519.sign(seed, b"message")
    with CpuGroups() as groups:
        for _ in range(3_000):
            assert ed25519.verify(public_key, b"message", signature)
    shares = groups.shares()
    assert max(shares, key=lambda name: shares[name]) == "signatures"
