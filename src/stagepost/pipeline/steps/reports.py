"""All evaluated tables from the published records and state, in the order in which they build on one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from stagepost.pipeline import schemas
from stagepost.pipeline.steps.accountability import (
    complaints,
    contradictions,
    members_of_deciding_sessions,
    validators,
)
from stagepost.pipeline.steps.alerts import alerts
from stagepost.pipeline.steps.messages import Moment, messages, newest
from stagepost.pipeline.steps.other_topics import delivery_events, dmq_messages
from stagepost.pipeline.steps.receipts import distinct_receipts, rejections, replays, stage_latency
from stagepost.pipeline.tables.tables import read_files
from stagepost.remp.validator_sets import ValidatorSets

Write = Callable[[DataFrame, str], list[str]]
"""Function that writes a table under a name, and returns its files."""


def write_others(
    spark: SparkSession,
    folder: Path,
    state: DataFrame,
    records: DataFrame,
    life_files: list[str],
    sets: ValidatorSets,
    moment: Moment,
    write: Write,
    after_each: Callable[[], None],
) -> dict[str, list[str]]:
    """Write every table but `messages`. Small results are read back where another table needs them: cheaper
    than working them out twice.

    `after_each` is called between pieces of work, none of which is long.
    """
    made: dict[str, list[str]] = {}
    kept: list[DataFrame] = []

    def make(name: str, frame: DataFrame) -> None:
        made[name] = write(frame, name)
        after_each()

    def keep(frame: DataFrame) -> DataFrame:
        """Worked out now, for several tables."""
        kept.append(frame.cache())
        frame.write.format("noop").mode("overwrite").save()
        after_each()
        return frame

    def again(name: str) -> DataFrame:
        return read_files(spark, folder, made[name], schemas.TABLES[name])

    distinct = distinct_receipts(records)
    try:
        verdicts = keep(messages(newest(read_files(spark, folder, life_files, schemas.LIVES)), moment))
        make("rejections", rejections(distinct))
        make("replays", replays(distinct))
        make("stage_latency", stage_latency(verdicts, sets))
        members = keep(members_of_deciding_sessions(state, verdicts, sets))
        illegal = keep(contradictions(distinct, sets))
        make("validators", validators(members, verdicts, records, illegal, sets))
        make("complaints", complaints(members, illegal, records))
        make("alerts", alerts(verdicts, again("validators"), again("replays"), moment))
        make("dmq_messages", dmq_messages(records))
        make("delivery_events", delivery_events(records))
    finally:
        for frame in reversed(kept):
            frame.unpersist()
    return made
