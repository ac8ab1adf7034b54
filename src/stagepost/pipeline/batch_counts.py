"""What a batch's files hold, counted without Spark from the columns alone."""

from __future__ import annotations

from pathlib import Path

from stagepost.pipeline.manifest import Batch
from stagepost.pipeline.topics import STATUSES

_QUERY = """
    SELECT topic = ? AS is_status, reason, count(*), max(arrived_ms),
      max(timestamp_ms) FILTER (WHERE role = 'full_node' AND reason IS NULL)
    FROM read_parquet(?) GROUP BY ALL
"""


def counted_batch(folder: Path, files: dict[str, list[str]], records: list[str]) -> Batch:
    import duckdb

    if not records:
        return Batch(files)
    names = [str(folder / name) for name in records]
    connection = duckdb.connect(":memory:")
    try:
        found = connection.execute(_QUERY, [STATUSES, names]).fetchall()
    finally:
        connection.close()
    statuses = [row[1:] for row in found if row[0]]
    return Batch(
        files,
        rows=sum(row[1] for row in statuses),
        passing=sum(row[1] for row in statuses if row[0] is None),
        quarantined={row[0]: row[1] for row in sorted(statuses, key=str) if row[0] is not None},
        other_rows=sum(row[2] for row in found if not row[0]),
        greatest_arrival_ms=max((row[2] for row in statuses if row[2] is not None), default=None),
        greatest_full_node_ms=max((row[3] for row in statuses if row[3] is not None), default=None),
    )


def counted_receipts(folder: Path, message_files: list[str]) -> int:
    import duckdb

    if not message_files:
        return 0
    connection = duckdb.connect(":memory:")
    try:
        names = [str(folder / name) for name in message_files]
        found = connection.execute("SELECT sum(receipts)::BIGINT FROM read_parquet(?)", [names]).fetchone()
    finally:
        connection.close()
    return 0 if found is None or found[0] is None else int(found[0])
