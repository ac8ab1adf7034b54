"""What each kind means, as a small table to join with: the one of `remp.status`, not typed again."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.pipeline.steps.small_tables import small_table
from stagepost.remp.receipts.status import KINDS, is_finally_accepted

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
    """Adds level, status, rank, stage and is_final. Kinds were checked: each has its row."""
    return receipts.join(F.broadcast(kinds(receipts.sparkSession)), on="kind", how="inner")
