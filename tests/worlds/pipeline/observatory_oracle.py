"""The figures of the observatory, computed from the plan of the traffic in plain Python: no decoder, no product code."""

from __future__ import annotations

import math
from typing import Any

from tests.worlds.dmq.mithril_traffic import (
    EPOCH_MS,
    KES_EVOLUTIONS_MAX,
    PHI_F,
    EpochPlan,
    K,
    M,
    Planned,
    Traffic,
)

NAMES = {
    0: ("MithrilStakeDistribution", None),
    1: ("CardanoStakeDistribution", None),
    2: ("CardanoDatabase", "CardanoImmutableFilesFull"),
    3: ("CardanoTransactions", "CardanoDatabase"),
    4: ("CardanoBlocksTransactions", None),
}
TIMEOUT_MS = {0: 3_600_000, 1: 1_800_000, 2: 600_000, 3: 600_000, 4: 600_000}


def arrival(plan: Planned) -> int:
    again = plan.arrived_again_ms
    return plan.arrived_ms if again is None else min(again, plan.arrived_ms)


def in_epoch(plan: Planned, stake: EpochPlan) -> bool:
    if not stake.is_known:
        return True
    return stake.from_ms <= arrival(plan) < stake.from_ms + EPOCH_MS


def beacon_rows(traffic: Traffic) -> dict[tuple[int, int, str], dict[str, Any]]:
    found: dict[tuple[int, int, str], dict[str, Any]] = {}
    by_entity: dict[Any, list[Planned]] = {}
    for plan in traffic.plans:
        by_entity.setdefault(plan.entity, []).append(plan)
    for plans in by_entity.values():
        row = _beacon(traffic, traffic.stakes[plans[0].epoch], plans)
        found[row["epoch"], row["variant"], row["beacon"]] = row
    return found


def _beacon(traffic: Traffic, stake: EpochPlan, plans: list[Planned]) -> dict[str, Any]:
    variant, numbers = plans[0].entity
    counted = [plan for plan in plans if in_epoch(plan, stake)]
    own_plans: dict[int, list[Planned]] = {}
    for plan in counted:
        own_plans.setdefault(plan.pool, []).append(plan)
    first = {pool: min(map(arrival, some)) for pool, some in own_plans.items()}
    # Of two that came together, the lesser pool id comes first; for the times it is all the same.
    signers = sorted(first, key=lambda pool: (first[pool], traffic.members[pool].name))
    begin = min(map(arrival, counted), default=None)
    row: dict[str, Any] = {
        "epoch": stake.epoch, "variant": variant, "beacon": "/".join(map(str, numbers)), "entity": NAMES[variant][0],
        "entity_before": NAMES[variant][1], "first_ms": begin, "last_ms": max(map(arrival, counted), default=None),
        "pools": len(signers), "late": 0, "repeats": 0, "reencoded": 0, "equivocating": 0,
    }  # fmt: skip
    for pool in signers:
        own = own_plans[pool]
        row["late"] += first[pool] - (begin or 0) > TIMEOUT_MS[variant]
        row["repeats"] += len(own) - len({plan.content for plan in own})
        row["reencoded"] += len({plan.content for plan in own}) > len({plan.sigma for plan in own})
        row["equivocating"] += len({plan.sigma for plan in own}) > 1
    unknown = (
        "stake",
        "total_stake",
        "adoption_percent",
        "unstaked_pools",
        "unknown_pools",
        "half_ms",
        "other_epoch",
    )
    of_lottery = ("indexes", "quorum", "quorum_percent", "expected_percent", "quorum_ms")
    row |= dict.fromkeys(unknown + of_lottery)
    if not stake.is_known:
        return row
    total = sum(stake.stakes.values())
    amounts = [stake.stakes.get(traffic.members[pool].name) for pool in signers]
    held = sum(amount or 0 for amount in amounts)
    row |= {
        "stake": held, "total_stake": total, "adoption_percent": held / total * 100, "unstaked_pools": amounts.count(0),
        "unknown_pools": amounts.count(None), "other_epoch": len(plans) - len(counted),
        "half_ms": _until(traffic, stake, first, signers, total * 0.5),
    }  # fmt: skip
    if stake.has_parameters:
        won = {
            index
            for plan in counted
            if stake.stakes.get(traffic.members[plan.pool].name)
            for index in plan.indexes
            if index < M
        }
        needed = math.log(1 - K / M) / math.log(1 - PHI_F)
        row |= {
            "indexes": len(won), "quorum": K, "quorum_percent": len(won) / K * 100,
            "expected_percent": M * (1 - (1 - PHI_F) ** (held / total)) / K * 100,
            "quorum_ms": _until(traffic, stake, first, signers, total * needed),
        }  # fmt: skip
    return row


def _until(
    traffic: Traffic, stake: EpochPlan, first: dict[int, int], signers: list[int], wanted: float
) -> int | None:
    held = 0
    for pool in signers:
        held += stake.stakes.get(traffic.members[pool].name) or 0
        if held >= wanted:
            return first[pool] - min(first.values())
    return None


