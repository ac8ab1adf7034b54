"""The account of a tables folder: every input row is counted, repeated or quarantined."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stagepost.pipeline.tables.manifest import Manifest


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
