"""The account of the other topics: of each, every record is counted, repeated or quarantined. Needs no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stagepost.pipeline.tables.manifest import RECORDS, Manifest
from stagepost.topics.names import STATUSES

# What is not looked at has no hash, and every record of it counts.
_QUERY = """
    SELECT topic, reason, count(*), count(DISTINCT signed_hash) + count(*) FILTER (WHERE signed_hash IS NULL)
    FROM read_parquet(?) WHERE topic <> ? GROUP BY topic, reason ORDER BY topic, reason
"""


class TopicAccount(NamedTuple):
    rows: int = 0
    counted: int = 0
    repeated: int = 0
    quarantined: int = 0
    reasons: dict[str, int] = {}  # noqa: RUF012  # replaced, never changed


def topic_accounts(folder: Path, manifest: Manifest) -> dict[str, TopicAccount]:
    """By name; topics without a record are not in it."""
    files = [str(folder / name) for name in manifest.files(RECORDS)]
    if not files or not any(batch.other_rows for batch in manifest.batches):
        return {}
    import duckdb

    connection = duckdb.connect(":memory:")
    try:
        found = connection.execute(_QUERY, [files, STATUSES]).fetchall()
    finally:
        connection.close()
    accounts: dict[str, TopicAccount] = {}
    for topic, reason, rows, distinct in found:
        known = accounts.get(topic, TopicAccount())
        if reason is None:
            change = known._replace(counted=distinct, repeated=rows - distinct)
        else:
            change = known._replace(
                quarantined=known.quarantined + rows, reasons={**known.reasons, reason: rows}
            )
        accounts[topic] = change._replace(rows=known.rows + rows)
    return accounts
