"""The account of the other topics: of each, every record is counted, repeated or quarantined. Needs no Spark.

The account of a tables folder: every input row is counted, repeated or quarantined.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

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


def counts(manifest: Manifest) -> dict[str, Any]:
    reasons: Counter[str] = Counter()
    for batch in manifest.batches:
        reasons.update(batch.quarantined)
    return {
        "rows": sum(batch.rows for batch in manifest.batches),
        "counted": manifest.counted,
        "repeated": sum(batch.passing for batch in manifest.batches) - manifest.counted,
        "quarantined": sum(reasons.values()),
        "reasons": dict(reasons),
        "other_rows": sum(batch.other_rows for batch in manifest.batches),
        "removed_rows": manifest.removed_rows,
        "as_of_ms": manifest.reports.as_of_ms if manifest.reports is not None else None,
    }
