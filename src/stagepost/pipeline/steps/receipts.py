"""The tables `receipts`, `quarantine`, `rejections`, `replays` and `stage_latency`: what sources reported,
how often, and how long after its sending a message came to each stage, by shard and minute.

The meaning of each kind is a small table to join with, made from `remp.status`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.pipeline.schemas import QUARANTINE, RECEIPTS, REJECTIONS, REPLAYS, STAGE_LATENCY, STAGES
from stagepost.pipeline.steps.columns import small_table
from stagepost.pipeline.steps.record_checks import passing, quarantined
from stagepost.remp.receipts.status import KINDS, Status, is_finally_accepted
from stagepost.remp.validator_sets import ValidatorSets

_COLUMNS = "kind string, level int, status string, rank int, stage string, is_final boolean"


def kinds(spark: SparkSession) -> DataFrame:
    rows = [
        (
            kind.name,
            int(kind.level),
            kind.status.value,
            kind.rank,
            None if kind.stage is None else kind.stage.value,
            is_finally_accepted(kind),
        )
        for kind in KINDS
    ]
    return small_table(spark, rows, _COLUMNS)


def with_kind_meaning(receipts: DataFrame) -> DataFrame:
    """Add level, status, rank, stage and is_final. Kinds were checked, so each has its row."""
    return receipts.join(F.broadcast(kinds(receipts.sparkSession)), on="kind", how="inner")


def distinct_receipts(records: DataFrame) -> DataFrame:
    """Return the receipts that count, each once, by the hash of the signed bytes. Of several session hints it
    keeps the least.

    `copies` is the number of its records, `first_arrived_ms` and `last_arrived_ms` their first and last
    arrival.
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
    """Return the rejections among `distinct_receipts`."""
    return distinct.where(F.col("status") == Status.REJECTED.value).select(*REJECTIONS.fieldNames())


def replays(distinct: DataFrame) -> DataFrame:
    """Return receipts that came more than once (`statuses`), and messages that were finalized in more than
    one block (`blocks`).
    """
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


BUCKET_MS = 60_000
SENT = "sent"


def stage_latency(messages: DataFrame, sets: ValidatorSets) -> DataFrame:
    """Return the latencies. `bucket_ms` is the beginning of the minute in which the message was sent."""
    spark = messages.sparkSession
    places = [(one.session_id.hex(), one.workchain, f"{one.shard:016x}") for one in sets.sessions.values()]
    shards = F.broadcast(small_table(spark, places, "session_id string, wc int, shard string"))
    sent = messages.where(F.col("sent_ms").isNotNull()).join(shards, on="session_id", how="left")
    pairs = F.array(*(_stage(stage) for stage in STAGES if stage != SENT))
    reached = sent.select("wc", "shard", "sent_ms", F.inline(pairs)).where(F.col("stage_ms").isNotNull())
    took = reached.withColumn("took_ms", F.col("stage_ms") - F.col("sent_ms")).withColumn(
        "bucket_ms", F.col("sent_ms") - F.col("sent_ms") % BUCKET_MS
    )
    grouped = took.groupBy("stage", "wc", "shard", "bucket_ms").agg(
        F.count("*").alias("count"),
        *(_percentile(share).alias(f"p{share}_ms") for share in (50, 95, 99)),
    )
    return grouped.select(*STAGE_LATENCY.fieldNames())


def _stage(stage: str) -> Column:
    return F.struct(F.lit(stage).alias("stage"), F.col(f"{stage}_ms").alias("stage_ms"))


def _percentile(share: int) -> Column:
    return F.expr(f"percentile_disc({share / 100}) WITHIN GROUP (ORDER BY took_ms)").cast("bigint")
