"""The metrics of full nodes and validators: what is told is counted, under declared names and labels alone."""

from __future__ import annotations

from hashlib import sha256

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from stagepost.catchain.block import Dependency
from stagepost.catchain.effects import BlameReport, Deliver, RecoveryReport
from stagepost.catchain.payloads import ForkProof
from stagepost.errors import ErrorCode
from stagepost.full_node import metrics as remp_metrics
from stagepost.full_node.metrics import FULL_NODE_METRICS, FullNodeMetrics
from stagepost.ground.telemetry.metrics import Kind, MetricDeclaration
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, Rejected, SentToValidators
from stagepost.remp.receipts.receipt import ExternalMessageId, Quarantined, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import UNKNOWN_BLOCK
from stagepost.remp.verdict.state import ProvedEnd
from stagepost.validator.metrics import VALIDATOR_METRICS, AgreementFigures, ValidatorMetrics

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

SHARD = "0:8000000000000000"
MESSAGE = sha256(b"message").digest()
TIMEOUT_MS = 8_000


def samples(rendered: bytes) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(rendered.decode())
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


def receipt(status: MessageStatus, source: int = 0, message_id: bytes = MESSAGE) -> Receipt:
    return Receipt(ExternalMessageId(message_id), status, 1_000, bytes([source]) * 32)


def final() -> Receipt:
    return receipt(Accepted(Level.MASTERCHAIN, UNKNOWN_BLOCK, UNKNOWN_BLOCK))


def assert_declared(found: Samples, declared: tuple[MetricDeclaration, ...]) -> None:
    names = {metric.name: metric for metric in declared}
    for name, labels in found:
        base = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        metric = names[name] if name in names else names[base]
        own = {label: text for label, text in labels if not (metric.kind is Kind.HISTOGRAM and label == "le")}
        assert own.keys() == metric.labels.keys()
        assert all(not metric.labels[label] or text in metric.labels[label] for label, text in own.items())
    # Counters are there from the beginning; a gauge by shard is not, where nothing waits.
    assert {metric.name for metric in declared if metric.kind is Kind.COUNTER} <= {name for name, _ in found}


def test_a_message_that_becomes_final_is_timed_by_stage_and_counted_once() -> None:
    metrics = FullNodeMetrics(TIMEOUT_MS, lambda: 2)
    metrics.taken(MESSAGE, SHARD, 10_000)
    metrics.taken(MESSAGE, SHARD, 10_500)
    metrics.heard(receipt(New(), 1), 10_100)
    metrics.heard(receipt(New(), 2), 10_900)
    metrics.heard(receipt(SentToValidators(3, 7)), 10_200)
    assert value(samples(metrics.render(11_000)), "stagepost_remp_open_messages", shard=SHARD) == 1

    metrics.heard(final(), 11_500)

    found = samples(metrics.render(11_500))
    assert_declared(found, FULL_NODE_METRICS)
    stage = "stagepost_remp_stage_seconds"
    assert value(found, f"{stage}_count", stage="queued") == 1
    assert value(found, f"{stage}_sum", stage="queued") == pytest.approx(0.1)
    assert value(found, f"{stage}_sum", stage="finalized") == pytest.approx(1.5)
    assert value(found, f"{stage}_count", stage="included") == 0
    assert value(found, "stagepost_remp_finality_seconds_sum", verdict="finalized") == pytest.approx(1.5)
    receipts = "stagepost_remp_receipts_total"
    assert value(found, receipts, kind="PutIntoQueue", signature="valid") == 2
    assert value(found, receipts, kind="Finalized", signature="valid") == 1
    assert value(found, receipts, kind="Finalized", signature="invalid") == 0
    assert value(found, "stagepost_remp_open_messages", shard=SHARD) is None
    assert not metrics.open


def test_two_thirds_that_refuse_are_an_end_and_one_fewer_is_none() -> None:
    metrics = FullNodeMetrics(TIMEOUT_MS, lambda: 2)
    metrics.taken(MESSAGE, SHARD, 0)
    metrics.heard(receipt(SentToValidators(3, 7)), 10)
    for source in range(1, 5):
        metrics.heard(receipt(Rejected(Level.COLLATOR, "no"), source), 20)
        metrics.heard(receipt(Rejected(Level.COLLATOR, "no"), source), 20)
    assert MESSAGE in metrics.open

    metrics.heard(receipt(Rejected(Level.QUEUE, "no"), 5), 2_000)

    found = samples(metrics.render(2_000))
    assert value(found, "stagepost_remp_finality_seconds_sum", verdict="rejected") == pytest.approx(2.0)


