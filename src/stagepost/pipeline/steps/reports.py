"""All evaluated tables of some days, in the order in which they build on one another.

A row belongs to the day of its message, or, where it is of no message, to the day on which its record arrived. So only days
that have changed are evaluated again: from their messages, and from the rows of these messages on all days on which some
arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.pipeline.steps.accountability import (
    complaints,
    contradictions,
    members_of_deciding_sessions,
    validators,
)
from stagepost.pipeline.steps.alerts import alerts
from stagepost.pipeline.steps.columns import small_table
from stagepost.pipeline.steps.messages import Moment
from stagepost.pipeline.steps.mithril import (
    TOPICS,
    EpochFrames,
    mithril_beacons,
    mithril_pools,
    mithril_signatures,
    pool_stakes,
)
from stagepost.pipeline.steps.other_topics import delivery_events, dmq_messages
from stagepost.pipeline.steps.receipts import rejections, replays, stage_latency, with_kind_meaning
from stagepost.pipeline.tables.delta import DataFile, Held, held_ranges
from stagepost.pipeline.tables.look_up import queries
from stagepost.pipeline.tables.manifest import MESSAGES, RECEIPTS, RECORDS, STATE
from stagepost.pipeline.tables.tables import Tables
from stagepost.remp.validator_sets import ValidatorSets

Write = Callable[[DataFrame, str], list[DataFile]]
"""Function that writes a table under a name, and returns its files."""


class Inputs(NamedTuple):
    """The tables and days that reports are made from, as of a moment."""

    spark: SparkSession
    tables: Tables
    days: Sequence[str]
    sets: ValidatorSets
    moment: Moment

    def read(self, name: str, days: Sequence[str]) -> DataFrame:
        return self.tables.read(self.spark, name, days)


def write_others(inputs: Inputs, write: Write, after_each: Callable[[], None]) -> set[int]:
    """Write every table but `messages`. Return the epochs whose rows in tables by epoch are written anew. Small results are read back where another table needs them: cheaper
    than working them out twice.

    `after_each` is called between pieces of work, none of which is long.
    """
    made: dict[str, list[str]] = {}
    kept: list[DataFrame] = []
    sets = inputs.sets

    def make(name: str, frame: DataFrame) -> None:
        made[name] = [file.path for file in write(frame, name)]
        after_each()

    def keep(frame: DataFrame) -> DataFrame:
        """Work the frame out now, for several tables."""
        kept.append(frame.cache())
        frame.write.format("noop").mode("overwrite").save()
        after_each()
        return frame

    def again(name: str) -> DataFrame:
        return inputs.tables.read_files(inputs.spark, name, made[name])

    try:
        verdicts = keep(inputs.read(MESSAGES, inputs.days))
        found = verdicts.select(F.explode("days").alias("day")).distinct().collect()
        spread = sorted({*inputs.days, *(row[0] for row in found)})
        whose = verdicts.select("message_id", F.col("day").alias("message_day"))

        def of_messages(name: str) -> DataFrame:
            """Return the rows of these messages, under the day of the message."""
            rows = inputs.read(name, spread).join(whose, on="message_id", how="inner")
            return rows.drop("day").withColumnRenamed("message_day", "day")

        arrived = inputs.read(RECORDS, inputs.days)
        distinct = with_kind_meaning(of_messages(RECEIPTS))
        records = of_messages(RECORDS)
        make("rejections", rejections(distinct))
        make("replays", replays(distinct, records))
        make("stage_latency", stage_latency(verdicts, sets))
        members = keep(members_of_deciding_sessions(of_messages(STATE), verdicts, sets))
        illegal = keep(contradictions(distinct, sets))
        make("validators", validators(members, verdicts, arrived, illegal, sets, inputs.days))
        make("complaints", complaints(members, illegal, records))
        make("alerts", alerts(verdicts, again("validators"), again("replays"), inputs.moment))
        make("dmq_messages", dmq_messages(arrived))
        make("delivery_events", delivery_events(arrived))
        observed = _observed(inputs)
        for name, step in BY_DAY.items():
            if name in observed:
                make(name, step(arrived))
        epochs = {epoch for name in BY_DAY for epoch in _epochs(inputs, name, made.get(name, []))}
        if epochs:
            frames = EpochFrames(
                _of_epochs(inputs, "mithril_signatures", made.get("mithril_signatures", []), epochs),
                _of_epochs(inputs, "pool_stakes", made.get("pool_stakes", []), epochs),
            )
            keep(frames.heard)
            make("mithril_beacons", mithril_beacons(frames))
            make("mithril_pools", mithril_pools(frames))
        return epochs
    finally:
        for frame in reversed(kept):
            frame.unpersist()


BY_DAY = {"pool_stakes": pool_stakes, "mithril_signatures": mithril_signatures}
"""Tables of the observatory whose rows are of one day, with their steps; those by epoch are made from them."""


def _observed(inputs: Inputs) -> set[str]:
    """Return the tables by day for which the days have records, or had some: most data folders have none."""
    found = set(_distinct(inputs, RECORDS, inputs.tables.table(RECORDS).held(inputs.days), "topic"))
    return {name for name in BY_DAY if TOPICS[name] in found or inputs.tables.table(name).held(inputs.days)}


def _epochs(inputs: Inputs, name: str, made: Sequence[str]) -> set[int]:
    """Return the epochs of the days' rows in a table, as they were and as they are now."""
    paths = [*made, *(one.path for one in inputs.tables.table(name).held(inputs.days))]
    return set(_distinct(inputs, name, paths, "epoch"))


def _distinct(inputs: Inputs, name: str, files: Sequence[str | Held], column: str) -> list[Any]:
    paths = [one if isinstance(one, str) else one.path for one in files]
    if not paths:
        return []
    with queries(inputs.tables.store, {"given": (name, paths)}) as connection:
        return [row[0] for row in connection.execute(f"SELECT DISTINCT {column} FROM given").fetchall()]


def _of_epochs(inputs: Inputs, name: str, made: Sequence[str], epochs: set[int]) -> DataFrame:
    """Return the rows of some epochs: those of the days as they are now, and of other days as they are stored."""
    days = set(inputs.days)
    paths = [
        held.path
        for held, least, greatest in held_ranges(inputs.tables.table(name).require(), "epoch", "epoch")
        if held.day not in days
        and (least is None or greatest is None or any(least <= epoch <= greatest for epoch in epochs))
    ]
    wanted = F.broadcast(small_table(inputs.spark, [(epoch,) for epoch in sorted(epochs)], "epoch long"))
    return inputs.tables.read_files(inputs.spark, name, [*made, *paths]).join(
        wanted, on="epoch", how="left_semi"
    )
