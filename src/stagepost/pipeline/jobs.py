"""The jobs behind `stagepost pipeline`: they connect sources, driver and tables, and hold no rules of their
own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline import schemas
from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
from stagepost.pipeline.sources.dumps import Dump
from stagepost.pipeline.sources.kafka import read_note, write_note
from stagepost.pipeline.sources.sources import Topics
from stagepost.pipeline.sources.survey import Surveyed, not_held
from stagepost.pipeline.sources.topic_places import place_of
from stagepost.pipeline.sources.topic_ranges import divided
from stagepost.pipeline.tables.former import ImportSource
from stagepost.pipeline.tables.manifest import RECORDS, Manifest, OfDump
from stagepost.pipeline.tables.store import TableStore
from stagepost.pipeline.tables.tables import Point, Tables, pass_by, stored_rows
from stagepost.pipeline.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def backfill(
    spark: SparkSession,
    dumps: Sequence[Dump],
    sets_file: bytes,
    out: TableStore | Path,
    evaluation: Evaluation = Evaluation(),  # noqa: B008  # frozen
    *,
    genesis: bytes | None = None,
    at_point: Point = pass_by,
) -> Manifest:
    """Take each dump as a batch of its own, known by its content: a dump that is in the tables already is not
    taken again.
    """
    with Tables(out, at_point=at_point) as tables:
        driver = Driver(spark, tables, sets_file, genesis=genesis)
        for dump in dumps:
            driver.take_dump(dump, Evaluation(what=Evaluated.NOTHING), OfDump(dump.digest))
        driver.refresh(evaluation)
        return tables.manifest


def import_tables(
    spark: SparkSession,
    source: ImportSource,
    out: TableStore | Path,
    *,
    say: Callable[[str], None] = lambda text: None,
    at_point: Point = pass_by,
) -> Manifest:
    """Derive new tables from the records of `source`, which stays as it is. An import that was cut off goes on.

    A dump that the source holds counts as taken, and a stream goes on where the source's stream ended.
    """
    with Tables(out, at_point=at_point) as tables:
        digests = {batch.digest for batch in source.batches}
        if tables.manifest.total.rows and not digests & set(tables.manifest.taken):
            raise ConfigError(
                f"{tables.store.address} holds other tables already",
                advice="choose an empty folder or address with --out; nothing was written",
            )
        driver = Driver(spark, tables, source.sets_file, genesis=source.genesis)
        done = 0
        for batch in source.batches:
            raw = _raw_records(spark, source, batch.paths)
            driver.take(raw, Evaluation(what=Evaluated.NOTHING), OfDump(batch.digest))
            done += batch.rows
            say(f"{done} of {source.rows} records imported")
        driver.refresh(Evaluation.same(source.reports))
        total = tables.manifest.total
        if total.rows + total.other_rows != source.rows:
            raise StorageError(
                f"{source.rows} records were to be imported, and {total.rows + total.other_rows} are in "
                f"{tables.store.address}",
                advice="import into another folder, and keep the former tables",
            )
        _take_over_note(source, tables.store)
        tables.publish(
            lambda current: msgspec.structs.replace(
                current,
                taken=sorted({*current.taken, *source.taken}),
                stream_batches={**current.stream_batches, **source.stream_batches},
                offsets={**current.offsets, **source.offsets},
                removed_rows=source.removed_rows,
            )
        )
        return tables.manifest


def _raw_records(spark: SparkSession, source: ImportSource, paths: Sequence[str]) -> DataFrame:
    columns = schemas.RAW.fieldNames()
    if source.is_delta:
        return stored_rows(spark, source.where, RECORDS, paths).select(*columns)
    return spark.read.parquet(*(str(source.where.folder / path) for path in paths)).select(*columns)


def _take_over_note(source: ImportSource, out: TableStore) -> None:
    """Copy the note of the broker that the stream reads; its checkpoint follows from the manifest."""
    note = read_note(source.where)
    if note is not None:
        write_note(out, note)


def compact(
    spark: SparkSession, folder: TableStore | Path, *, keep_ms: int | None = None, at_point: Point = pass_by
) -> tuple[Manifest, int]:
    """Compact every day, and drop old ones if asked to. Return the manifest afterwards, and the number of records forgotten."""
    with Tables(folder, at_point=at_point) as tables:
        upkeep = Upkeep(Driver(spark, tables, None))
        removed = upkeep.compact(Evaluation.same(tables.manifest.reports), keep_ms=keep_ms)
        return tables.manifest, removed


def backfill_range(
    spark: SparkSession,
    topics: Topics,
    surveyed: Surveyed,
    sets_file: bytes,
    out: TableStore | Path,
    evaluation: Evaluation = Evaluation(),  # noqa: B008  # frozen
    *,
    genesis: bytes | None = None,
    at_point: Point = pass_by,
) -> Manifest:
    """Take a range of topics as one batch, known by its content, without the records that the tables hold already."""
    with Tables(out, at_point=at_point) as tables:
        driver = Driver(spark, tables, sets_file, genesis=genesis)
        place, name = place_of(topics.options), OfDump(surveyed.digest)
        if not name.is_taken(tables.manifest):
            held = [one.path for one in tables.table(RECORDS).held()]
            left = divided(not_held(place, surveyed.ranges, tables.store, held))
            driver.take_ranges(place, list(left), Evaluation(what=Evaluated.NOTHING), name)
        driver.refresh(evaluation)
        return tables.manifest
