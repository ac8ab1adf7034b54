"""The tables of the observatory by epoch: beacons and pools, from signatures of Mithril and stake by day.

The same figures as `dmq.mithril.observatory`, for all of history. A figure that needs a stake or parameters which are not
known is null, never 0.
"""

from __future__ import annotations

from collections.abc import Callable

from stagepost.pipeline.schemas import TABLES
from stagepost.pipeline.steps.sql_engines import Engine, percentiles
from stagepost.pipeline.tables.delta import DataFile, held_ranges
from stagepost.pipeline.tables.tables import Tables

_BEACON = "epoch, variant, beacon"
_DISTRIBUTION = "network_magic, epoch, digest"
_OF_EPOCH = (
    *("from_ms", "to_ms", "kes_evolutions_max", "total_stake", "quorum", "indexes_drawn", "phi_f"),
    "quorum_share",
)


def _greatest(*names: str) -> str:
    return ", ".join(f"max({name}) AS {name}" for name in names)


def _count(condition: str) -> str:
    return f"count(CASE WHEN {condition} THEN 1 END)"


# One row for each epoch with a whole distribution of a single network: the one that was asked last.
_DISTRIBUTIONS = f"""
    SELECT {_DISTRIBUTION}, {", ".join(_OF_EPOCH)} FROM (
      SELECT *, min(network_magic) OVER of_epoch = max(network_magic) OVER of_epoch AS is_single,
        row_number() OVER (PARTITION BY epoch ORDER BY taken_ms DESC NULLS LAST, digest DESC) AS place
      FROM (
        SELECT {_DISTRIBUTION}, {_greatest(*_OF_EPOCH, "taken_ms", "parts", "pools")}, sum(stake) AS stake,
          count(*) AS entries, count(DISTINCT pool_id) AS different, count(DISTINCT part) AS held
        FROM (
          SELECT {_DISTRIBUTION}, part, pool_id, max(CAST(stake AS DECIMAL(38, 0))) AS stake,
            {_greatest(*_OF_EPOCH, "taken_ms", "parts", "pools")}
          FROM staked GROUP BY {_DISTRIBUTION}, part, pool_id
        ) GROUP BY {_DISTRIBUTION}
      ) WHERE held = parts AND entries = pools AND different = pools AND stake = total_stake
      WINDOW of_epoch AS (PARTITION BY epoch)
    ) WHERE is_single AND place = 1
"""
_STAKES = """
    SELECT s.epoch, s.pool_id, max(s.stake) AS pool_stake FROM staked s JOIN distributions d
    ON d.network_magic = s.network_magic AND d.epoch = s.epoch AND d.digest = s.digest GROUP BY s.epoch, s.pool_id
"""
_ONCE = ", ".join(name for name in TABLES["mithril_signatures"].fieldNames() if name != "received_ms")
_HEARD = f"""
    SELECT h.*, {", ".join(f"d.{name}" for name in _OF_EPOCH)}, s.pool_stake,
      coalesce(h.received_ms >= d.from_ms AND h.received_ms < d.to_ms, true) AS is_within
    FROM (SELECT {_ONCE}, min(received_ms) AS received_ms FROM signed GROUP BY {_ONCE}) h
    LEFT JOIN distributions d ON d.epoch = h.epoch
    LEFT JOIN stakes s ON s.epoch = h.epoch AND s.pool_id = h.pool_id
"""
_DAYS = """
    SELECT epoch, max(day) AS day FROM (SELECT epoch, day FROM signed UNION ALL SELECT epoch, day FROM staked) GROUP BY epoch
"""
# One row for each pool and beacon, of signatures that came in the epoch.
_SPEAKERS = f"""
    SELECT *, first_ms - min(first_ms) OVER (PARTITION BY {_BEACON}) AS delay_ms,
      sum(coalesce(pool_stake, 0)) OVER (PARTITION BY {_BEACON} ORDER BY first_ms ASC NULLS LAST, pool_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) / CASE WHEN total_stake > 0 THEN total_stake END AS share
    FROM (
      SELECT {_BEACON}, pool_id, min(received_ms) AS first_ms, max(received_ms) AS last_ms, count(*) AS messages,
        count(DISTINCT body_hash) AS bodies, count(DISTINCT sigma) AS sigmas,
        {_greatest("timeout_ms", "pool_stake", "total_stake", "quorum_share")}
      FROM heard WHERE is_within GROUP BY {_BEACON}, pool_id
    )
"""
_FAULTS = f"""
    {_count("delay_ms > timeout_ms")} AS late, sum(messages - bodies) AS repeats, {_count("bodies > sigmas")} AS reencoded,
    {_count("sigmas > 1")} AS equivocations
"""
_NO_FAULTS = {
    name: f"coalesce({name}, 0)" for name in ("late", "repeats", "reencoded", "equivocations", "certificates")
}


def _listed(table: str, values: dict[str, str]) -> str:
    return ", ".join(f"{values.get(name, name)} AS {name}" for name in TABLES[table].fieldNames())


