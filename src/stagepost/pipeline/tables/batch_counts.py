"""What a batch's files hold, counted without Spark from the columns alone."""

from __future__ import annotations

from pathlib import Path

from stagepost.pipeline.tables.manifest import LIVES, RECORDS, Batch
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
