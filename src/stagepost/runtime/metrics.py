"""Every metric, declared once: name, kind, labels and meaning. `docs/metrics.md` is written from this file.

Labels take their values from enums, never from peers: what others send must not grow the list of time series.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import Metric as MetricFamily

from stagepost import __version__
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import ErrorCode
from stagepost.remp.status import KINDS, Stage
from stagepost.remp.verdict import Conclusion

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MessageOutcome(StrEnum):
    """What became of a message at a mini-protocol: taken in, refused, or passed on."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    SENT = "sent"


class SecondBody(StrEnum):
    """What became of a message with another body than the first of its slot."""

    HELD = "held"
    REFUSED = "refused"


class PeerState(StrEnum):
    """Cold: known; warm: connected; hot: messages are exchanged with it."""

    COLD = "cold"
    WARM = "warm"
    HOT = "hot"


class SignatureState(StrEnum):
    """Why a receipt counts, or does not."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN_SIGNER = "unknown_signer"
    NOT_CHECKED = "not_checked"  # refused for another reason, before its signature was looked at


OUTCOMES: Mapping[MiniProtocol, tuple[MessageOutcome, ...]] = {
    MiniProtocol.MESSAGE_SUBMISSION: tuple(MessageOutcome),
    MiniProtocol.LOCAL_MESSAGE_SUBMISSION: (MessageOutcome.ACCEPTED, MessageOutcome.REJECTED),
    MiniProtocol.LOCAL_MESSAGE_NOTIFICATION: (MessageOutcome.SENT,),
}
"""Peers bring and take messages; programs submit on one mini-protocol and are told on another."""
MESSAGE_PROTOCOLS = tuple(protocol.value for protocol in OUTCOMES)
CONNECTION = "connection"
"""Where a rule of the multiplexer was broken, which belongs to no mini-protocol."""

REJECTION_REASONS = tuple(
    code.value
    for code in ErrorCode
    if code.startswith(("MSG_", "POOL_", "OPCERT_", "KES_"))
    or code in (ErrorCode.NOT_READY, ErrorCode.QUEUE_FULL, ErrorCode.STORAGE_UNAVAILABLE)
)
RULES = tuple(
    code.value for code in ErrorCode if code.startswith(("MUX_", "HANDSHAKE_", "CBOR_", "PROTOCOL_"))
)
OTHER = "other"
"""Stands for a reason that is not among the declared ones: there should be none."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric. `labels` maps each label to all values that it can take; empty where only one can."""

    name: str
    kind: Kind
    about: str
    labels: Mapping[str, tuple[str, ...]]


BUILD_INFO = Declared(
    "stagepost_build_info",
    Kind.GAUGE,
    "Always 1; the labels say what is running.",
    {"version": (), "python": ()},
)
DMQ_MESSAGES = Declared(
    "stagepost_dmq_messages_total",
    Kind.COUNTER,
    "Messages by mini-protocol and what became of them.",
    {"protocol": MESSAGE_PROTOCOLS, "outcome": tuple(MessageOutcome)},
)
DMQ_REJECTIONS = Declared(
    "stagepost_dmq_rejections_total",
    Kind.COUNTER,
    "Messages that were not accepted, by reason.",
    {"reason": (*REJECTION_REASONS, OTHER)},
)
DMQ_MEMPOOL_MESSAGES = Declared("stagepost_dmq_mempool_messages", Kind.GAUGE, "Unexpired messages held.", {})
DMQ_MEMPOOL_BYTES = Declared("stagepost_dmq_mempool_bytes", Kind.GAUGE, "Their bytes.", {})
DMQ_PEERS = Declared(
    "stagepost_dmq_peers",
    Kind.GAUGE,
    "Peers that are known, connected, exchanging.",
    {"state": tuple(PeerState)},
)
DMQ_PROTOCOL_VIOLATIONS = Declared(
    "stagepost_dmq_protocol_violations_total",
    Kind.COUNTER,
    "Rules that peers broke, by mini-protocol.",
    {
        "protocol": (*(protocol.value for protocol in MiniProtocol), CONNECTION),
        "rule": (*RULES, OTHER),
    },
)
DMQ_EQUIVOCATIONS = Declared(
    "stagepost_dmq_equivocations_total",
    Kind.COUNTER,
    "Messages of a pool with another body than its first one of the same slot.",
    {"outcome": tuple(SecondBody)},
)
DMQ_EXPIRED_UNSEEN = Declared(
    "stagepost_dmq_expired_unseen_total",
    Kind.COUNTER,
    "Messages that expired before a local program that listens was shown them, counted for each such program.",
    {},
)
KES_PERIODS_REMAINING = Declared(
    "stagepost_kes_periods_remaining",
    Kind.GAUGE,
    "KES periods left, this one included, of the local programs' key that ends first; absent while none is in use.",
    {},
)
DELIVERY_MESSAGES = Declared(
    "stagepost_delivery_messages_total",
    Kind.COUNTER,
    "Messages that reached a status, by what was asked for.",
    {"tier": tuple(Tier), "status": tuple(DeliveryStatus)},
)
DELIVERY_QUEUE_MESSAGES = Declared(
    "stagepost_delivery_queue_messages", Kind.GAUGE, "Messages in the outbox.", {}
)
DELIVERY_QUEUE_CAPACITY = Declared(
    "stagepost_delivery_queue_capacity_messages", Kind.GAUGE, "How many it holds at most.", {}
)
DELIVERY_QUEUE_OLDEST = Declared(
    "stagepost_delivery_queue_oldest_age_seconds",
    Kind.GAUGE,
    "For how long the oldest message has waited; 0 if none does.",
    {},
)
DELIVERY_RETRIES = Declared(
    "stagepost_delivery_retries_total", Kind.COUNTER, "Attempts after the first one.", {}
)
DELIVERY_EVICTIONS = Declared(
    "stagepost_delivery_evictions_total", Kind.COUNTER, "Messages pushed out of a full outbox.", {}
)
DELIVERY_DEAD_LETTERS = Declared(
    "stagepost_delivery_dead_letters", Kind.GAUGE, "Failed messages that are kept for a replay.", {}
)
DELIVERY_ACK_SECONDS = Declared(
    "stagepost_delivery_ack_seconds",
    Kind.HISTOGRAM,
    "From the call to the last acknowledgement that was needed.",
    {},
)