_KNOWN = "CASE WHEN total_stake IS NOT NULL THEN coalesce({}, 0) END"
_SHARE = "stake_signed / CASE WHEN total_stake > 0 THEN total_stake END"
_BEACON_VALUES = {
    **_NO_FAULTS,
    "pools": "coalesce(pools, 0)",
    "stake": "stake_signed",
    "adoption_percent": f"100e0 * ({_SHARE})",
    "unstaked_pools": _KNOWN.format("unstaked"),
    "unknown_pools": _KNOWN.format("strangers"),
    "indexes": "claimed",
    "quorum_percent": "100e0 * claimed / quorum",
    "expected_percent": f"100e0 * (indexes_drawn * (1e0 - pow(1e0 - phi_f, {_SHARE}))) / quorum",
    "equivocating": "coalesce(equivocations, 0)",
    "other_epoch": "CASE WHEN total_stake IS NOT NULL THEN outside END",
}
_BEACONS = f"""
    WITH named AS (
      SELECT {_BEACON}, {_greatest("entity", "entity_before", *_OF_EPOCH)}, {_count("NOT is_within")} AS outside
      FROM heard GROUP BY {_BEACON}
    ), spoken AS (
      SELECT {_BEACON}, min(first_ms) AS first_ms, max(last_ms) AS last_ms, count(*) AS pools,
        sum(coalesce(pool_stake, 0)) AS known_stake, {_count("pool_stake = 0")} AS unstaked,
        {_count("pool_stake IS NULL")} AS strangers, min(CASE WHEN share >= 5e-1 THEN delay_ms END) AS half_ms,
        min(CASE WHEN share >= quorum_share THEN delay_ms END) AS quorum_ms, {_FAULTS}
      FROM speakers GROUP BY {_BEACON}
    ), claims AS (
      SELECT {_BEACON}, count(DISTINCT place) AS places FROM (
        SELECT {_BEACON}, indexes_drawn, explode(indexes) AS place FROM heard
        WHERE is_within AND pool_stake > 0 AND indexes_drawn IS NOT NULL
      ) WHERE place < indexes_drawn GROUP BY {_BEACON}
    ), whole AS (
      SELECT *, {_KNOWN.format("known_stake")} AS stake_signed,
        CASE WHEN quorum IS NOT NULL THEN coalesce(places, 0) END AS claimed
      FROM named LEFT JOIN spoken USING ({_BEACON}) LEFT JOIN claims USING ({_BEACON}) LEFT JOIN epoch_days USING (epoch)
    )
    SELECT {_listed("mithril_beacons", _BEACON_VALUES)}, day FROM whole
"""
_POOL_VALUES = {
    **_NO_FAULTS,
    "stake": "pool_stake",
    "share_percent": "100e0 * (pool_stake / CASE WHEN total_stake > 0 THEN total_stake END)",
    "signed": "coalesce(beacons, 0)",
    "silent": "coalesce(seen, 0) - coalesce(beacons, 0)",
    "other_epoch": "CASE WHEN total_stake IS NOT NULL THEN coalesce(outside, 0) END",
    "kes_periods_left": "evolved + kes_evolutions_max - 1",
}
# One row for each epoch and pool that spoke in it or has stake in it.
_POOLS = f"""
    WITH seen AS (
      SELECT epoch, count(*) AS seen FROM (SELECT DISTINCT {_BEACON} FROM speakers) GROUP BY epoch
    ), spoke AS (
      SELECT epoch, pool_id, count(*) AS beacons, {percentiles("delay_ms", 0.5)} AS median_late_ms,
        {percentiles("delay_ms", 0.95)} AS p95_late_ms, {_FAULTS}
      FROM speakers GROUP BY epoch, pool_id
    ), said AS (
      SELECT epoch, pool_id, {_count("NOT is_within")} AS outside, max(certificate_number) AS certificate_number,
        count(DISTINCT certificate_number) AS certificates, array_join(array_sort(array_agg(DISTINCT form)), ',') AS forms,
        max_by(start_kes_period - kes_period, concat(lpad(CAST(coalesce(received_ms, -1) AS STRING), 20, '0'), dmq_id)) AS evolved
      FROM heard GROUP BY epoch, pool_id
    ), known AS (
      SELECT epoch, pool_id FROM said UNION SELECT epoch, pool_id FROM stakes WHERE pool_stake > 0
    )
    SELECT {_listed("mithril_pools", _POOL_VALUES)}, day FROM known LEFT JOIN said USING (epoch, pool_id)
    LEFT JOIN spoke USING (epoch, pool_id) LEFT JOIN stakes USING (epoch, pool_id) LEFT JOIN seen USING (epoch)
    LEFT JOIN (SELECT epoch, total_stake, kes_evolutions_max FROM distributions) USING (epoch) LEFT JOIN epoch_days USING (epoch)
"""


def write_epochs(
    engine: Engine,
    tables: Tables,
    days: set[str],
    made: dict[str, list[DataFile]],
    after_each: Callable[[], None],
) -> set[int]:
    """Write the tables by epoch, of the epochs that rows of the days are of, as these were and as they are now, into `made`. Return
    these epochs.
    """
    shown = {"signed": "mithril_signatures", "staked": "pool_stakes"}
    epochs: set[int] = set()
    for name in shown.values():
        held = [one.path for one in tables.table(name).held(days)]
        epochs |= set(engine.distinct(name, [*held, *(file.path for file in made.get(name, ()))], "epoch"))
    if not epochs:
        return epochs
    for view, name in shown.items():
        # Files of the days as they are now, and of other days as they are stored.
        paths = [
            held.path
            for held, least, greatest in held_ranges(tables.table(name).require(), "epoch")
            if held.day not in days
            and (least is None or greatest is None or any(least <= epoch <= greatest for epoch in epochs))
        ]
        engine.show(f"all_{view}", name, [*(file.path for file in made.get(name, ())), *paths])
        engine.view(view, f"SELECT * FROM all_{view} WHERE epoch IN ({', '.join(map(str, sorted(epochs)))})")
    for name, query in (
        ("distributions", _DISTRIBUTIONS),
        ("stakes", _STAKES),
        ("heard", _HEARD),
        ("epoch_days", _DAYS),
        ("speakers", _SPEAKERS),
    ):
        engine.keep(name, query)
    for name, query in (("mithril_beacons", _BEACONS), ("mithril_pools", _POOLS)):
        made[name] = engine.write(name, query)
        after_each()
    return epochs
