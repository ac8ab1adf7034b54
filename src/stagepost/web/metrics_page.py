"""`/metrics`: what this program knows itself. Nodes and publishers serve their own."""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from stagepost import __version__
from stagepost.delivery.shell import metrics as delivery_metrics
from stagepost.ground.telemetry.metrics import BUILD_INFO
from stagepost.ground.telemetry.metrics import CONTENT_TYPE as CONTENT_TYPE
from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.sources import Sources


def metrics_text(sources: Sources) -> bytes:
    """The outbox, if there is one to read: whoever publishes may be a program that serves no metrics."""
    registry = CollectorRegistry()
    info = Gauge(BUILD_INFO.name, BUILD_INFO.about, ["version", "python"], registry=registry)
    info.labels(__version__, platform.python_version()).set(1)
    content = sources.outbox()
    if isinstance(content, Nothing):
        return generate_latest(registry)
    is_readable = not isinstance(content, Unreadable) and not content.damage
    readable = delivery_metrics.DELIVERY_OUTBOX_READABLE
    Gauge(readable.name, readable.about, registry=registry).set(is_readable)
    # What could not be counted has no sample: a 0 would look like an empty outbox.
    if is_readable and not isinstance(content, Unreadable):
        oldest_ms = min((record.created_ms for record in content.records), default=None)
        age_s = 0.0 if oldest_ms is None else max(0.0, (sources.now_ms() - oldest_ms) / 1_000)
        for declared, value in (
            (delivery_metrics.DELIVERY_QUEUE_MESSAGES, len(content.records)),
            (delivery_metrics.DELIVERY_QUEUE_CAPACITY, sources.settings.queue_size),
            (delivery_metrics.DELIVERY_QUEUE_OLDEST, age_s),
            (delivery_metrics.DELIVERY_DEAD_LETTERS, len(content.dead_letters)),
        ):
            Gauge(declared.name, declared.about, registry=registry).set(value)
    return generate_latest(registry)
