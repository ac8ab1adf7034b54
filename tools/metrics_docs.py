"""Writes docs/metrics.md from the declared metrics: `python tools/metrics_docs.py FILE`. A test compares the result."""

from __future__ import annotations

import sys
from pathlib import Path

from stagepost.delivery.shell.metrics import DASHBOARD_METRICS, DELIVERY_METRICS
from stagepost.dmq.node.metrics import NODE_METRICS
from stagepost.full_node.kafka import KAFKA_METRICS
from stagepost.full_node.metrics import FULL_NODE_METRICS
from stagepost.full_node.node_health import HEALTH_METRICS
from stagepost.ground.statemachine.render import table
from stagepost.ground.telemetry.metrics import BUILD_INFO, MetricDeclaration
from stagepost.pipeline.metrics import PIPELINE_METRICS
from stagepost.validator.metrics import VALIDATOR_METRICS

GENERATED = "<!-- Written by `make docs` from the code; changes made here are lost. -->"
ABOUT = (
    "A node serves its metrics at `/metrics` on 127.0.0.1. `--metrics-port` chooses the port; a file in the data folder names it.\n\n"
    "| metrics | served by | file with the port |\n|---|---|---|\n"
    "| `stagepost_dmq_…`, `stagepost_kes_…` | a DMQ node | `node.json` |\n"
    "| `stagepost_remp_…` without the queue, `stagepost_kafka_…` | a full node | `full-node-status.json` |\n"
    "| `stagepost_remp_queue_…`, `stagepost_remp_forgotten_total`, `stagepost_catchain_…`, `stagepost_agreement_…` | a validator | `validator-status.json` |\n"
    "| `stagepost_health`, `stagepost_validator_linked`, `stagepost_quorum`, `stagepost_chain_…`, `stagepost_disk_…` | full nodes, validators and the dashboard | as above |\n"
    "| `stagepost_delivery_…` | a program that publishes, with its `DeliveryMetrics`; the dashboard for an outbox | – |\n"
    "| `stagepost_pipeline_…` | `stagepost pipeline run` with `--metrics-port` | – |\n\n"
    "Labels take their values from the lists below, from the shards of the chain and from the names in the network file, never from peers. `--prometheus HOST:PORT` of a full node or validator, and `node.prometheus` of a DMQ node, serve `/metrics` alone at an address that other machines reach. Nodes serve `/healthz`, `/readyz`, `/status` and `/mempool` at the same port."
)

ALL_METRICS = (
    NODE_METRICS
    + DELIVERY_METRICS
    + DASHBOARD_METRICS
    + tuple(metric for metric in FULL_NODE_METRICS + VALIDATOR_METRICS if metric is not BUILD_INFO)
    + HEALTH_METRICS
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
