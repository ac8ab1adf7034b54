"""The account of a set of tables, and of each of the other topics: every input row is counted, repeated or quarantined.
Needs no Spark.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from stagepost.pipeline.tables.delta import held_files, open_table
from stagepost.pipeline.tables.look_up import queries
from stagepost.pipeline.tables.manifest import RECORDS, Manifest
from stagepost.pipeline.tables.store import TableStore
from stagepost.topics.topic import STATUSES

# What is not looked at has no hash, and every record of it counts.
_QUERY = """
    SELECT topic, reason, count(*), count(DISTINCT signed_hash) + count(*) FILTER (WHERE signed_hash IS NULL)
    FROM records WHERE topic <> ? GROUP BY topic, reason ORDER BY topic, reason
"""


class TopicAccount(NamedTuple):
    rows: int = 0
    counted: int = 0
    repeated: int = 0
    quarantined: int = 0
    reasons: dict[str, int] = {}  # noqa: RUF012  # replaced, never changed


def topic_accounts(where: TableStore, manifest: Manifest) -> dict[str, TopicAccount]:
    """Return the accounts by name; topics without a record are not in it."""
    if not manifest.total.other_rows:
        return {}
    files = held_files(open_table(where, RECORDS, manifest.versions[RECORDS]))
    with queries(where, {RECORDS: (RECORDS, [one.path for one in files])}) as connection:
        found = connection.execute(_QUERY, [STATUSES]).fetchall()
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
    total = manifest.total
    return {
        "rows": total.rows,
        "counted": total.counted,
        "repeated": total.passing - total.counted,
        "quarantined": sum(total.quarantined.values()),
        "reasons": dict(total.quarantined),
        "other_rows": total.other_rows,
        "removed_rows": manifest.removed_rows,
        "as_of_ms": manifest.reports.as_of_ms if manifest.reports is not None else None,
    }