PIPELINE_TABLES = ("records", "receipts", "quarantine")
"""Into which rows go as they come; the other tables are worked out from these."""
QUARANTINE_REASONS = tuple(
    code.value
    for code in ErrorCode
    if code.startswith(("RECEIPT_", "CBOR_", "OPCERT_", "KES_"))
    or code in (ErrorCode.MSG_BAD_ID, ErrorCode.MSG_BODY_SIZE)
)
PIPELINE_ROWS = Declared(
    "stagepost_pipeline_rows_total",
    Kind.COUNTER,
    "Rows that this run has put into the tables: all records, receipts that count, and bad rows.",
    {"table": PIPELINE_TABLES},
)
PIPELINE_QUARANTINED_ROWS = Declared(
    "stagepost_pipeline_quarantined_rows_total",
    Kind.COUNTER,
    "Rows that this run has put into quarantine, by reason.",
    {"reason": (*QUARANTINE_REASONS, OTHER)},
)
PIPELINE_LAST_SUCCESS = Declared(
    "stagepost_pipeline_last_success_timestamp_seconds",
    Kind.GAUGE,
    "When the tables were last brought up to date, in Unix seconds; 0 before the first time.",
    {},
)

REMP_RECEIPTS = Declared(
    "stagepost_remp_receipts_total",
    Kind.COUNTER,
    "Receipts that a full node made or was sent, by what they say and whether their signature holds.",
    {"kind": tuple(kind.name for kind in KINDS), "signature": tuple(SignatureState)},
)
REMP_STAGES = tuple(stage.value for stage in Stage if stage not in (Stage.REJECTED, Stage.TIMEOUT))
REMP_STAGE_SECONDS = Declared(
    "stagepost_remp_stage_seconds",
    Kind.HISTOGRAM,
    "From the moment a full node took a message to the first receipt of each stage.",
    {"stage": REMP_STAGES},
)
REMP_ENDS = tuple(
    one.value
    for one in (
        Conclusion.FINALIZED,
        Conclusion.REJECTED_BY_FULLNODE,
        Conclusion.REJECTED,
        Conclusion.EXPIRED,
    )
)
REMP_FINALITY_SECONDS = Declared(
    "stagepost_remp_finality_seconds",
    Kind.HISTOGRAM,
    "From the moment a full node took a message to its end, by the verdict.",
    {"verdict": REMP_ENDS},
)
REMP_OPEN_MESSAGES = Declared(
    "stagepost_remp_open_messages",
    Kind.GAUGE,
    "Messages without an end, at a full node, by the shard that they are for.",
    {"shard": ()},
)
REMP_QUEUE_MESSAGES = Declared(
    "stagepost_remp_queue_messages",
    Kind.GAUGE,
    "Messages in a validator's queues that no shard block holds yet, by shard.",
    {"shard": ()},
)
CATCHAIN_BLOCKS = Declared(
    "stagepost_catchain_blocks_total",
    Kind.COUNTER,
    "Blocks of the queues' catchains that a validator has delivered.",
    {},
)
CATCHAIN_FORKS = Declared(
    "stagepost_catchain_forks_total",
    Kind.COUNTER,
    "Members of catchains that were proved to have made two blocks at one height.",
    {},
)

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

