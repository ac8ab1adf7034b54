"""Metrics of full nodes and validators: counters follow events, gauges are set when the metrics are rendered.

Each node has its own registry: two nodes in one process do not mix.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum

from prometheus_client import CollectorRegistry, generate_latest

from stagepost.errors import ErrorCode
from stagepost.full_node.complaints import ChallengeEnd, ChallengeReport
from stagepost.ground.telemetry.metrics import (
    BUILD_INFO,
    DeclaredSamples,
    Kind,
    MetricDeclaration,
    set_build_info,
)
from stagepost.remp.receipts.message_status import SentToValidators
from stagepost.remp.receipts.receipt import Quarantined, Receipt
from stagepost.remp.receipts.status import KINDS, Level, Stage, Status
from stagepost.remp.verdict.state import ProvedEnd
from stagepost.remp.verdict.verdict import Conclusion


class SignatureState(StrEnum):
    """Reason why a receipt counts, or does not."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN_SIGNER = "unknown_signer"
    NOT_CHECKED = "not_checked"  # refused for another reason, before its signature was looked at


REMP_RECEIPTS = MetricDeclaration(
    "stagepost_remp_receipts_total",
    Kind.COUNTER,
    "Receipts that a full node made or received, by kind and by the result of the signature check.",
    {"kind": tuple(kind.name for kind in KINDS), "signature": tuple(SignatureState)},
)
REMP_STAGES = tuple(stage.value for stage in Stage if stage not in (Stage.REJECTED, Stage.TIMEOUT))
REMP_STAGE_SECONDS = MetricDeclaration(
    "stagepost_remp_stage_seconds",
    Kind.HISTOGRAM,
    "Time from the moment a full node took a message to the first receipt of each stage.",
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
REMP_FINALITY_SECONDS = MetricDeclaration(
    "stagepost_remp_finality_seconds",
    Kind.HISTOGRAM,
    "Time from the moment a full node took a message to the end that receipts claim, by verdict. A claim is no proof.",
    {"verdict": REMP_ENDS},
)
REMP_OPEN_MESSAGES = MetricDeclaration(
    "stagepost_remp_open_messages",
    Kind.GAUGE,
    "Open messages at a full node, by the shard of their account.",
    {"shard": ()},
)
REMP_PROVED = MetricDeclaration(
    "stagepost_remp_proved_total",
    Kind.COUNTER,
    "Messages whose end a full node has proved, by end.",
    {"end": ("executed", "never", "executed_as")},
)
REMP_UNPROVED_MESSAGES = MetricDeclaration(
    "stagepost_remp_unproved_messages",
    Kind.GAUGE,
    "Messages that a full node follows and whose end is not known yet, whatever receipts claim.",
)
REMP_CHALLENGES = MetricDeclaration(
    "stagepost_remp_challenges_total",
    Kind.COUNTER,
    "Validators that a full node had challenged because they said nothing more of a message, by outcome.",
    {"outcome": tuple(ChallengeEnd)},
)

FULL_NODE_METRICS = (
    BUILD_INFO,
    REMP_RECEIPTS,
    REMP_STAGE_SECONDS,
    REMP_FINALITY_SECONDS,
    REMP_OPEN_MESSAGES,
    REMP_PROVED,
    REMP_UNPROVED_MESSAGES,
    REMP_CHALLENGES,
)


SECONDS_BUCKETS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 30.0, 60.0, 120.0, 300.0)
OPEN_MAX = 100_000
"""Messages whose time of submission is remembered; the oldest is forgotten for a further one, and its end is not timed."""

_SIGNATURES = {
    ErrorCode.RECEIPT_SIGNATURE: SignatureState.INVALID,
    ErrorCode.RECEIPT_SOURCE: SignatureState.UNKNOWN_SIGNER,
}


class OpenMessage:
    """Message that a full node has taken, and that has no end yet."""

    __slots__ = ("rejected_by", "shard", "stages", "taken_ms", "total")

    def __init__(self, shard: str, taken_ms: int) -> None:
        self.shard = shard
        self.taken_ms = taken_ms
        self.stages: set[Stage] = set()
        self.rejected_by: set[bytes] = set()
        self.total: int | None = None


