"""The metrics of a DMQ node.

Labels take their values from enums, never from peers: data from peers must not add time series.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import ErrorCode, LocalProtocolError
from stagepost.ground.telemetry.metrics import (
    BUILD_INFO,
    OTHER,
    DeclaredSamples,
    Kind,
    MetricDeclaration,
    set_build_info,
)


class MessageOutcome(StrEnum):
    """Outcome of a message at a mini-protocol: accepted, rejected, or sent on."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    SENT = "sent"


class SecondBody(StrEnum):
    """Outcome of a message whose body differs from the first of its slot."""

    HELD = "held"
    REFUSED = "refused"


class PeerState(StrEnum):
    """State of a peer. Cold: known; warm: connected; hot: exchanging messages."""

    COLD = "cold"
    WARM = "warm"
    HOT = "hot"


OUTCOMES: Mapping[MiniProtocol, tuple[MessageOutcome, ...]] = {
    MiniProtocol.MESSAGE_SUBMISSION: tuple(MessageOutcome),
    MiniProtocol.LOCAL_MESSAGE_SUBMISSION: (MessageOutcome.ACCEPTED, MessageOutcome.REJECTED),
    MiniProtocol.LOCAL_MESSAGE_NOTIFICATION: (MessageOutcome.SENT,),
}
"""Outcomes per mini-protocol: peers send and take messages; programs submit on one mini-protocol and listen on another."""
MESSAGE_PROTOCOLS = tuple(protocol.value for protocol in OUTCOMES)
CONNECTION = "connection"
"""Label value for broken rules of the multiplexer, which belongs to no mini-protocol."""

