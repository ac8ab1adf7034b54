"""The tables `receipts`, `quarantine`, `rejections` and `replays`: what was said, and how often."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.schemas import QUARANTINE, RECEIPTS, REJECTIONS, REPLAYS
from stagepost.pipeline.steps.kinds import with_kind_meaning
from stagepost.pipeline.steps.verified import passing, quarantined
from stagepost.remp.receipts.status import Status


def distinct_receipts(records: DataFrame) -> DataFrame:
    """Those that count, each once, by the hash of what was signed. Of several hints it keeps the least.

    `copies` is how often it came, `first_arrived_ms` and `last_arrived_ms` when.
    """
    same = [
        name
        for name in RECEIPTS.fieldNames()
        if name not in ("message_id", "session_hint", "level", "status")
    ]
    receipts = (
        passing(records)
        .groupBy("message_id", "signed_hash")
        .agg(
            F.min("session_hint").alias("session_hint"),
            *(F.first(name).alias(name) for name in same),
            F.count("*").alias("copies"),
            F.min("arrived_ms").alias("first_arrived_ms"),
            F.max("arrived_ms").alias("last_arrived_ms"),
        )
    )
    return with_kind_meaning(receipts)


def receipts(records: DataFrame) -> DataFrame:
    return distinct_receipts(records).select(*RECEIPTS.fieldNames())


def quarantine(records: DataFrame) -> DataFrame:
    return quarantined(records).withColumnRenamed("value", "raw").select(*QUARANTINE.fieldNames())


def rejections(distinct: DataFrame) -> DataFrame:
    """Of `distinct_receipts`."""
    return distinct.where(F.col("status") == Status.REJECTED.value).select(*REJECTIONS.fieldNames())


def replays(distinct: DataFrame) -> DataFrame:
    """A receipt that came more than once (`statuses`), a message that was finalized in more than one block (`blocks`)."""
    again = (
        distinct.where(F.col("copies") > 1)
        .groupBy("message_id")
        .agg(
            F.sum(F.col("copies") - 1).alias("count"),
            F.min("first_arrived_ms").alias("first_ms"),
            F.max("last_arrived_ms").alias("last_ms"),
        )
    )
    final = distinct.where(F.col("is_final") & F.col("block_id").isNotNull())
    twice = (
        final.groupBy("message_id")
        .agg(
            (F.count_distinct("block_id") - 1).alias("count"),
            F.min("timestamp_ms").alias("first_ms"),
            F.max("timestamp_ms").alias("last_ms"),
        )
        .where(F.col("count") > 0)
    )
    both = again.withColumn("where", F.lit("statuses")).unionByName(
        twice.withColumn("where", F.lit("blocks"))
    )
    return both.select(*REPLAYS.fieldNames())
