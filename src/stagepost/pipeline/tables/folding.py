"""Many batches into one: the same records, the join of their states, of each message the newest life.

What a batch's files hold, counted without Spark from the columns alone.

Accounts of tasks, or of batches, joined to one. Needs no Spark.

Which messages a batch touches, for looking up what was known of them before. Needs no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.pipeline import schemas
from stagepost.pipeline.steps.messages import newest
from stagepost.pipeline.steps.state import merged
from stagepost.pipeline.tables.manifest import LIVES, RECORDS, STATE, Batch, Manifest
from stagepost.pipeline.tables.tables import Tables, read_files
from stagepost.topics.names import STATUSES

_RECORDS = """
    SELECT topic = ? AS is_status, reason, count(*) FROM read_parquet(?) GROUP BY ALL ORDER BY ALL
"""
_RECEIPTS = "SELECT coalesce(sum(receipts), 0)::BIGINT FROM read_parquet(?)"


def counted_batch(folder: Path, files: dict[str, list[str]]) -> Batch:
    """Of files in which each message has one life."""
    import duckdb

    records, lives = ([str(folder / name) for name in files[kind]] for kind in (RECORDS, LIVES))
    connection = duckdb.connect(":memory:")
    try:
        found = connection.execute(_RECORDS, [STATUSES, records]).fetchall() if records else []
        counted = connection.execute(_RECEIPTS, [lives]).fetchall()[0][0] if lives else 0
    finally:
        connection.close()
    statuses = [row[1:] for row in found if row[0]]
    return Batch(
        files,
        rows=sum(row[1] for row in statuses),
        passing=sum(row[1] for row in statuses if row[0] is None),
        quarantined={row[0]: row[1] for row in statuses if row[0] is not None},
        other_rows=sum(row[2] for row in found if not row[0]),
        other_quarantined={row[1]: row[2] for row in found if not row[0] and row[1] is not None},
        counted=counted,
    )


def joined(parts: Sequence[Batch]) -> Batch:
    """Everything that the parts hold, under one name."""
    files: dict[str, list[str]] = {}
    reasons: Counter[str] = Counter()
    other_reasons: Counter[str] = Counter()
    for part in parts:
        reasons.update(part.quarantined)
        other_reasons.update(part.other_quarantined)
        for kind, names in part.files.items():
            files.setdefault(kind, []).extend(names)
    return Batch(
        files,
        rows=sum(part.rows for part in parts),
        passing=sum(part.passing for part in parts),
        quarantined=dict(sorted(reasons.items())),
        other_rows=sum(part.other_rows for part in parts),
        other_quarantined=dict(sorted(other_reasons.items())),
        greatest_arrival_ms=_greatest(part.greatest_arrival_ms for part in parts),
        greatest_full_node_ms=_greatest(part.greatest_full_node_ms for part in parts),
        counted=sum(part.counted for part in parts),
    )


def _greatest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def new_receipts(folder: Path, files: Sequence[str]) -> int:
    """Those that were not known before the evaluation that wrote these lives; from two columns, without Spark."""
    import duckdb

    if not files:
        return 0
    connection = duckdb.connect(":memory:")
    try:
        names = [str(folder / name) for name in files]
        query = "SELECT sum(receipts - receipts_before)::BIGINT FROM read_parquet(?)"
        found = connection.execute(query, [names]).fetchone()
    finally:
        connection.close()
    return 0 if found is None or found[0] is None else int(found[0])


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


TOUCHED_MAX = 2_000
"""More are found by joining. So many can be named in the query itself: whole parts of older files, whose ids Parquet lists
in front of them, are then passed over without being read.
"""

# A receipt's message is named by 64 digits. Other keys are those of bad records, and no message has them.
_QUERY = """
    SELECT DISTINCT message_id FROM read_parquet(?) WHERE regexp_full_match(message_id, '[0-9a-f]{64}') LIMIT ?
"""


def touched(folder: Path, state_files: Sequence[str]) -> list[str] | None:
    """None if they are more than can be named."""
    import duckdb

    if not state_files:
        return []
    connection = duckdb.connect(":memory:")
    try:
        names = [str(folder / name) for name in state_files]
        found = connection.execute(_QUERY, [names, TOUCHED_MAX + 1]).fetchall()
    finally:
        connection.close()
    return None if len(found) > TOUCHED_MAX else sorted(row[0] for row in found)


def named(message_ids: Sequence[str]) -> str:
    """As a condition of Spark's. Digits only, so nothing has to be quoted within."""
    if not message_ids:
        return "false"
    return "message_id IN (" + ", ".join(f"'{one}'" for one in message_ids) + ")"
