"""The metrics of a running pipeline for Prometheus, from the manifest after each commit. Needs no Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from stagepost.errors import ErrorCode
from stagepost.ground.telemetry.metrics import OTHER, DeclaredSamples, Kind, MetricDeclaration
from stagepost.pipeline.tables.manifest import Manifest

PIPELINE_TABLES = ("records", "receipts", "quarantine")
"""Tables that get rows as records come; the other tables are worked out from these."""
QUARANTINE_REASONS = tuple(
    code.value
    for code in ErrorCode
    if code.startswith(("RECEIPT_", "CBOR_", "OPCERT_", "KES_"))
    or code in (ErrorCode.MSG_BAD_ID, ErrorCode.MSG_BODY_SIZE)
)
PIPELINE_ROWS = MetricDeclaration(
    "stagepost_pipeline_rows_total",
    Kind.COUNTER,
    "Rows that this run has put into the tables: all records, receipts that count, and bad rows.",
    {"table": PIPELINE_TABLES},
)
PIPELINE_QUARANTINED_ROWS = MetricDeclaration(
    "stagepost_pipeline_quarantined_rows_total",
    Kind.COUNTER,
    "Rows that this run has put into quarantine, by reason.",
    {"reason": (*QUARANTINE_REASONS, OTHER)},
)
PIPELINE_LAST_SUCCESS = MetricDeclaration(
    "stagepost_pipeline_last_success_timestamp_seconds",
    Kind.GAUGE,
    "When the tables were last brought up to date, in Unix seconds; 0 before the first time.",
)

PIPELINE_METRICS = (PIPELINE_ROWS, PIPELINE_QUARANTINED_ROWS, PIPELINE_LAST_SUCCESS)
"""Metrics of `stagepost pipeline run`."""


STALE_AFTER_S = 60.0
"""Seconds without a commit after which a running stream is not healthy: it evaluates every few seconds, also
when nothing comes.
"""


class PipelineMetrics:
    """A `StatusSource`. Counters begin at zero with the process, whatever the tables held before."""

    def __init__(self, before: Manifest | None, now: Callable[[], float] = time.time) -> None:
        self._registry = CollectorRegistry()
        self._rows = PIPELINE_ROWS.counter(self._registry)
        self._quarantined = PIPELINE_QUARANTINED_ROWS.counter(self._registry)
        self._success = PIPELINE_LAST_SUCCESS.gauge(self._registry)
        for table in PIPELINE_TABLES:
            self._rows.labels(table)
        for reason in QUARANTINE_REASONS:
            self._quarantined.labels(reason)
        self._known = _totals(before or Manifest())
        self._manifest = before
        self._now = now
        self._succeeded_s: float | None = None

    def committed(self, manifest: Manifest) -> None:
        totals = _totals(manifest)
        for table in PIPELINE_TABLES:
            # Records that were forgotten, and those that another sets file lets pass, take nothing back.
            self._rows.labels(table).inc(max(0, totals[table] - self._known[table]))
        for name in totals.keys() - set(PIPELINE_TABLES):
            added = max(0, totals[name] - self._known[name])
            self._quarantined.labels(name if name in QUARANTINE_REASONS else OTHER).inc(added)
        self._known = totals
        self._manifest = manifest
        self._succeeded_s = self._now()
        self._success.set(self._succeeded_s)

    def metrics(self) -> bytes:
        return generate_latest(DeclaredSamples(self._registry))

    def readiness(self) -> Mapping[str, str | None]:
        if self._succeeded_s is None:
            return {"tables": "nothing has been taken yet"}
        silent_s = self._now() - self._succeeded_s
        return {
            "tables": None if silent_s <= STALE_AFTER_S else f"not brought up to date for {silent_s:.0f} s"
        }

    def status(self) -> dict[str, Any]:
        if self._manifest is None:
            return {"rows": 0}
        from stagepost.pipeline.tables.manifest import counts

        return counts(self._manifest)

    def held_messages(self, after: int, limit: int) -> dict[str, Any]:
        """Return an empty page: a pipeline has no mempool."""
        return {"code": ErrorCode.NOT_READY.value, "messages": []}


def _totals(manifest: Manifest) -> Counter[str]:
    totals: Counter[str] = Counter({table: 0 for table in PIPELINE_TABLES})
    total = manifest.total
    totals["records"] += total.rows + total.other_rows
    totals["receipts"] += total.passing
    for reasons in (total.quarantined, total.other_quarantined):
        totals["quarantine"] += sum(reasons.values())
        totals.update(reasons)
    totals["records"] += manifest.removed_rows
    return totals
