"""The observatory for the page and the API: figures of epochs, beacons and pools, from the tables of the pipeline.

A figure that the tables do not know is null, and the page writes "unknown" for it, never 0.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stagepost.dmq.mithril.body import NamesAsOf
from stagepost.web.charts import Chart, Series
from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.sources import Sources
from stagepost.web.tables import Asking

TABLES = ("mithril_beacons", "mithril_pools", "mithril_signatures", "dmq_messages")
TONES = ("blue", "green", "orange", "red", "quiet")
EPOCHS_SHOWN = 30
BEACONS_SHOWN = 60
POOLS_SHOWN = 50
ROWS_MAX = 10_000
"""Rows of one answer of the API, at most."""

_EPOCHS = """
    WITH b AS (
      SELECT epoch, count(*) AS beacons, avg(adoption_percent) AS adoption_percent,
        min(adoption_percent) AS adoption_least_percent, max(adoption_percent) AS adoption_most_percent,
        avg(quorum_percent) AS quorum_percent, count_if(quorum_percent >= 100) AS quorums, count(quorum_percent) AS with_quorum,
        max(total_stake) AS total_stake, sum(late) AS late, sum(equivocating) AS equivocations, sum(repeats) AS repeats,
        sum(other_epoch) AS other_epoch, min(first_ms) AS first_ms, max(last_ms) AS last_ms
      FROM mithril_beacons GROUP BY epoch
    ), p AS (
      SELECT epoch, count_if(signed > 0) AS pools, count_if(signed = 0 AND stake > 0) AS silent_pools,
        sum(stake) FILTER (WHERE signed > 0) AS signed_stake, sum(stake) FILTER (WHERE signed = 0) AS silent_stake,
        count(stake) > 0 AS has_stake
      FROM mithril_pools GROUP BY epoch
    )
    SELECT epoch, coalesce(beacons, 0) AS beacons, adoption_percent, adoption_least_percent, adoption_most_percent, quorum_percent,
      CASE WHEN with_quorum > 0 THEN quorums END AS quorums, total_stake, coalesce(pools, 0) AS pools,
      CASE WHEN has_stake THEN silent_pools END AS silent_pools, CASE WHEN has_stake THEN coalesce(signed_stake, 0)::BIGINT END AS signed_stake,
      CASE WHEN has_stake THEN coalesce(silent_stake, 0)::BIGINT END AS silent_stake, coalesce(late, 0)::BIGINT AS late,
      coalesce(equivocations, 0)::BIGINT AS equivocations, coalesce(repeats, 0)::BIGINT AS repeats, other_epoch::BIGINT AS other_epoch,
      first_ms, last_ms
    FROM b FULL JOIN p USING (epoch) ORDER BY epoch DESC LIMIT ?
"""


class Observed(msgspec.Struct, frozen=True):
    """Content of the page: epochs, newest first, and the beacons and pools of one of them."""

    epochs: list[dict[str, Any]]
    epoch: int | None
    beacons: list[dict[str, Any]]
    pools: list[dict[str, Any]]
    silent: list[dict[str, Any]]
    other_bodies: int


def observed(
    sources: Sources, epoch: int | None, names_as_of: NamesAsOf = NamesAsOf.SINCE_2630
) -> Observed | Nothing | Unreadable:
    """Return what the page shows of an epoch, the newest if none is named."""

    def ask(asking: Asking) -> Observed | Nothing:
        if not all(asking.has(table) for table in TABLES):
            return Nothing("the tables have no observatory yet", "run the pipeline to its end once")
        found = asking.rows(_EPOCHS, [EPOCHS_SHOWN])
        if not found:
            return Nothing(
                "no signature of Mithril and no stake is in the tables",
                "record some: stagepost observe --socket PATH --cardano-socket PATH --record DIR",
            )
        chosen = found[0]["epoch"] if epoch is None else epoch
        bodies = asking.rows(
            "SELECT (SELECT count(DISTINCT dmq_id) FROM dmq_messages WHERE valid) - (SELECT count(DISTINCT dmq_id) FROM mithril_signatures) AS others"
        )
        return Observed(
            found,
            chosen,
            beacon_rows(asking, chosen, names_as_of, BEACONS_SHOWN),
            pool_rows(asking, chosen, "signed > 0", POOLS_SHOWN),
            pool_rows(asking, chosen, "signed = 0", POOLS_SHOWN),
            max(0, bodies[0]["others"]),
        )

    return sources.tables.ask(ask)


def epoch_rows(asking: Asking, limit: int) -> list[dict[str, Any]]:
    return asking.rows(_EPOCHS, [limit])


def beacon_rows(asking: Asking, epoch: int, names_as_of: NamesAsOf, limit: int) -> list[dict[str, Any]]:
    """Return the beacons of an epoch, newest first. `name` is the entity's name by one numbering."""
    rows = asking.rows(
        "SELECT * EXCLUDE (day) FROM mithril_beacons WHERE epoch = ? ORDER BY first_ms DESC NULLS LAST, variant, beacon LIMIT ?",
        [epoch, limit],
    )
    is_former = names_as_of is NamesAsOf.UNTIL_2617
    return [{**row, "name": (row["entity_before"] if is_former else None) or row["entity"]} for row in rows]


def pool_rows(asking: Asking, epoch: int, condition: str, limit: int) -> list[dict[str, Any]]:
    """Return the pools of an epoch, those with most stake first."""
    return asking.rows(
        f"SELECT * EXCLUDE (day) FROM mithril_pools WHERE epoch = ? AND {condition}"
        " ORDER BY stake DESC NULLS LAST, pool_id LIMIT ?",
        [epoch, limit],
    )


def adoption_charts(found: Observed) -> list[Chart]:
    """Return the charts of the page: adoption by epoch, and of the beacons of one epoch. Unknown values have no bar."""
    known = [row for row in reversed(found.epochs) if row["adoption_percent"] is not None]
    by_epoch = [
        Series(name, [str(row["epoch"]) for row in known], [_shown(row[column]) for row in known], tone)
        for name, column, tone in (
            ("mean", "adoption_percent", "blue"),
            ("least", "adoption_least_percent", "orange"),
            ("most", "adoption_most_percent", "green"),
        )
    ]
    beacons = [
        row
        for row in reversed(found.beacons)
        if row["adoption_percent"] is not None and row["first_ms"] is not None
    ]
    names = sorted({row["name"] for row in beacons})
    of_beacons = [
        Series(
            name,
            [row["first_ms"] for row in beacons if row["name"] == name],
            [_shown(row["adoption_percent"]) for row in beacons if row["name"] == name],
            TONES[number % len(TONES)],
        )
        for number, name in enumerate(names)
    ]
    return [
        Chart(
            "adoption",
            "Adoption by epoch",
            "stake that signed on DMQ, of all set stake",
            "line",
            "%",
            by_epoch,
            empty=_why_empty(found.epochs),
        ),
        Chart(
            "beacons",
            f"Beacons of epoch {found.epoch}",
            "stake that signed, by the time of the first signature",
            "line",
            "%",
            of_beacons,
            is_time=True,
            empty=_why_empty(found.beacons),
        ),
    ]


def _why_empty(rows: list[dict[str, Any]]) -> str:
    return "unknown: no stake of this epoch is known" if rows else "nothing yet"


def _shown(value: float) -> float:
    return round(value, 2)
