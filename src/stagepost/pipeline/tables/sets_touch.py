"""Messages that a change of the validator sets touches, found without Spark and mostly without history.

The log of a table knows the least and greatest times of every file. A switch of sessions matters from its moment on, so
files that end before it are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from stagepost.ground.identifiers import INT64_MAX
from stagepost.pipeline.tables.delta import DAY, held_files, held_ranges
from stagepost.pipeline.tables.look_up import LateMessages, is_message_id, queries, rows_of
from stagepost.pipeline.tables.manifest import RECORDS, STATE
from stagepost.pipeline.tables.store import TableStore
from stagepost.remp.session_windows import END_MS, Window, joined_windows
from stagepost.remp.sets_change import SetsChange

if TYPE_CHECKING:
    from deltalake import DeltaTable

TOUCHED_BY_SETS_MAX = 10_000
"""Messages, at most, that are checked again one by one; when a change touches more, all records are."""


_RECORDS = """
    SELECT DISTINCT r.message_id FROM records r JOIN changed c ON r.source_id = c.source_id
    WHERE r.timestamp_ms BETWEEN c.from_ms AND c.to_ms
"""
_STATE = """
    SELECT DISTINCT s.message_id FROM state s JOIN changed c ON s.source_id = c.source_id
    WHERE s.last_ms >= c.from_ms AND c.to_ms = {end}
"""
# A row of a validator may lie in several parts, before and after the window and none within. Who has a part that ends after the
# window's beginning is looked up whole.
_STATE_LATE = """
    SELECT DISTINCT s.message_id FROM state s JOIN changed c ON s.source_id = c.source_id
    WHERE c.to_ms < {end} AND s.last_ms >= c.from_ms
"""
_STATE_BETWEEN = """
    SELECT DISTINCT message_id FROM (
      SELECT s.message_id, s.source_id, c.from_ms, c.to_ms FROM state s JOIN changed c ON s.source_id = c.source_id
      WHERE c.to_ms < {end} GROUP BY ALL HAVING min(s.first_ms) <= c.to_ms AND max(s.last_ms) >= c.from_ms
    )
"""
_SPAN = pa.schema(
    [
        ("message_id", pa.string()),
        ("source_id", pa.string()),
        ("first_ms", pa.int64()),
        ("last_ms", pa.int64()),
    ]
)


def touched_by_sets(
    store: TableStore, records: DeltaTable, state: DeltaTable, change: SetsChange
) -> LateMessages | None:
    """Return the messages that may be judged otherwise, and all days on which something of them arrived.

    None if they are more than `TOUCHED_BY_SETS_MAX`.
    """
    changed = _rows(change)
    if not len(changed):
        return LateMessages([], [])
    moments = joined_windows(window for windows in change.keys.values() for window in windows)
    found: set[str] = set()
    near = _paths(records, moments, "timestamp_ms", "timestamp_ms")
    found |= _ids(store, RECORDS, near, changed, _RECORDS)
    near = _paths(state, moments, "first_ms", "last_ms")
    found |= _ids(store, STATE, near, changed, _STATE.format(end=INT64_MAX))
    found |= _between(store, state, change, changed)
    if len(found) > TOUCHED_BY_SETS_MAX:
        return None
    days = rows_of(state, found, pa.schema([(DAY, pa.string())]))[DAY]
    return LateMessages(sorted(found), sorted(days.unique().to_pylist()))


def _between(store: TableStore, state: DeltaTable, change: SetsChange, changed: pa.Table) -> set[str]:
    """Return the messages with parts of a validator's row on both sides of a window that has an end."""
    begins = [
        window.from_ms for windows in change.keys.values() for window in windows if window.to_ms < END_MS
    ]
    if not begins:
        return set()
    late = _paths(state, [Window(min(begins), END_MS)], "first_ms", "last_ms")
    several = _ids(store, STATE, late, changed, _STATE_LATE.format(end=INT64_MAX))
    query = _STATE_BETWEEN.format(end=INT64_MAX)
    if len(several) > TOUCHED_BY_SETS_MAX:
        # A window of long ago: what came since is read once, whole.
        return _ids(store, STATE, [one.path for one in held_files(state)], changed, query)
    with queries(store, {}) as connection:
        connection.register("changed", changed)
        connection.register(STATE, rows_of(state, several, _SPAN))
        return {one for (one,) in connection.execute(query).fetchall() if is_message_id(one)}


def _rows(change: SetsChange) -> pa.Table:
    rows = [
        (key_id.hex(), window.from_ms, min(window.to_ms, INT64_MAX))
        for key_id, windows in change.keys.items()
        for window in windows
    ]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    types = {"source_id": pa.string(), "from_ms": pa.int64(), "to_ms": pa.int64()}
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types.values(), strict=True)]
    return pa.table(arrays, names=list(types))


def _paths(table: DeltaTable, moments: Sequence[Window], least: str, greatest: str) -> list[str]:
    """Return the files that may have something within the moments."""
    return [
        held.path
        for held, first_ms, last_ms in held_ranges(table, least, greatest)
        if first_ms is None or last_ms is None or any(window.meets(first_ms, last_ms) for window in moments)
    ]


def _ids(store: TableStore, name: str, paths: Sequence[str], changed: pa.Table, query: str) -> set[str]:
    if not paths:
        return set()
    with queries(store, {name: (name, paths)}) as connection:
        connection.register("changed", changed)
        found = connection.execute(query).fetchall()
    return {one for (one,) in found if one is not None and is_message_id(one)}
