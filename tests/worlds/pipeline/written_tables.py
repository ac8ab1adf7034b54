"""Tables as the pipeline leaves them, from rows that are given: real files, commits and a real manifest, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from stagepost.pipeline.tables.delta import LOG_FOLDER, held_files, open_table
from stagepost.pipeline.tables.manifest import Manifest
from stagepost.pipeline.tables.store import TableStore
from tests.worlds.pipeline.pipeline_spark import need_packages

DAY = "2026-01-31"

Rows = Sequence[Mapping[str, Any]]


def write_lake(
    where: TableStore | Path, rows: Mapping[str, Rows], manifest: Manifest, day: str = DAY
) -> Manifest:
    """Commit rows to tables by name, all of one day, and publish `manifest` with them; columns that a row lacks are null.

    Return the manifest as it was published.
    """
    need_packages()
    import msgspec
    import pyarrow as pa

    from stagepost.pipeline.schemas import STORED, arrow_schema, with_day
    from stagepost.pipeline.tables.delta import Commit
    from stagepost.pipeline.tables.tables import Tables

    tables = Tables(where)
    try:
        with tables.changing():
            for name, some in rows.items():
                whole = [{**row, "day": day} for row in some]
                table = pa.Table.from_pylist(whole, arrow_schema(with_day(STORED[name])))
                tables.commit(name, Commit(adds=tuple(tables.write_rows(table, name))))
            tables.publish(
                lambda current: msgspec.structs.replace(
                    manifest, generation=current.generation, versions=current.versions
                )
            )
        return tables.manifest
    finally:
        tables.close()


def require_named_files(out: Path, manifest: Manifest) -> None:
    """Assert that every file that counts is there, and that a commit names or named every file that is there."""
    for name, version in manifest.versions.items():
        left = {str(path.relative_to(out / name)) for path in (out / name).glob("day=*/*")}
        held = {one.path for one in held_files(open_table(TableStore.at(out), name, version))}
        assert held <= left, f"{name}: files that count are missing"
        assert left <= _once_named(out / name), f"{name}: files that no commit has named"


def _once_named(table: Path) -> set[str]:
    logs = (table / LOG_FOLDER).glob("*.json")
    entries = (json.loads(line) for path in logs for line in path.read_text().splitlines())
    return {unquote(entry["add"]["path"]) for entry in entries if "add" in entry}
