"""Mergeable state: what a batch of receipts leaves behind, and the join of many batches' states.

Everything is a maximum, a minimum or a set, so order, repetition and the splitting into batches change nothing.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.kinds import with_kind_meaning
from stagepost.pipeline.schemas import STAGES, STATE
from stagepost.pipeline.verified import passing

POSITION = STATE["last"].dataType
ROW_KEY = ("message_id", "source_id", "role", "session_hint", "wc", "shard")
"""Of one validator with one hint and one named shard, or none; of a full node, all that it said."""


def state_of(records: DataFrame) -> DataFrame:
    """The partial state of one batch."""
    receipts = with_kind_meaning(passing(records))
    is_validator = F.col("role") == "validator"
    keyed = receipts.select(
        "message_id",
        "source_id",
        "role",
        *(F.when(is_validator, F.col(name)).alias(name) for name in ("session_hint", "wc", "shard")),
        position().alias("last"),
        F.col("timestamp_ms").alias("last_ms"),
        F.col("timestamp_ms").alias("first_ms"),
        F.col("is_final").alias("has_finalized"),
        *(_at_stage(stage).alias(f"{stage}_ms") for stage in STAGES),
        "total_validators",
        "delivery_id",
        "dmq_id",
        F.array("signed_hash").alias("signed_hashes"),
    )
    return merged(keyed)


def position() -> Column:
    """Of a receipt among those of its validator; the greatest is its last status."""
    place = F.col("timestamp_ms").cast("decimal(19,0)") * 64 + F.col("level") * 8 + F.col("rank")
    return place.cast(POSITION)


def code() -> Column:
    """Level and rank of `last` in one number, 8 · level + rank: they name the kind, as status and level do."""
    return (F.col("last") - F.col("last_ms").cast("decimal(19,0)") * 64).cast("int")


def _at_stage(stage: str) -> Column:
    return F.when(F.col("stage") == stage, F.col("timestamp_ms"))


def merged(state: DataFrame) -> DataFrame:
    """The join of states, in the manner of `STATE`."""
    least = [f"{stage}_ms" for stage in STAGES]
    grouped = state.groupBy(*ROW_KEY).agg(
        F.max("last").alias("last"),
        F.max("last_ms").alias("last_ms"),
        F.min("first_ms").alias("first_ms"),
        F.bool_or("has_finalized").alias("has_finalized"),
        *(F.min(name).alias(name) for name in least),
        F.max("total_validators").alias("total_validators"),
        F.min("delivery_id").alias("delivery_id"),
        F.min("dmq_id").alias("dmq_id"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("signed_hashes")))).alias("signed_hashes"),
    )
    return grouped.select(*STATE.fieldNames())
