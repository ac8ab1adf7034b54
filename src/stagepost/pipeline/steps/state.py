"""The join of partial states: of tasks, of batches, of everything that was ever received about a message.

Everything is a maximum, a minimum or a set, so order, repetition and the splitting into batches change
nothing.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.schemas import STAGES, STATE
from stagepost.pipeline.steps.columns import built_once

ROW_KEY = ("message_id", "source_id", "role", "session_hint", "wc", "shard")
"""Key of a row: one validator with one hint and one named shard, each of which may be null; or all
validators, or all full nodes, together.
"""


@built_once
def code() -> Column:
    """Return level and rank of `last` in one number, 8 · level + rank: they name the kind, as status and
    level do.
    """
    return (F.col("last") - F.col("last_ms").cast("decimal(19,0)") * 64).cast("int")


def merged(state: DataFrame) -> DataFrame:
    """Return the join of states, with the columns of `STATE`."""
    return state.groupBy(*ROW_KEY).agg(*_joined()).select(*STATE.fieldNames())


@built_once
def _joined() -> tuple[Column, ...]:
    least = [f"{stage}_ms" for stage in STAGES]
    return (
        F.max("last").alias("last"),
        F.max("last_ms").alias("last_ms"),
        F.min("first_ms").alias("first_ms"),
        F.bool_or("has_finalized").alias("has_finalized"),
        *(F.min(name).alias(name) for name in least),
        F.max("total_validators").alias("total_validators"),
        F.min("delivery_id").alias("delivery_id"),
        F.min("dmq_id").alias("dmq_id"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("signed_hashes")))).alias("signed_hashes"),
        # Of rows of receipts there is nothing to join here; ends are told apart in `messages`.
        *(F.min(name).alias(name) for name in ("proof", "proof_block", "executed_as")),
    )
