"""Which messages a batch touches, for looking up what was known of them before. Needs no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
