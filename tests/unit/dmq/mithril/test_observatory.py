"""The live observatory: its figures are those of a plain recomputation, its memory is bounded, unknown is never 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stagepost.dmq.mithril import observatory
from stagepost.dmq.mithril.observatory import (
    EPOCHS_OF_STAKE_MAX,
    SIGHTINGS_PER_SPEAKER_MAX,
    Observatory,
    ranked,
)
from stagepost.dmq.mithril.stake_parts import decode_stake_part, joined_stake
from stagepost.dmq.validation import check_proof
from tests.worlds.dmq.mithril_traffic import FIRST_EPOCH, Traffic
from tests.worlds.pipeline.observatory_oracle import beacon_rows, differences, pool_rows

POOLS, EPOCHS = 16, 4


@pytest.fixture(scope="module")
def traffic(run_seed: int) -> Traffic:
    return Traffic(POOLS, EPOCHS, run_seed)


def observed(traffic: Traffic, **options: Any) -> Observatory:
    found = Observatory(**options)
    for record in traffic.records():
        if record.topic == "stagepost.dmq.stake":
            found.learn(decode_stake_part(record.value))
    for message, arrived_ms in (*traffic.messages(), *traffic.other_messages()):
        if check_proof(message) is None:
            found.hear(message, arrived_ms)
    return found


def test_figures_of_beacons_are_those_of_a_plain_recomputation(traffic: Traffic) -> None:
    found = [msgspec.to_builtins(one) for one in observed(traffic).beacons()]

    rows = {(row["epoch"], row["variant"], row["beacon"]): row for row in found}
    assert len(rows) == len(found)
    assert differences(rows, beacon_rows(traffic)) == []


def test_figures_of_pools_are_those_of_a_plain_recomputation(traffic: Traffic) -> None:
    live = observed(traffic)
    found = [msgspec.to_builtins(one) for epoch in live.epochs for one in live.pools(epoch)]

    assert differences({(row["epoch"], row["pool_id"]): row for row in found}, pool_rows(traffic)) == []


def test_the_traffic_has_every_case(traffic: Traffic) -> None:
    rows = beacon_rows(traffic).values()
    for name in (
        "late",
        "repeats",
        "reencoded",
        "equivocating",
        "other_epoch",
        "unstaked_pools",
        "unknown_pools",
    ):
        assert any(row[name] for row in rows), name
    assert {row["adoption_percent"] is None for row in rows} == {True, False}
    assert {row["quorum_percent"] is None for row in rows if row["stake"] is not None} == {True, False}


def test_without_stake_nothing_that_needs_it_is_a_number(traffic: Traffic) -> None:
    live = Observatory()
    for message, arrived_ms in traffic.messages():
        live.hear(message, arrived_ms)

    needed = (
        "stake",
        "total_stake",
        "adoption_percent",
        "unstaked_pools",
        "unknown_pools",
        "indexes",
        "quorum_percent",
    )
    for beacon in live.beacons(FIRST_EPOCH):
        assert beacon.pools > 0
        assert [getattr(beacon, name) for name in needed] == [None] * len(needed)
    for pool in live.pools(FIRST_EPOCH):
        assert (pool.stake, pool.share_percent, pool.other_epoch, pool.kes_periods_left) == (None,) * 4


def test_a_distribution_counts_when_its_last_part_is_there(traffic: Traffic) -> None:
    live = Observatory()
    parts = [decode_stake_part(one.value) for one in traffic.stake_records(traffic.stakes[FIRST_EPOCH])]
    assert len(parts) > 1
    for part in parts:
        assert live.stake(FIRST_EPOCH) is None
        live.learn(part)
    found = live.stake(FIRST_EPOCH)
    assert found is not None
    assert found.total_stake == sum(traffic.stakes[FIRST_EPOCH].stakes.values())


def test_stake_of_two_networks_for_one_epoch_is_unknown(traffic: Traffic) -> None:
    live = Observatory()
    for record in traffic.stake_records(traffic.stakes[FIRST_EPOCH]):
        part = decode_stake_part(record.value)
        live.learn(part)
        live.learn(msgspec.structs.replace(part, network_magic=1))

    assert live.stake(FIRST_EPOCH) is None


def test_memory_is_bounded_and_says_what_it_forgot(traffic: Traffic) -> None:
    live = observed(traffic, sightings_max=40)

    assert live.sightings <= 40
    assert live.forgotten_beacons > 0
    assert len(live.beacons()) < len(beacon_rows(traffic))


def test_of_one_pool_and_beacon_so_many_signatures_are_remembered_and_no_more(traffic: Traffic) -> None:
    live = Observatory()
    plan = next(one for one in traffic.plans if one.epoch == FIRST_EPOCH)
    for number in range(SIGHTINGS_PER_SPEAKER_MAX + 3):
        again = replace(plan, expires_at=plan.expires_at + number)
        assert live.hear(traffic.signed(again), plan.arrived_ms) is not None

    assert live.sightings == SIGHTINGS_PER_SPEAKER_MAX
    (beacon,) = live.beacons()
    assert (beacon.pools, beacon.repeats) == (1, SIGHTINGS_PER_SPEAKER_MAX - 1)


def test_stake_of_so_many_epochs_is_remembered_and_no_more(traffic: Traffic) -> None:
    live = Observatory()
    (part, *_) = (decode_stake_part(one.value) for one in traffic.stake_records(traffic.stakes[FIRST_EPOCH]))
    whole = msgspec.structs.replace(
        part, parts=1, pools=len(part.stakes), total_stake=sum(part.stakes.values())
    )
    for epoch in range(EPOCHS_OF_STAKE_MAX + 1):
        live.learn(msgspec.structs.replace(whole, epoch=epoch))

    assert live.epochs == list(range(1, EPOCHS_OF_STAKE_MAX + 1))
    assert live.stake(0) is None


@pytest.mark.parametrize("count", [1, 2, 3, 19, 20, 21, 100])
def test_ranks_are_values_that_occurred(count: int) -> None:
    values = list(range(1, count + 1))
    assert ranked(values, 0.5) == (count + 1) // 2
    assert ranked(values, 0.95) == -(-95 * count // 100)
    assert ranked([], 0.5) is None


def _first_distribution(parts: Any) -> Any:
    whole = list(parts)
    earliest = min(whole, key=lambda part: part.taken_ms)
    return joined_stake(one for one in whole if one.digest == earliest.digest)


PLANTED = {
    "every epoch counts": ("_is_within", lambda sighting, stake: True),
    "the first distribution counts, not the last": ("joined_stake", _first_distribution),
    "the slowest stands for all": ("ranked", lambda ordered, share: ordered[-1] if ordered else None),
    "the last message of a pool alone": (
        "_speakers",
        lambda sightings: {one.pool_id: observatory._Speaker(one.arrived_ms, 1, 1, 1) for one in sightings},
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_defects_are_noticed(name: str, traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observatory, *PLANTED[name])
    live = observed(traffic)
    beacons = [msgspec.to_builtins(one) for one in live.beacons()]
    pools = [msgspec.to_builtins(one) for epoch in live.epochs for one in live.pools(epoch)]

    faults = differences(
        {(row["epoch"], row["variant"], row["beacon"]): row for row in beacons}, beacon_rows(traffic)
    )
    faults += differences({(row["epoch"], row["pool_id"]): row for row in pools}, pool_rows(traffic))
    assert faults
