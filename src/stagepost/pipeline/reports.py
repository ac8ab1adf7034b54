"""All evaluated tables from the published records and state, in the order in which they build on one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from stagepost.pipeline import schemas
from stagepost.pipeline.accountability import (
    complaints,
    contradictions,
    members_of_deciding_sessions,
    validators,
)
from stagepost.pipeline.alerts import alerts
from stagepost.pipeline.latency import stage_latency
from stagepost.pipeline.messages import Moment, messages, newest
from stagepost.pipeline.other_topics import delivery_events, dmq_messages
from stagepost.pipeline.receipts import distinct_receipts, rejections, replays
from stagepost.pipeline.tables import read_files
from stagepost.remp.validator_sets import ValidatorSets

Write = Callable[[DataFrame, str], list[str]]
"""Writes a table under a name; the files that it became."""


def write_others(
    spark: SparkSession,
    folder: Path,
    state: DataFrame,
    records: DataFrame,
    life_files: list[str],
    sets: ValidatorSets,
    moment: Moment,
    write: Write,
) -> dict[str, list[str]]:
    """Everything but `messages`. Small results are read back where another table needs them: cheaper than working them
    out twice.
    """
    made: dict[str, list[str]] = {}

    def again(name: str) -> DataFrame:
        return read_files(spark, folder, made[name], schemas.TABLES[name])

    verdicts = messages(newest(read_files(spark, folder, life_files, schemas.LIVES)), moment).cache()
    distinct = distinct_receipts(records)
    members = members_of_deciding_sessions(state, verdicts, sets).cache()
    illegal = contradictions(distinct, sets).cache()
    try:
        made["rejections"] = write(rejections(distinct), "rejections")
        made["replays"] = write(replays(distinct), "replays")
        made["stage_latency"] = write(stage_latency(verdicts, sets), "stage_latency")
        made["validators"] = write(validators(members, verdicts, records, illegal, sets), "validators")
        made["complaints"] = write(complaints(members, illegal, records), "complaints")
        made["alerts"] = write(alerts(verdicts, again("validators"), again("replays"), moment), "alerts")
        made["dmq_messages"] = write(dmq_messages(records), "dmq_messages")
        made["delivery_events"] = write(delivery_events(records), "delivery_events")
    finally:
        members.unpersist()
        illegal.unpersist()
        verdicts.unpersist()
    return made
