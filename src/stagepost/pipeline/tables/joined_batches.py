"""Accounts of tasks, or of batches, joined to one. Needs no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from stagepost.pipeline.tables.manifest import Batch


def joined(parts: Sequence[Batch]) -> Batch:
    """Everything that the parts hold, under one name."""
    files: dict[str, list[str]] = {}
    reasons: Counter[str] = Counter()
    other_reasons: Counter[str] = Counter()
    for part in parts:
        reasons.update(part.quarantined)
        other_reasons.update(part.other_quarantined)
        for kind, names in part.files.items():
            files.setdefault(kind, []).extend(names)
    return Batch(
        files,
        rows=sum(part.rows for part in parts),
        passing=sum(part.passing for part in parts),
        quarantined=dict(sorted(reasons.items())),
        other_rows=sum(part.other_rows for part in parts),
        other_quarantined=dict(sorted(other_reasons.items())),
        greatest_arrival_ms=_greatest(part.greatest_arrival_ms for part in parts),
        greatest_full_node_ms=_greatest(part.greatest_full_node_ms for part in parts),
        counted=sum(part.counted for part in parts),
    )


def _greatest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def new_receipts(folder: Path, files: Sequence[str]) -> int:
    """Those that were not known before the evaluation that wrote these lives; from two columns, without Spark."""
    import duckdb

    if not files:
        return 0
    connection = duckdb.connect(":memory:")
    try:
        names = [str(folder / name) for name in files]
        query = "SELECT sum(receipts - receipts_before)::BIGINT FROM read_parquet(?)"
        found = connection.execute(query, [names]).fetchone()
    finally:
        connection.close()
    return 0 if found is None or found[0] is None else int(found[0])
