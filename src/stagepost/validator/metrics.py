"""The metrics of a validator: counters grow as events happen, gauges are set when the metrics are read."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from stagepost.catchain.effects import BlameReport, Deliver
from stagepost.full_node.metrics import named, set_build_info
from stagepost.ground.telemetry.metrics import BUILD_INFO, DeclaredSamples, Kind, MetricDeclaration

REMP_QUEUE_MESSAGES = MetricDeclaration(
    "stagepost_remp_queue_messages",
    Kind.GAUGE,
    "Messages in a validator's queues that no shard block holds yet, by shard.",
    {"shard": ()},
)
CATCHAIN_BLOCKS = MetricDeclaration(
    "stagepost_catchain_blocks_total",
    Kind.COUNTER,
    "Blocks of the queues' catchains that a validator has delivered.",
    {},
)
CATCHAIN_FORKS = MetricDeclaration(
    "stagepost_catchain_forks_total",
    Kind.COUNTER,
    "Members of catchains that were proved to have made two blocks at one height.",
    {},
)

VALIDATOR_METRICS = (BUILD_INFO, REMP_QUEUE_MESSAGES, CATCHAIN_BLOCKS, CATCHAIN_FORKS)


class ValidatorMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._queue = Gauge(*named(REMP_QUEUE_MESSAGES), registry=self._registry)
        self._blocks = Counter(*named(CATCHAIN_BLOCKS), registry=self._registry)
        self._forks = Counter(*named(CATCHAIN_FORKS), registry=self._registry)
        set_build_info(self._registry)

    def heard(self, event: object) -> None:
        """Count an event of a queue's session."""
        if isinstance(event, Deliver):
            self._blocks.inc()
        elif isinstance(event, BlameReport) and event.proof is not None:
            self._forks.inc()

    def render(self, open_by_shard: Mapping[str, int]) -> bytes:
        self._queue.clear()
        for shard, count in sorted(open_by_shard.items()):
            self._queue.labels(shard).set(count)
        return generate_latest(DeclaredSamples(self._registry))