NODE_METRICS = (
    BUILD_INFO,
    DMQ_MESSAGES,
    DMQ_REJECTIONS,
    DMQ_MEMPOOL_MESSAGES,
    DMQ_MEMPOOL_BYTES,
    DMQ_PEERS,
    DMQ_PROTOCOL_VIOLATIONS,
    DMQ_EQUIVOCATIONS,
    DMQ_EXPIRED_UNSEEN,
    KES_PERIODS_REMAINING,
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
"""Of a program that publishes; a node has none of them."""

PIPELINE_METRICS = (PIPELINE_ROWS, PIPELINE_QUARANTINED_ROWS, PIPELINE_LAST_SUCCESS)
"""Of `stagepost pipeline run`."""

FULL_NODE_METRICS = (
    BUILD_INFO,
    REMP_RECEIPTS,
    REMP_STAGE_SECONDS,
    REMP_FINALITY_SECONDS,
    REMP_OPEN_MESSAGES,
)
KAFKA_METRICS = (KAFKA_SPOOL_RECORDS, KAFKA_MESSAGES_LAG, KAFKA_PUBLISHED, KAFKA_FAULTS)
"""Of a full node, beside its own, if it has a way to Kafka."""

VALIDATOR_METRICS = (BUILD_INFO, REMP_QUEUE_MESSAGES, CATCHAIN_BLOCKS, CATCHAIN_FORKS)

ALL_METRICS = (
    NODE_METRICS
    + DELIVERY_METRICS
    + FULL_NODE_METRICS[1:]
    + VALIDATOR_METRICS[1:]
    + PIPELINE_METRICS
    + KAFKA_METRICS
)


class Metrics:
    """The metrics of one node, in a registry of their own: two nodes in one process do not mix."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._messages = self._counter(DMQ_MESSAGES)
        self._rejections = self._counter(DMQ_REJECTIONS)
        self._violations = self._counter(DMQ_PROTOCOL_VIOLATIONS)
        self._equivocations = self._counter(DMQ_EQUIVOCATIONS)
        self._expired_unseen = self._counter(DMQ_EXPIRED_UNSEEN)
        self._mempool_messages = self._gauge(DMQ_MEMPOOL_MESSAGES)
        self._mempool_bytes = self._gauge(DMQ_MEMPOOL_BYTES)
        self._peers = self._gauge(DMQ_PEERS)
        self._kes_periods: Gauge | None = None
        self._gauge(BUILD_INFO).labels(__version__, platform.python_version()).set(1)
        # A series that begins at its first event looks, to whoever computes rates, as if that had never happened.
        for protocol, outcomes in OUTCOMES.items():
            for outcome in outcomes:
                self._messages.labels(protocol.value, outcome)
        for second in SecondBody:
            self._equivocations.labels(second)
        for reason in REJECTION_REASONS:
            self._rejections.labels(reason)
        self.set_peers({})

    def _counter(self, declared: Declared) -> Counter:
        assert declared.kind is Kind.COUNTER
        return Counter(declared.name, declared.about, list(declared.labels), registry=self._registry)

    def _gauge(self, declared: Declared) -> Gauge:
        assert declared.kind is Kind.GAUGE
        return Gauge(declared.name, declared.about, list(declared.labels), registry=self._registry)

    def count_messages(self, protocol: MiniProtocol, outcome: MessageOutcome, count: int = 1) -> None:
        assert outcome in OUTCOMES.get(protocol, ()), (protocol, outcome)
        self._messages.labels(protocol.value, outcome).inc(count)

    def count_rejection(self, code: ErrorCode | None) -> None:
        known = code is not None and code.value in REJECTION_REASONS
        self._rejections.labels(code.value if known and code is not None else OTHER).inc()

    def count_violation(self, protocol: MiniProtocol | None, code: ErrorCode) -> None:
        """`protocol` None: a rule of the connection itself."""
        place = CONNECTION if protocol is None else protocol.value
        self._violations.labels(place, code.value if code.value in RULES else OTHER).inc()

    def set_mempool(self, messages: int, message_bytes: int) -> None:
        self._mempool_messages.set(messages)
        self._mempool_bytes.set(message_bytes)

    def set_peers(self, by_state: Mapping[PeerState, int]) -> None:
        """States that are not named have no peer."""
        for state in PeerState:
            self._peers.labels(state).set(by_state.get(state, 0))

    def count_equivocations(self, second: SecondBody, count: int = 1) -> None:
        self._equivocations.labels(second).inc(count)

    def count_expired_unseen(self, count: int) -> None:
        self._expired_unseen.inc(count)

    def set_kes_periods_remaining(self, periods: int | None) -> None:
        """None: no key is in use. Then there is nothing to warn about, and a gauge of 0 would."""
        if periods is None:
            if self._kes_periods is not None:
                self._registry.unregister(self._kes_periods)
                self._kes_periods = None
            return
        if self._kes_periods is None:
            self._kes_periods = self._gauge(KES_PERIODS_REMAINING)
        self._kes_periods.set(periods)

    def render(self) -> bytes:
        """In the text format that Prometheus reads."""
        return generate_latest(DeclaredSamples(self._registry))


class DeclaredSamples:
    """A registry without the time stamps that the library adds to every counter, which nobody declared."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[MetricFamily]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
