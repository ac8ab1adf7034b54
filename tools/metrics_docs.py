"""Writes docs/metrics.md from the declared metrics: `python tools/metrics_docs.py FILE`. A test compares the result."""

from __future__ import annotations

import sys
from pathlib import Path

from stagepost.delivery.shell.metrics import DASHBOARD_METRICS, DELIVERY_METRICS
from stagepost.dmq.node.metrics import NODE_METRICS
from stagepost.full_node.kafka import KAFKA_METRICS
from stagepost.full_node.metrics import FULL_NODE_METRICS
from stagepost.ground.statemachine.render import table
from stagepost.ground.telemetry.metrics import BUILD_INFO, MetricDeclaration
from stagepost.pipeline.metrics import PIPELINE_METRICS
from stagepost.validator.metrics import VALIDATOR_METRICS

GENERATED = "<!-- Written by `make docs` from the code; changes made here are lost. -->"
ABOUT = (
    "A node serves these at `/metrics` on 127.0.0.1, at the port that `--metrics-port` chooses or the note in its "
    "data folder names (`node.json` of a DMQ node; `full-node-status.json`, which has those that begin with `stagepost_remp_`; "
    "`validator-status.json`, which has the queue and `stagepost_catchain_`). Beside them: `/healthz`, `/readyz`, `/status` and `/mempool`. Those that begin with `stagepost_delivery_` belong to "
    "a program that publishes: its `DeliveryMetrics` counts and renders them. Those that begin with `stagepost_pipeline_` are served by "
    "`stagepost pipeline run --metrics-port`. Labels take their values from the lists below, never from peers."
)

ALL_METRICS = (
    NODE_METRICS
    + DELIVERY_METRICS
    + DASHBOARD_METRICS
    + tuple(metric for metric in FULL_NODE_METRICS + VALIDATOR_METRICS if metric is not BUILD_INFO)
    + PIPELINE_METRICS
    + KAFKA_METRICS
)


def page() -> str:
    rows = ((f"`{metric.name}`", metric.kind.value, _labels(metric), metric.about) for metric in ALL_METRICS)
    parts = [
        GENERATED,
        "# Metrics",
        ABOUT,
        table(("metric", "type", "labels", "meaning"), rows),
        "## Label values",
    ]
    values = [
        f"- `{metric.name}`, `{label}`: {', '.join(f'`{value}`' for value in allowed)}"
        for metric in ALL_METRICS
        for label, allowed in metric.labels.items()
        if allowed
    ]
    return "\n\n".join([*parts, "\n".join(values)]) + "\n"


def _labels(metric: MetricDeclaration) -> str:
    return ", ".join(f"`{label}`" for label in metric.labels) or "–"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
