"""A reader of Delta tables that parses the log itself: JSON and Parquet, and nothing of ours or of a Delta library.

Takes a folder, also the one in which the storage server of the tests keeps its objects.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq

ENTRY = re.compile(r"(\d{20})\.json")


class LoggedTable(NamedTuple):
    """A version of a table: its live files with their day, its columns, and the last number of each stream."""

    version: int
    files: dict[str, str | None]
    columns: dict[str, str | None]
    transactions: dict[str, int]


def read_log(table: Path) -> LoggedTable:
    """Replay the log from its last checkpoint on; refuse a gap in the versions."""
    log = table / "_delta_log"
    found = LoggedTable(-1, {}, {}, {})
    last = log / "_last_checkpoint"
    if last.exists():
        version = json.loads(last.read_text())["version"]
        for row in pq.read_table(log / f"{version:020d}.checkpoint.parquet").to_pylist():
            _enter(found, {name: action for name, action in row.items() if action is not None})
        found = found._replace(version=version)
    entries = sorted((int(name[1]), path) for path in log.iterdir() if (name := ENTRY.fullmatch(path.name)))
    for version, path in entries:
        if version <= found.version:
            continue
        assert version == found.version + 1, f"{table} has no version {found.version + 1}"
        for line in path.read_text().splitlines():
            _enter(found, json.loads(line))
        found = found._replace(version=version)
    return found


def read_rows(table: Path) -> list[dict[str, Any]]:
    """Return all rows of the last version, `day` as text."""
    rows: list[dict[str, Any]] = []
    for name, day in sorted(read_log(table).files.items()):
        rows += [{**row, "day": day} for row in pq.ParquetFile(table / name).read().to_pylist()]
    return rows


def _enter(found: LoggedTable, action: dict[str, Any]) -> None:
    if (add := action.get("add")) is not None:
        found.files[unquote(add["path"])] = dict(add["partitionValues"] or ()).get("day")
    if (remove := action.get("remove")) is not None:
        found.files.pop(unquote(remove["path"]), None)
    if (meta := action.get("metaData")) is not None:
        found.columns.clear()
        for field in json.loads(meta["schemaString"])["fields"]:
            found.columns[field["name"]] = field["metadata"].get("comment")
    if (transaction := action.get("txn")) is not None:
        found.transactions[transaction["appId"]] = transaction["version"]
