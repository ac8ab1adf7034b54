"""The metrics of a validator: counters grow as events happen, gauges are set when the metrics are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest

from stagepost.catchain.effects import BlameReport, Deliver
from stagepost.errors import ErrorCode
from stagepost.ground.telemetry.metrics import (
    BUILD_INFO,
    DeclaredSamples,
    Kind,
    MetricDeclaration,
    set_build_info,
)

REMP_QUEUE_MESSAGES = MetricDeclaration(
    "stagepost_remp_queue_messages",
    Kind.GAUGE,
    "Messages in a validator's queues that no shard block holds yet, by shard.",
    {"shard": ()},
)
CATCHAIN_BLOCKS = MetricDeclaration(
    "stagepost_catchain_blocks_total",
    Kind.COUNTER,
    "Catchain blocks that a validator's queues have delivered.",
)
CATCHAIN_FORKS = MetricDeclaration(
    "stagepost_catchain_forks_total",
    Kind.COUNTER,
    "Catchain members for which there is a proof of two blocks at one height.",
)
CATCHAIN_BLAMED = MetricDeclaration(
    "stagepost_catchain_blamed_total",
    Kind.COUNTER,
    "Catchain members that broke a rule by their own blocks: forks, false totals, more than the budget allows.",
)

REMP_QUEUE_WITHOUT_BODY = MetricDeclaration(
    "stagepost_remp_queue_without_body",
    Kind.GAUGE,
    "Open messages in a validator's queues of which only the announcement has come, by shard.",
    {"shard": ()},
)
REMP_QUEUE_REFUSED = MetricDeclaration(
    "stagepost_remp_queue_refused_total",
    Kind.COUNTER,
    "Messages of full nodes that a validator did not take, by error code; QUEUE_FULL: for overload.",
    {"reason": tuple(ErrorCode)},
)
REMP_FORGOTTEN = MetricDeclaration(
    "stagepost_remp_forgotten_total",
    Kind.COUNTER,
    "Messages that left a validator's cache when their time was over.",
)
AGREEMENT_SLOT = MetricDeclaration(
    "stagepost_agreement_slot", Kind.GAUGE, "Present slot of the session at work, by shard.", {"shard": ()}
)
AGREEMENT_SKIPPED = MetricDeclaration(
    "stagepost_agreement_skipped_slots_total",
    Kind.COUNTER,
    "Slots between two final blocks in which no block became final.",
)
AGREEMENT_MISSED = MetricDeclaration(
    "stagepost_agreement_missed_votes_total",
    Kind.COUNTER,
    "Final blocks for whose slots this validator has signed no vote.",
)
AGREEMENT_BLAMED = MetricDeclaration(
    "stagepost_agreement_blamed_total",
    Kind.COUNTER,
    "Proofs that a validator signed two votes which contradict each other, by its name in the network file.",
    {"validator": ()},
)
AGREEMENT_HALTED = MetricDeclaration(
    "stagepost_agreement_halted",
    Kind.GAUGE,
    "1 if this validator votes no more, because going on could make it contradict itself.",
)

VALIDATOR_METRICS = (
    BUILD_INFO,
    REMP_QUEUE_MESSAGES,
    REMP_QUEUE_WITHOUT_BODY,
    REMP_QUEUE_REFUSED,
    REMP_FORGOTTEN,
    CATCHAIN_BLOCKS,
    CATCHAIN_FORKS,
    CATCHAIN_BLAMED,
    AGREEMENT_SLOT,
    AGREEMENT_SKIPPED,
    AGREEMENT_MISSED,
    AGREEMENT_BLAMED,
    AGREEMENT_HALTED,
)


class AgreementFigures(NamedTuple):
    """Figures of a validator at one moment, for its metrics."""

    open_by_shard: Mapping[str, int]
    without_body_by_shard: Mapping[str, int]
    refused: Mapping[str, int]
    forgotten: int
    slots: Mapping[str, int]
    skipped_slots: int
    missed_votes: int
    blamed: Mapping[str, int]
    is_halted: bool


class ValidatorMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._blocks = CATCHAIN_BLOCKS.counter(self._registry)
        self._forks = CATCHAIN_FORKS.counter(self._registry)
        self._blamed = CATCHAIN_BLAMED.counter(self._registry)
        set_build_info(self._registry)

    def heard(self, event: object) -> None:
        """Count an event of a queue's session."""
        if isinstance(event, Deliver):
            self._blocks.inc()
        elif isinstance(event, BlameReport):
            self._blamed.inc()
            if event.proof is not None:
                self._forks.inc()

    def render(self, figures: AgreementFigures) -> bytes:
        """Return the metrics in the text format that Prometheus reads."""
        registry = CollectorRegistry()
        for declared, by_label in (
            (REMP_QUEUE_MESSAGES, figures.open_by_shard),
            (REMP_QUEUE_WITHOUT_BODY, figures.without_body_by_shard),
            (AGREEMENT_SLOT, figures.slots),
        ):
            gauge = declared.gauge(registry)
            for label, count in sorted(by_label.items()):
                gauge.labels(label).set(count)
        for declared, by_label in ((REMP_QUEUE_REFUSED, figures.refused), (AGREEMENT_BLAMED, figures.blamed)):
            counter = declared.counter(registry)
            for label, count in sorted(by_label.items()):
                counter.labels(label).inc(count)
        for declared, total in (
            (REMP_FORGOTTEN, figures.forgotten),
            (AGREEMENT_SKIPPED, figures.skipped_slots),
            (AGREEMENT_MISSED, figures.missed_votes),
        ):
            declared.counter(registry).inc(total)
        AGREEMENT_HALTED.gauge(registry).set(figures.is_halted)
        return generate_latest(DeclaredSamples(self._registry)) + generate_latest(DeclaredSamples(registry))
