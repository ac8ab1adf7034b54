"""The jobs behind `stagepost pipeline`: they connect sources, driver and tables, and hold no rules of their
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
from stagepost.pipeline.sources.dumps import Dump
from stagepost.pipeline.sources.sources import Topics
from stagepost.pipeline.sources.survey import Surveyed
from stagepost.pipeline.tables.manifest import Manifest, OfDump
from stagepost.pipeline.tables.tables import Point, Tables, pass_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def backfill(
    spark: SparkSession,
    dumps: Sequence[Dump],
    sets_file: bytes,
    out: Path,
    evaluation: Evaluation = Evaluation(),  # noqa: B008  # frozen
    *,
    at_point: Point = pass_by,
) -> Manifest:
    """Take each dump as a batch of its own, known by its content: a dump that is in the tables already is not
    taken again.
    """
    tables = Tables(out, at_point=at_point)
    try:
        driver = Driver(spark, tables, sets_file)
        for dump in dumps:
            driver.take_dump(dump, Evaluation(what=Evaluated.NOTHING), OfDump(dump.digest))
        driver.refresh(evaluation)
        return tables.manifest
    finally:
        tables.close()


def compact(
    spark: SparkSession, folder: Path, *, keep_ms: int | None = None, at_point: Point = pass_by
) -> tuple[Manifest, int]:
    """Join all batches into one. Return the manifest afterwards, and the number of records forgotten."""
    tables = Tables(folder, at_point=at_point)
    try:
        removed = Driver(spark, tables, None).compact(same_evaluation(tables.manifest), keep_ms=keep_ms)
        return tables.manifest, removed
    finally:
        tables.close()


def same_evaluation(manifest: Manifest) -> Evaluation:
    """Return the evaluation that the last run was asked for."""
    if manifest.reports is None:
        return Evaluation()
    return Evaluation(manifest.reports.as_of_ms, manifest.reports.message_timeout_ms)


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
    """Take a range of topics as one batch, known by its content: a range that is in the tables already is not
    taken again; one that overlaps it counts its copies as repeated.
    """
    tables = Tables(out, at_point=at_point)
    try:
        driver = Driver(spark, tables, sets_file)
        raw = topics.ranges(spark, surveyed.ranges)
        driver.take(raw, Evaluation(what=Evaluated.NOTHING), OfDump(surveyed.digest))
        driver.refresh(evaluation)
        return tables.manifest
    finally:
        tables.close()