REJECTION_REASONS = tuple(
    code.value
    for code in ErrorCode
    if code.startswith(("MSG_", "POOL_", "OPCERT_", "KES_"))
    or code in (ErrorCode.NOT_READY, ErrorCode.QUEUE_FULL, ErrorCode.STORAGE_UNAVAILABLE)
)
RULES = tuple(
    code.value for code in ErrorCode if code.startswith(("MUX_", "HANDSHAKE_", "CBOR_", "PROTOCOL_"))
)
DMQ_MESSAGES = MetricDeclaration(
    "stagepost_dmq_messages_total",
    Kind.COUNTER,
    "Messages by mini-protocol and outcome.",
    {"protocol": MESSAGE_PROTOCOLS, "outcome": tuple(MessageOutcome)},
)
DMQ_REJECTIONS = MetricDeclaration(
    "stagepost_dmq_rejections_total",
    Kind.COUNTER,
    "Messages that were not accepted, by reason.",
    {"reason": (*REJECTION_REASONS, OTHER)},
)
DMQ_MEMPOOL_MESSAGES = MetricDeclaration(
    "stagepost_dmq_mempool_messages", Kind.GAUGE, "Unexpired messages in the mempool."
)
DMQ_MEMPOOL_BYTES = MetricDeclaration(
    "stagepost_dmq_mempool_bytes", Kind.GAUGE, "Bytes of the unexpired messages in the mempool."
)
DMQ_PEERS = MetricDeclaration(
    "stagepost_dmq_peers",
    Kind.GAUGE,
    "Peers by state: cold (known), warm (connected), hot (exchanging messages).",
    {"state": tuple(PeerState)},
)
DMQ_PROTOCOL_VIOLATIONS = MetricDeclaration(
    "stagepost_dmq_protocol_violations_total",
    Kind.COUNTER,
    "Violations of protocol rules by peers, by mini-protocol and rule.",
    {
        "protocol": (*(protocol.value for protocol in MiniProtocol), CONNECTION),
        "rule": (*RULES, OTHER),
    },
)
DMQ_EQUIVOCATIONS = MetricDeclaration(
    "stagepost_dmq_equivocations_total",
    Kind.COUNTER,
    "Messages of a pool whose certificate number, KES period and expiry equal those of an earlier message with another body.",
    {"outcome": tuple(SecondBody)},
)
DMQ_EXPIRED_UNSEEN = MetricDeclaration(
    "stagepost_dmq_expired_unseen_total",
    Kind.COUNTER,
    "Messages that expired before a listening local program got them, counted for each program.",
)
KES_PERIODS_REMAINING = MetricDeclaration(
    "stagepost_kes_periods_remaining",
    Kind.GAUGE,
    "KES periods left, the present one included, of the local programs' key that ends first; absent while no key is in use.",
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


PUBLISHED_COUNTERS: Mapping[str, tuple[MiniProtocol, tuple[MessageOutcome, ...]]] = {
    "submissions_submitted": (
        MiniProtocol.LOCAL_MESSAGE_SUBMISSION,
        (MessageOutcome.ACCEPTED, MessageOutcome.REJECTED),
    ),
    "submissions_accepted": (MiniProtocol.LOCAL_MESSAGE_SUBMISSION, (MessageOutcome.ACCEPTED,)),
    "submissions_rejected": (MiniProtocol.LOCAL_MESSAGE_SUBMISSION, (MessageOutcome.REJECTED,)),
    "txSubmission_txsReceived": (
        MiniProtocol.MESSAGE_SUBMISSION,
        (MessageOutcome.ACCEPTED, MessageOutcome.REJECTED),
    ),
    "txSubmission_txsAccepted": (MiniProtocol.MESSAGE_SUBMISSION, (MessageOutcome.ACCEPTED,)),
    "txSubmission_txsRejected": (MiniProtocol.MESSAGE_SUBMISSION, (MessageOutcome.REJECTED,)),
}
"""Counters of dmq-node that this node has too, each as a sum of outcomes."""
PUBLISHED_GAUGES = (
    "connectionManager_inboundConns",
    "connectionManager_outboundConns",
    "peerSelection_cold",
    "peerSelection_warm",
    "peerSelection_hot",
)
"""Gauges of dmq-node that this node has too."""


def published_metrics(
    prefix: str, messages: Mapping[tuple[MiniProtocol, MessageOutcome], int], gauges: Mapping[str, int]
) -> bytes:
    """Return the metrics under dmq-node's names, so that its dashboards live on: with and without the ending
    that tells the kind."""
    lines: list[str] = []
    for name, (protocol, outcomes) in PUBLISHED_COUNTERS.items():
        count = sum(messages.get((protocol, outcome), 0) for outcome in outcomes)
        lines += _published(f"{prefix}{name}", "counter", count)
    for name in PUBLISHED_GAUGES:
        lines += _published(f"{prefix}{name}", "int", gauges.get(name, 0))
    return "".join(f"{line}\n" for line in lines).encode()


def _published(name: str, ending: str, value: int) -> list[str]:
    kind = "counter" if ending == "counter" else "gauge"
    names = (name, f"{name}_{ending}")
    return [line for shown in names for line in (f"# TYPE {shown} {kind}", f"{shown} {value}")]


class Metrics:
    """Metrics of one node, in a registry of their own: two nodes in one process do not mix."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._messages = DMQ_MESSAGES.counter(self._registry)
        self._rejections = DMQ_REJECTIONS.counter(self._registry)
        self._violations = DMQ_PROTOCOL_VIOLATIONS.counter(self._registry)
        self._equivocations = DMQ_EQUIVOCATIONS.counter(self._registry)
        self._expired_unseen = DMQ_EXPIRED_UNSEEN.counter(self._registry)
        self._mempool_messages = DMQ_MEMPOOL_MESSAGES.gauge(self._registry)
        self._mempool_bytes = DMQ_MEMPOOL_BYTES.gauge(self._registry)
        self._peers = DMQ_PEERS.gauge(self._registry)
        self._kes_periods: Gauge | None = None
        set_build_info(self._registry)
        # A series that begins with its first event hides that event from everybody who computes rates.
        for protocol, outcomes in OUTCOMES.items():
            for outcome in outcomes:
                self._messages.labels(protocol.value, outcome)
        for second in SecondBody:
            self._equivocations.labels(second)
        for reason in REJECTION_REASONS:
            self._rejections.labels(reason)
        self.set_peers({})

    def count_messages(self, protocol: MiniProtocol, outcome: MessageOutcome, count: int = 1) -> None:
        if outcome not in OUTCOMES.get(protocol, ()):
            raise LocalProtocolError(f"protocol {protocol.value} has no outcome {outcome} to count")
        self._messages.labels(protocol.value, outcome).inc(count)

    def count_rejection(self, code: ErrorCode | None) -> None:
        known = code is not None and code.value in REJECTION_REASONS
        self._rejections.labels(code.value if known and code is not None else OTHER).inc()

    def count_violation(self, protocol: MiniProtocol | None, code: ErrorCode) -> None:
        """Count a broken rule; `protocol` is None for a rule of the connection itself."""
        place = CONNECTION if protocol is None else protocol.value
        self._violations.labels(place, code.value if code.value in RULES else OTHER).inc()

    def set_mempool(self, messages: int, message_bytes: int) -> None:
        self._mempool_messages.set(messages)
        self._mempool_bytes.set(message_bytes)

    def set_peers(self, by_state: Mapping[PeerState, int]) -> None:
        """Set the number of peers in each state; states that are not named have none."""
        for state in PeerState:
            self._peers.labels(state).set(by_state.get(state, 0))

    def count_equivocations(self, second: SecondBody, count: int = 1) -> None:
        self._equivocations.labels(second).inc(count)

    def count_expired_unseen(self, count: int) -> None:
        self._expired_unseen.inc(count)

    def set_kes_periods_remaining(self, periods: int | None) -> None:
        """Set the gauge; None removes it, because no key is in use and a gauge of 0 would raise an alarm."""
        if periods is None:
            if self._kes_periods is not None:
                self._registry.unregister(self._kes_periods)
                self._kes_periods = None
            return
        if self._kes_periods is None:
            self._kes_periods = KES_PERIODS_REMAINING.gauge(self._registry)
        self._kes_periods.set(periods)

    def render(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(DeclaredSamples(self._registry))
