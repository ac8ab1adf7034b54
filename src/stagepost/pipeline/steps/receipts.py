"""The tables `rejections`, `replays` and `stage_latency`: what sources reported,
how often, and how long after its sending a message came to each stage, by shard and minute.

The meaning of each kind is a small table to join with, made from `remp.status`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.pipeline.schemas import REJECTIONS, REPLAYS, STAGE_LATENCY, STAGES
from stagepost.pipeline.steps.columns import small_table
from stagepost.pipeline.steps.record_checks import passing
from stagepost.remp.receipts.status import KINDS, Status, is_finally_accepted
from stagepost.remp.validator_sets import ValidatorSets

_COLUMNS = "kind string, rank int, stage string, is_final boolean"


def kinds(spark: SparkSession) -> DataFrame:
    rows = [
        (
            kind.name,
            kind.rank,
            None if kind.stage is None else kind.stage.value,
            is_finally_accepted(kind),
        )
        for kind in KINDS
    ]
    return small_table(spark, rows, _COLUMNS)


def with_kind_meaning(receipts: DataFrame) -> DataFrame:
    """Add rank, stage and is_final. Kinds were checked, so each has its row."""
    return receipts.join(F.broadcast(kinds(receipts.sparkSession)), on="kind", how="inner")


def rejections(receipts: DataFrame) -> DataFrame:
    """Return the rejections among receipts with the meaning of their kinds."""
    return receipts.where(F.col("status") == Status.REJECTED.value).select(*REJECTIONS.fieldNames(), "day")


def replays(receipts: DataFrame, records: DataFrame) -> DataFrame:
    """Return receipts that came more than once (`statuses`), and messages that were finalized in more than
    one block (`blocks`).
    """
    copies = (
        passing(records)
        .groupBy("message_id", "day", "signed_hash")
        .agg(
            F.count("*").alias("copies"),
            F.min("arrived_ms").alias("first_arrived_ms"),
            F.max("arrived_ms").alias("last_arrived_ms"),
        )
    )
    again = (
        copies.where(F.col("copies") > 1)
        .groupBy("message_id", "day")
        .agg(
            F.sum(F.col("copies") - 1).alias("count"),
            F.min("first_arrived_ms").alias("first_ms"),
            F.max("last_arrived_ms").alias("last_ms"),
        )
    )
    final = receipts.where(F.col("is_final") & F.col("block_id").isNotNull())
    twice = (
        final.groupBy("message_id", "day")
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
    return both.select(*REPLAYS.fieldNames(), "day")


BUCKET_MS = 60_000
SENT = "sent"


def stage_latency(messages: DataFrame, sets: ValidatorSets) -> DataFrame:
    """Return the latencies. `bucket_ms` is the beginning of the minute in which the message was sent."""
    spark = messages.sparkSession
    places = [(one.session_id.hex(), one.workchain, f"{one.shard:016x}") for one in sets.sessions.values()]
    shards = F.broadcast(small_table(spark, places, "session_id string, wc int, shard string"))
    sent = messages.where(F.col("sent_ms").isNotNull()).join(shards, on="session_id", how="left")
    pairs = F.array(*(_stage(stage) for stage in STAGES if stage != SENT))
    reached = sent.select("day", "wc", "shard", "sent_ms", F.inline(pairs)).where(
        F.col("stage_ms").isNotNull()
    )
    took = reached.withColumn("took_ms", F.col("stage_ms") - F.col("sent_ms")).withColumn(
        "bucket_ms", F.col("sent_ms") - F.col("sent_ms") % BUCKET_MS
    )
    grouped = took.groupBy("day", "stage", "wc", "shard", "bucket_ms").agg(
        F.count("*").alias("count"),
        *(_percentile(share).alias(f"p{share}_ms") for share in (50, 95, 99)),
    )
    return grouped.select(*STAGE_LATENCY.fieldNames(), "day")


def _stage(stage: str) -> Column:
    return F.struct(F.lit(stage).alias("stage"), F.col(f"{stage}_ms").alias("stage_ms"))


def _percentile(share: int) -> Column:
    return F.expr(f"percentile_disc({share / 100}) WITHIN GROUP (ORDER BY took_ms)").cast("bigint")
