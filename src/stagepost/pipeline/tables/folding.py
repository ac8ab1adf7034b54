"""Many batches into one: the same records, the join of their states, of each message the newest life."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.pipeline import schemas
from stagepost.pipeline.steps.messages import newest
from stagepost.pipeline.steps.state import merged
from stagepost.pipeline.tables.batch_counts import counted_batch
from stagepost.pipeline.tables.joined_batches import joined
from stagepost.pipeline.tables.manifest import LIVES, RECORDS, STATE, Batch, Manifest
from stagepost.pipeline.tables.tables import Tables, read_files

ROWS_PER_FILE = 1_000_000
"""Enough for quick scans, few enough for workers to share them."""

STATE_FORM = {"parquet.block.size": str(16 << 20), "parquet.dictionary.page.size": str(8 << 20)}
"""Parts so small that the ids of each are listed in front of it: who looks for a few messages reads no other part."""


class Fold(NamedTuple):
    """What it is done with: files go into the folder."""

    spark: SparkSession
    tables: Tables
    folder: Path

    def read(self, batches: Sequence[Batch]) -> tuple[DataFrame, DataFrame, DataFrame]:
        """Records, joined state and newest lives."""
        records, state, lives = (
            read_files(
                self.spark,
                self.tables.folder,
                [name for batch in batches for name in batch.files.get(kind, ())],
                schema,
            )
            for kind, schema in ((RECORDS, schemas.RECORDS), (STATE, schemas.STATE), (LIVES, schemas.LIVES))
        )
        return records, merged(state), newest(lives)

    def write(
        self, records: DataFrame, state: DataFrame, lives: DataFrame, rows: int
    ) -> dict[str, list[str]]:
        files = max(1, rows // ROWS_PER_FILE)
        return {
            kind: self.tables.write(
                frame.coalesce(files), self.folder, kind, STATE_FORM if kind == STATE else None
            )
            for kind, frame in ((RECORDS, records), (STATE, state), (LIVES, lives))
        }


def fold(work: Fold, batches: Sequence[Batch]) -> Batch:
    account = joined(batches)
    files = work.write(*work.read(batches), account.rows + account.other_rows)
    return msgspec.structs.replace(account, files=files)


def worth_folding(batches: Sequence[Batch]) -> int:
    """From which place on batches are to be folded: from the first that is no larger than all after it together.

    So a record is written again only when as many have come after it as stood with it: a few times in all, however long
    the stream runs, while the number of batches grows with the logarithm of the records.
    """
    sizes = [batch.rows + batch.other_rows for batch in batches]
    after = sum(sizes)
    for place, size in enumerate(sizes):
        after -= size
        if size <= after:
            return place
    return len(batches)


def forgotten(work: Fold, manifest: Manifest, as_of_ms: int, keep_ms: int) -> Batch:
    """All batches in one, without the messages of which nothing was heard since `keep_ms` before `as_of_ms`."""
    records, state, lives = work.read(manifest.batches)
    before_ms = as_of_ms - keep_ms
    old = _old_messages(records, before_ms).cache()
    try:
        records = records.join(old, on="message_id", how="left_anti").where(
            F.col("message_id").isNotNull() | (F.coalesce("arrived_ms", F.lit(as_of_ms)) >= before_ms)
        )
        state = state.join(old, on="message_id", how="left_anti")
        lives = lives.join(old, on="message_id", how="left_anti")
        files = work.write(
            records.select(*schemas.RECORDS.fieldNames()),
            state.select(*schemas.STATE.fieldNames()),
            lives.select(*schemas.LIVES.fieldNames()),
            sum(batch.rows + batch.other_rows for batch in manifest.batches),
        )
    finally:
        old.unpersist()
    # What was the greatest arrival stays it, also when the record itself is forgotten.
    return msgspec.structs.replace(
        counted_batch(work.tables.folder, files),
        greatest_arrival_ms=manifest.greatest_arrival_ms,
        greatest_full_node_ms=manifest.greatest_full_node_ms,
    )


def _old_messages(records: DataFrame, before_ms: int) -> DataFrame:
    heard = F.greatest(F.coalesce("arrived_ms", F.lit(0)), F.coalesce("timestamp_ms", F.lit(0)))
    last = (
        records.where(F.col("message_id").isNotNull())
        .groupBy("message_id")
        .agg(F.max(heard).alias("last_ms"))
    )
    return last.where(F.col("last_ms") < before_ms).select("message_id")
