"""The metrics of a program that publishes: a sink that counts events, and gauges read from a publisher."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from stagepost.delivery.effects import DeliveryEvent
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.telemetry.metrics import DeclaredSamples, Kind, MetricDeclaration

DELIVERY_MESSAGES = MetricDeclaration(
    "stagepost_delivery_messages_total",
    Kind.COUNTER,
    "Messages that reached a status, by tier and status.",
    {"tier": tuple(Tier), "status": tuple(DeliveryStatus)},
)
DELIVERY_QUEUE_MESSAGES = MetricDeclaration(
    "stagepost_delivery_queue_messages", Kind.GAUGE, "Messages in the outbox."
)
DELIVERY_QUEUE_CAPACITY = MetricDeclaration(
    "stagepost_delivery_queue_capacity_messages", Kind.GAUGE, "Messages that the outbox holds at most."
)
DELIVERY_QUEUE_OLDEST = MetricDeclaration(
    "stagepost_delivery_queue_oldest_age_seconds",
    Kind.GAUGE,
    "Age of the oldest message in the outbox; 0 if the outbox is empty.",
)
DELIVERY_RETRIES = MetricDeclaration(
    "stagepost_delivery_retries_total", Kind.COUNTER, "Attempts to send after the first one of a message."
)
DELIVERY_EVICTIONS = MetricDeclaration(
    "stagepost_delivery_evictions_total", Kind.COUNTER, "Messages evicted from a full outbox."
)
DELIVERY_DEAD_LETTERS = MetricDeclaration(
    "stagepost_delivery_dead_letters",
    Kind.GAUGE,
    "Dead letters: failed messages that are kept for a replay.",
)
DELIVERY_OUTBOX_READABLE = MetricDeclaration(
    "stagepost_delivery_outbox_readable",
    Kind.GAUGE,
    "1 if the dashboard could read the whole outbox; 0 if not, and then the other metrics of the outbox are absent.",
)
DELIVERY_ACK_SECONDS = MetricDeclaration(
    "stagepost_delivery_ack_seconds",
    Kind.HISTOGRAM,
    "Time from the call to the last required acknowledgement.",
)
DELIVERY_METRICS = (
    DELIVERY_MESSAGES,
    DELIVERY_QUEUE_MESSAGES,
    DELIVERY_QUEUE_CAPACITY,
    DELIVERY_QUEUE_OLDEST,
    DELIVERY_RETRIES,
    DELIVERY_EVICTIONS,
    DELIVERY_DEAD_LETTERS,
    DELIVERY_ACK_SECONDS,
)
"""Metrics of a program that publishes; a node has none of them."""

DASHBOARD_METRICS = (DELIVERY_OUTBOX_READABLE,)
"""Metrics of `stagepost serve` alone, beside figures of the outbox that it reads."""


ACK_SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0)
STARTS_REMEMBERED_MAX = 100_000
"""Acked messages, at most, whose beginning is remembered; a publisher has far fewer on their way at a time."""


class DeliveryMetrics:
    """The event sink of a publisher that counts; `watch` the publisher too, and give `render` to Prometheus.

    In a registry of its own: two publishers in one process do not mix.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._registry = CollectorRegistry()
        self._clock = clock or SystemClock()
        self._messages = DELIVERY_MESSAGES.counter(self._registry)
        self._queue = DELIVERY_QUEUE_MESSAGES.gauge(self._registry)
        self._capacity = DELIVERY_QUEUE_CAPACITY.gauge(self._registry)
        self._oldest = DELIVERY_QUEUE_OLDEST.gauge(self._registry)
        self._retries = DELIVERY_RETRIES.counter(self._registry)
        self._evictions = DELIVERY_EVICTIONS.counter(self._registry)
        self._dead_letters = DELIVERY_DEAD_LETTERS.gauge(self._registry)
        self._ack_seconds = DELIVERY_ACK_SECONDS.histogram(self._registry, ACK_SECONDS_BUCKETS)
        # A rate over a series that begins at its first event would miss that event.
        for tier in Tier:
            for status in DeliveryStatus:
                self._messages.labels(tier, status)
        self._started_ms: OrderedDict[str, int] = OrderedDict()
        self._stats: Callable[[], Mapping[str, Any]] | None = None
        self._retries_seen = 0
        self._evictions_seen = 0

    def put(self, event: DeliveryEvent) -> None:
        self._messages.labels(event.tier, event.status).inc()
        if event.tier is not Tier.ACKED:
            return
        match event.status:
            case DeliveryStatus.PENDING:
                self._started_ms[event.delivery_id] = event.timestamp_ms
                if len(self._started_ms) > STARTS_REMEMBERED_MAX:
                    self._started_ms.popitem(last=False)
            case DeliveryStatus.ACKED | DeliveryStatus.FAILED:
                started_ms = self._started_ms.pop(event.delivery_id, None)
                if started_ms is not None and event.status is DeliveryStatus.ACKED:
                    self._ack_seconds.observe(max(0, event.timestamp_ms - started_ms) / 1_000)

    def watch(self, stats: Callable[[], Mapping[str, Any]], capacity: int) -> None:
        """Read gauges from `stats` of a publisher whenever the metrics are rendered."""
        self._stats = stats
        self._capacity.set(capacity)

    def render(self) -> bytes:
        if self._stats is not None:
            self._update(self._stats())
        return generate_latest(DeclaredSamples(self._registry))

    def _update(self, stats: Mapping[str, Any]) -> None:
        self._queue.set(stats["queue_len"] + stats["in_flight"])
        self._dead_letters.set(stats["dead_letters"])
        oldest_ms: int | None = stats["oldest_ms"]
        self._oldest.set(0 if oldest_ms is None else max(0.0, self._clock.unix_s() - oldest_ms / 1_000))
        # Counters only grow here, although a restarted publisher counts from 0 again.
        retries, evictions = stats["retries"], stats["evicted"]
        self._retries.inc(max(0, retries - self._retries_seen))
        self._evictions.inc(max(0, evictions - self._evictions_seen))
        self._retries_seen, self._evictions_seen = retries, evictions