class FullNodeMetrics:
    """Metrics of what a full node takes, hears and refuses. A message expires after `message_timeout_ms`.
    `unproved` returns how many messages have no proved end yet.
    """

    def __init__(self, message_timeout_ms: int, unproved: Callable[[], int]) -> None:
        self.open: OrderedDict[bytes, OpenMessage] = OrderedDict()
        self._message_timeout_ms = message_timeout_ms
        self._registry = CollectorRegistry()
        self._receipts = REMP_RECEIPTS.counter(self._registry)
        self._stages = REMP_STAGE_SECONDS.histogram(self._registry, SECONDS_BUCKETS)
        self._ends = REMP_FINALITY_SECONDS.histogram(self._registry, SECONDS_BUCKETS)
        self._open = REMP_OPEN_MESSAGES.gauge(self._registry)
        self._proved = REMP_PROVED.counter(self._registry)
        self._challenges = REMP_CHALLENGES.counter(self._registry)
        not_known = REMP_UNPROVED_MESSAGES.gauge(self._registry)
        not_known.set_function(unproved)
        set_build_info(self._registry)
        for end in REMP_PROVED.labels["end"]:
            self._proved.labels(end)
        for outcome in ChallengeEnd:
            self._challenges.labels(outcome)
        # A series that begins at its first event hides this event from a reader that computes rates.
        for kind in KINDS:
            if kind.is_emitted:
                self._receipts.labels(kind.name, SignatureState.VALID)
                self._receipts.labels(kind.name, SignatureState.INVALID)
        for stage in REMP_STAGES:
            self._stages.labels(stage)
        for end in REMP_ENDS:
            self._ends.labels(end)

    def taken(self, message_id: bytes, shard: str, now_ms: int) -> None:
        """Note the time of submission; a repeated submission changes nothing."""
        if message_id not in self.open:
            self.open[message_id] = OpenMessage(shard, now_ms)
            if len(self.open) > OPEN_MAX:
                self.open.popitem(last=False)

    def heard(self, receipt: Receipt, now_ms: int) -> None:
        """Count a receipt that counts, of this node or of a validator."""
        kind = receipt.kind
        self._receipts.labels(kind.name, SignatureState.VALID).inc()
        if kind.status is Status.REJECTED and kind.level is Level.FULLNODE:
            self._ends.labels(Conclusion.REJECTED_BY_FULLNODE.value).observe(0.0)
            return
        message = self.open.get(receipt.message_id)
        if message is None:
            return
        if isinstance(receipt.status, SentToValidators):
            message.total = receipt.status.total_validators
        if kind.stage is not None and kind.stage.value in REMP_STAGES and kind.stage not in message.stages:
            message.stages.add(kind.stage)
            self._stages.labels(kind.stage.value).observe(_seconds(message, now_ms))
        if kind.stage is Stage.FINALIZED:
            self._end(receipt.message_id, Conclusion.FINALIZED, now_ms)
        elif kind.status is Status.REJECTED:
            message.rejected_by.add(receipt.source_id)
            if message.total is not None and 3 * len(message.rejected_by) >= 2 * message.total:
                self._end(receipt.message_id, Conclusion.REJECTED, now_ms)

    def proved(self, message_id: bytes, end: ProvedEnd) -> None:
        """Count an end that a proof on the topic shows."""
        self._proved.labels(end.kind).inc()

    def challenged(self, report: ChallengeReport) -> None:
        """Count what became of a challenge."""
        self._challenges.labels(report.outcome).inc()

    def refused(self, receipt: Receipt, reason: Quarantined) -> None:
        state = _SIGNATURES.get(reason.reason, SignatureState.NOT_CHECKED)
        self._receipts.labels(receipt.kind.name, state).inc()

    def render(self, now_ms: int) -> bytes:
        """Return the metrics in the text format that Prometheus reads."""
        self.let_expire(now_ms)
        self._open.clear()
        for shard, count in sorted(Counts(message.shard for message in self.open.values()).items()):
            self._open.labels(shard).set(count)
        return generate_latest(DeclaredSamples(self._registry))

    def let_expire(self, now_ms: int) -> None:
        """End expired messages, in the order in which they came: all messages behind the first living one live, too."""
        while self.open:
            message_id, message = next(iter(self.open.items()))
            if now_ms - message.taken_ms <= self._message_timeout_ms:
                return
            self._end(message_id, Conclusion.EXPIRED, now_ms)

    @property
    def oldest_unanswered_ms(self) -> int | None:
        """Return since when the oldest open message has waited that no validator has rejected; None if there is none."""
        waiting = (message.taken_ms for message in self.open.values() if not message.rejected_by)
        return next(waiting, None)

    def _end(self, message_id: bytes, end: Conclusion, now_ms: int) -> None:
        self._ends.labels(end.value).observe(_seconds(self.open.pop(message_id), now_ms))


def _seconds(message: OpenMessage, now_ms: int) -> float:
    return max(0, now_ms - message.taken_ms) / 1_000