def pool_rows(traffic: Traffic) -> dict[tuple[int, str], dict[str, Any]]:
    found = {}
    for epoch, stake in traffic.stakes.items():
        mine = [plan for plan in traffic.plans if plan.epoch == epoch]
        counted = [plan for plan in mine if in_epoch(plan, stake)]
        begins: dict[Any, int] = {}
        for plan in counted:
            begins[plan.entity] = min(arrival(plan), begins.get(plan.entity, arrival(plan)))
        by_pool: dict[int, list[Planned]] = {}
        for plan in mine:
            by_pool.setdefault(plan.pool, []).append(plan)
        total = sum(stake.stakes.values())
        for member in traffic.members:
            own = stake.stakes.get(member.name) if stake.is_known else None
            spoke = by_pool.get(member.number, [])
            if spoke or own:
                row = _pool(stake, total, own, spoke, begins)
                found[epoch, member.name] = {"epoch": epoch, "pool_id": member.name, **row}
    return found


def _pool(
    stake: EpochPlan, total: int, own: int | None, spoke: list[Planned], begins: dict[Any, int]
) -> dict[str, Any]:
    by_beacon: dict[Any, list[Planned]] = {}
    for plan in spoke:
        if in_epoch(plan, stake):
            by_beacon.setdefault(plan.entity, []).append(plan)
    delays = sorted(min(map(arrival, some)) - begins[entity] for entity, some in by_beacon.items())
    return {
        "stake": own,
        "share_percent": None if own is None else own / total * 100,
        "signed": len(by_beacon),
        "silent": len(begins) - len(by_beacon),
        "median_late_ms": delays[math.ceil(len(delays) * 0.5) - 1] if delays else None,
        "p95_late_ms": delays[math.ceil(len(delays) * 0.95) - 1] if delays else None,
        "late": sum(min(map(arrival, some)) - begins[entity] > TIMEOUT_MS[entity[0]] for entity, some in by_beacon.items()),
        "repeats": sum(len(some) - len({plan.content for plan in some}) for some in by_beacon.values()),
        "reencoded": sum(len({one.content for one in some}) > len({one.sigma for one in some}) for some in by_beacon.values()),
        "equivocations": sum(len({plan.sigma for plan in some}) > 1 for some in by_beacon.values()),
        "other_epoch": sum(not in_epoch(plan, stake) for plan in spoke) if stake.is_known else None,
        "certificate_number": max((plan.issue_number for plan in spoke), default=None),
        "certificates": len({plan.issue_number for plan in spoke}),
        "kes_periods_left": KES_EVOLUTIONS_MAX - 1 if spoke and stake.is_known else None,
        "forms": ",".join(sorted({plan.form for plan in spoke})) or None,
    }  # fmt: skip


def differences(found: dict[Any, dict[str, Any]], wanted: dict[Any, dict[str, Any]]) -> list[str]:
    """Every cell that differs; per cent may differ in the last digits of a float."""
    faults = [f"{key}: only found" for key in found.keys() - wanted.keys()]
    faults += [f"{key}: only wanted" for key in wanted.keys() - found.keys()]
    for key in sorted(found.keys() & wanted.keys()):
        ours, theirs = found[key], wanted[key]
        assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
        faults += [
            f"{key} {name}: {ours[name]!r}, wanted {theirs[name]!r}"
            for name in ours
            if not _is_same(ours[name], theirs[name])
        ]
    return faults


def _is_same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float | int):
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9)
    return type(ours) is type(theirs) and bool(ours == theirs)


def epoch_figures(traffic: Traffic) -> dict[int, dict[str, Any]]:
    """The page's figures of each epoch: means over its beacons, and the pools and stake that kept silent."""
    beacons, pools = beacon_rows(traffic).values(), pool_rows(traffic).values()
    found = {}
    for epoch, stake in traffic.stakes.items():
        adoption = [row["adoption_percent"] for row in beacons if row["epoch"] == epoch and stake.is_known]
        quorum = [
            row["quorum_percent"] for row in beacons if row["epoch"] == epoch and row["quorum"] is not None
        ]
        mine = [row for row in pools if row["epoch"] == epoch]
        found[epoch] = {
            "adoption_percent": sum(adoption) / len(adoption) if adoption else None,
            "adoption_least_percent": min(adoption, default=None),
            "quorum_percent": sum(quorum) / len(quorum) if quorum else None,
            "pools": sum(row["signed"] > 0 for row in mine),
            "silent_pools": sum(
                not row["signed"] and row["stake"] > 0 for row in mine if row["stake"] is not None
            )
            if stake.is_known
            else None,
            "silent_stake": sum(
                row["stake"] for row in mine if not row["signed"] and row["stake"] is not None
            )
            if stake.is_known
            else None,
            "equivocations": sum(row["equivocating"] for row in beacons if row["epoch"] == epoch),
            "late": sum(row["late"] for row in beacons if row["epoch"] == epoch),
        }
    return found


def observatory_tables(traffic: Traffic) -> dict[str, list[dict[str, Any]]]:
    """Rows as the pipeline leaves them, for pages."""
    return {
        "mithril_beacons": list(beacon_rows(traffic).values()),
        "mithril_pools": list(pool_rows(traffic).values()),
        "mithril_signatures": [{"dmq_id": f"{number:064x}", "epoch": 640} for number in range(40)],
        "dmq_messages": [{"dmq_id": f"{number:064x}", "valid": True} for number in range(42)],
    }
