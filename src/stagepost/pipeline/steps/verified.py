"""Records by what the checks said of them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stagepost.topics import names as topics


def passing(records: DataFrame) -> DataFrame:
    """Receipts that count, copies included."""
    return records.where((F.col("topic") == topics.STATUSES) & F.col("reason").isNull())


def quarantined(records: DataFrame) -> DataFrame:
    return records.where(F.col("reason").isNotNull())
