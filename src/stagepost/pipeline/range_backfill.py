"""A range of topics into the tables, as one batch that is known by its content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
from stagepost.pipeline.sources.sources import Topics
from stagepost.pipeline.sources.survey import Surveyed
from stagepost.pipeline.tables.batch_names import OfDump
from stagepost.pipeline.tables.manifest import Manifest
from stagepost.pipeline.tables.tables import Point, Tables, pass_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def backfill_range(
    spark: SparkSession,
    topics: Topics,
    surveyed: Surveyed,
    sets_file: bytes,
    out: Path,
    evaluation: Evaluation = Evaluation(),  # noqa: B008  # frozen
    *,
    at_point: Point = pass_by,
) -> Manifest:
    """A range that is in the tables already is not taken again; one that overlaps it counts its copies as repeated."""
    tables = Tables(out, at_point=at_point)
    try:
        driver = Driver(spark, tables, sets_file)
        raw = topics.ranges(spark, surveyed.ranges)
        driver.take(raw, Evaluation(what=Evaluated.NOTHING), OfDump(surveyed.digest))
        driver.refresh(evaluation)
        return tables.manifest
    finally:
        tables.close()