def test_silence_for_longer_than_a_life_is_an_end() -> None:
    metrics = FullNodeMetrics(TIMEOUT_MS, lambda: 2)
    metrics.taken(MESSAGE, SHARD, 0)
    name = "stagepost_remp_finality_seconds_count"
    assert value(samples(metrics.render(TIMEOUT_MS)), name, verdict="expired") == 0
    assert value(samples(metrics.render(TIMEOUT_MS + 1)), name, verdict="expired") == 1
    metrics.heard(final(), TIMEOUT_MS + 2)
    assert value(samples(metrics.render(TIMEOUT_MS + 2)), name, verdict="finalized") == 0


def test_what_the_full_node_refuses_itself_is_an_end_and_was_never_open() -> None:
    metrics = FullNodeMetrics(TIMEOUT_MS, lambda: 2)
    metrics.heard(receipt(Rejected(Level.FULLNODE, "no")), 5)
    found = samples(metrics.render(5))
    assert value(found, "stagepost_remp_finality_seconds_count", verdict="rejected_by_fullnode") == 1


@pytest.mark.parametrize(
    ("code", "signature"),
    [
        (ErrorCode.RECEIPT_SIGNATURE, "invalid"),
        (ErrorCode.RECEIPT_SOURCE, "unknown_signer"),
        (ErrorCode.RECEIPT_FUTURE, "not_checked"),
    ],
)
def test_receipts_that_do_not_count_say_why(code: ErrorCode, signature: str) -> None:
    metrics = FullNodeMetrics(TIMEOUT_MS, lambda: 2)
    metrics.refused(final(), Quarantined(code, "no"))
    found = samples(metrics.render(0))
    assert_declared(found, FULL_NODE_METRICS)
    assert value(found, "stagepost_remp_receipts_total", kind="Finalized", signature=signature) == 1


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remp_metrics, "OPEN_MAX", 3)
    metrics = FullNodeMetrics(TIMEOUT_MS, lambda: 2)
    for number in range(4):
        metrics.taken(bytes([number]) * 32, SHARD, number)
    assert list(metrics.open) == [bytes([number]) * 32 for number in (1, 2, 3)]


def test_a_validator_counts_blocks_and_forks_and_shows_its_queues() -> None:
    metrics = ValidatorMetrics()
    one = Dependency(3, 1, bytes(32), bytes(64))
    proof = ForkProof(one, one)
    for event in (Deliver(0, 1, bytes(32), b""), Deliver(1, 1, bytes(32), b""), RecoveryReport(3)):
        metrics.heard(event)
    metrics.heard(BlameReport(2, None))
    metrics.heard(BlameReport(3, proof))

    figures = AgreementFigures(
        {SHARD: 4}, {SHARD: 1}, {"QUEUE_FULL": 2}, 3, {SHARD: 9}, 5, 6, {"validator-2": 1}, is_halted=True
    )
    found = samples(metrics.render(figures))
    assert_declared(found, VALIDATOR_METRICS)
    assert value(found, "stagepost_catchain_blocks_total") == 2
    assert value(found, "stagepost_catchain_forks_total") == 1
    assert value(found, "stagepost_remp_queue_messages", shard=SHARD) == 4
    assert value(found, "stagepost_remp_queue_without_body", shard=SHARD) == 1
    assert value(found, "stagepost_remp_queue_refused_total", reason="QUEUE_FULL") == 2
    assert value(found, "stagepost_remp_forgotten_total") == 3
    assert value(found, "stagepost_agreement_slot", shard=SHARD) == 9
    assert value(found, "stagepost_agreement_skipped_slots_total") == 5
    assert value(found, "stagepost_agreement_missed_votes_total") == 6
    assert value(found, "stagepost_agreement_blamed_total", validator="validator-2") == 1
    assert value(found, "stagepost_agreement_halted") == 1
    # A shard that is gone after a merge is not shown with its last number for ever.
    merged = figures._replace(open_by_shard={})
    assert value(samples(metrics.render(merged)), "stagepost_remp_queue_messages", shard=SHARD) is None


def test_proved_ends_are_counted_apart_from_claims() -> None:
    metrics = FullNodeMetrics(TIMEOUT_MS, lambda: 3)
    metrics.proved(bytes(32), ProvedEnd("never", 5, 3, 4))
    found = samples(metrics.render(0))
    assert value(found, "stagepost_remp_unproved_messages") == 3
    ends = ("executed", "never", "executed_as")
    assert [value(found, "stagepost_remp_proved_total", end=end) for end in ends] == [0, 1, 0]


def test_a_metric_is_made_as_what_it_was_declared_as_and_as_nothing_else() -> None:
    declared = MetricDeclaration("stagepost_things_total", Kind.COUNTER, "Things.", {"kind": ("a", "b")})
    registry = CollectorRegistry()
    declared.counter(registry).labels("a").inc()

    assert registry.get_sample_value("stagepost_things_total", {"kind": "a"}) == 1
    with pytest.raises(ValueError, match="stagepost_things_total is declared as a counter, not as a gauge"):
        declared.gauge(registry)
