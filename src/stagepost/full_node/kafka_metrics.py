"""What a full node tells of its ways to Kafka, beside its other metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from stagepost.ground.telemetry.metrics import Declared, DeclaredSamples, Kind
from stagepost.topics.kafka.spool import SpoolCounters

KAFKA_SPOOL_RECORDS = Declared(
    "stagepost_kafka_spool_records",
    Kind.GAUGE,
    "Statuses of a full node with --kafka that the broker has not confirmed yet.",
    {},
)
KAFKA_MESSAGES_LAG = Declared(
    "stagepost_kafka_messages_lag_records",
    Kind.GAUGE,
    "Messages that the broker holds and a full node with --kafka has not taken yet.",
    {},
)
KAFKA_PUBLISHED = Declared(
    "stagepost_kafka_published_total",
    Kind.COUNTER,
    "Statuses that the broker has confirmed.",
    {},
)
KAFKA_FAULTS = Declared(
    "stagepost_kafka_faults_total",
    Kind.COUNTER,
    "How often the way to the broker had to be begun anew.",
    {},
)
KAFKA_METRICS = (KAFKA_SPOOL_RECORDS, KAFKA_MESSAGES_LAG, KAFKA_PUBLISHED, KAFKA_FAULTS)
"""Of a full node, beside its own, if it has a way to Kafka."""


class KafkaMetrics:
    """Counters follow those of the spool; gauges are as of the moment of asking."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._waiting = Gauge(KAFKA_SPOOL_RECORDS.name, KAFKA_SPOOL_RECORDS.about, registry=self._registry)
        self._lag = Gauge(KAFKA_MESSAGES_LAG.name, KAFKA_MESSAGES_LAG.about, registry=self._registry)
        self._published = Counter(KAFKA_PUBLISHED.name, KAFKA_PUBLISHED.about, registry=self._registry)
        self._faults = Counter(KAFKA_FAULTS.name, KAFKA_FAULTS.about, registry=self._registry)
        self._told = SpoolCounters()

    def render(self, waiting: int, lag: int, counters: SpoolCounters) -> bytes:
        self._waiting.set(waiting)
        self._lag.set(lag)
        self._published.inc(counters.published - self._told.published)
        self._faults.inc(counters.faults - self._told.faults)
        self._told = SpoolCounters(counters.published, counters.found_there, counters.faults)
        return generate_latest(DeclaredSamples(self._registry))
