"""Look-up of a single message in the tables, without Spark: its row, its receipts and its quarantined records.

Every file has a bloom filter of the ids in it, and a message knows on which days its receipts arrived. So a look-up reads
the ends of the files, and then the one file of `messages` and those of `receipts` that hold the id, however many there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.dictionary import BY_NAME
from stagepost.pipeline.tables.damage import damage_named
from stagepost.pipeline.tables.delta import held_files, open_table
from stagepost.pipeline.tables.look_up import files_query, is_message_id, queries
from stagepost.pipeline.tables.manifest import MESSAGES, QUARANTINE, RECEIPTS, read_manifest
from stagepost.pipeline.tables.store import TableStore

Row = dict[str, Any]


class FoundMessage(NamedTuple):
    """`message` is None for an id that only quarantined records have."""

    message: Row | None
    receipts: list[Row]
    quarantined: list[Row]


def stored_message(where: TableStore, message_id: str) -> FoundMessage | None:
    """Return what the tables hold of a message, receipts in the order of their times; None if they hold nothing of it."""
    wanted = message_id.lower()
    if not is_message_id(wanted):
        raise ConfigError(
            f"{message_id!r} is not a valid message id", advice="give 64 hexadecimal digits", found=message_id
        )
    manifest = read_manifest(where)
    if manifest is None:
        raise StorageError(
            f"there are no tables in {where.address}",
            advice="make them with `stagepost pipeline backfill` or `run`, or see --tables",
        )
    versions = manifest.versions
    with damage_named(where, versions, (MESSAGES, RECEIPTS, QUARANTINE)), queries(where, {}) as connection:

        def rows(name: str, days: list[str] | None = None) -> list[Row]:
            table = open_table(where, name, versions[name]) if name in versions else None
            paths = [one.path for one in held_files(table, days)]
            if not paths:
                return []
            files = files_query(connection, where, name, paths)
            # Written into the query: the filters of files are looked at for a value that is known beforehand.
            answer = connection.execute(f"SELECT * FROM ({files}) WHERE message_id = '{wanted}'")
            names = [column[0] for column in answer.description or ()]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

        found = rows(MESSAGES)
        days = sorted({day for row in found for day in (*(row.pop("days", None) or ()), str(row["day"]))})
        receipts = rows(RECEIPTS, days) if found else []
        quarantined = rows(QUARANTINE)
    if not (found or quarantined):
        return None
    receipts.sort(key=lambda row: (row["timestamp_ms"], row["level"], row["source_id"], row["kind"]))
    quarantined.sort(key=lambda row: (row["arrived_ms"] or 0, row["partition"] or 0, row["offset"] or 0))
    return FoundMessage(_shown(found[0]) if found else None, receipts, quarantined)


def _shown(row: Row) -> Row:
    """Return the columns that people read, without those by which the pipeline brings the row up to date."""
    known = [column.name for column in BY_NAME[MESSAGES].columns]
    return {name: row[name] for name in (*known, "day") if name in row}
