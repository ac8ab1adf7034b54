"""The table `stage_latency`: how long after its sending a message came to each stage, by shard and minute."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.schemas import STAGE_LATENCY, STAGES
from stagepost.pipeline.steps.small_tables import small_table
from stagepost.remp.validator_sets import ValidatorSets

BUCKET_MS = 60_000
SENT = "sent"


def stage_latency(messages: DataFrame, sets: ValidatorSets) -> DataFrame:
    """`bucket_ms` is the beginning of the minute in which the message was sent."""
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
