"""Metrics: declared once, labels from enums, and the page about them is up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stagepost.dmq.node.metrics import (
    CONNECTION,
    KES_PERIODS_REMAINING,
    NODE_METRICS,
    OUTCOMES,
    RULES,
    MessageOutcome,
    Metrics,
    PeerState,
)
from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import ErrorCode, LocalProtocolError
from stagepost.ground.telemetry.metrics import OTHER, Kind
from tools.metrics_docs import ALL_METRICS

ROOT = Path(__file__).parents[4]


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """As Prometheus reads them."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def test_only_declared_metrics_and_labels_are_shown() -> None:
    metrics = Metrics()
    metrics.set_kes_periods_remaining(3)
    metrics.count_violation(MiniProtocol.KEEP_ALIVE, ErrorCode.PROTOCOL_STATE)
    declared = {metric.name: metric for metric in NODE_METRICS}

    shown = samples(metrics)

    assert {name for name, _ in shown} == declared.keys()
    for name, labels in shown:
        allowed = declared[name].labels
        assert {label for label, _ in labels} == set(allowed)
        assert all(not allowed[label] or found in allowed[label] for label, found in labels)


def test_names_have_the_prefix_and_counters_say_total() -> None:
    for metric in ALL_METRICS:
        assert metric.name.startswith("stagepost_")
        assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
        assert metric.about.endswith(".")
    assert len({metric.name for metric in ALL_METRICS}) == len(ALL_METRICS)


def test_messages_and_rejections_are_counted_from_zero() -> None:
    metrics = Metrics()
    name = "stagepost_dmq_messages_total"
    accepted = {"protocol": "local-message-submission", "outcome": "accepted"}
    assert value(metrics, name, **accepted) == 0

    metrics.count_messages(MiniProtocol.LOCAL_MESSAGE_SUBMISSION, MessageOutcome.ACCEPTED, 3)
    metrics.count_rejection(ErrorCode.MSG_EXPIRED)
    metrics.count_rejection(None)
    metrics.count_rejection(ErrorCode.MUX_TIMEOUT)

    assert value(metrics, name, **accepted) == 3
    assert value(metrics, "stagepost_dmq_rejections_total", reason="MSG_EXPIRED") == 1
    assert value(metrics, "stagepost_dmq_rejections_total", reason=OTHER) == 2
    assert value(metrics, "stagepost_dmq_rejections_total", reason="KES_SIGNATURE") == 0


def test_violations_name_protocol_and_rule() -> None:
    metrics = Metrics()
    metrics.count_violation(MiniProtocol.MESSAGE_SUBMISSION, ErrorCode.PROTOCOL_WINDOW)
    metrics.count_violation(None, ErrorCode.MUX_TIMEOUT)
    metrics.count_violation(None, ErrorCode.CONFIG_INVALID)
    name = "stagepost_dmq_protocol_violations_total"

    assert value(metrics, name, protocol="message-submission", rule="PROTOCOL_WINDOW") == 1
    assert value(metrics, name, protocol=CONNECTION, rule="MUX_TIMEOUT") == 1
    assert value(metrics, name, protocol=CONNECTION, rule=OTHER) == 1
    assert "CONFIG_INVALID" not in RULES


def test_gauges_show_the_present() -> None:
    metrics = Metrics()
    metrics.set_mempool(2, 1_300)
    metrics.set_peers({PeerState.HOT: 4})
    metrics.set_peers({PeerState.COLD: 1})

    assert value(metrics, "stagepost_dmq_mempool_messages") == 2
    assert value(metrics, "stagepost_dmq_mempool_bytes") == 1_300
    assert value(metrics, "stagepost_dmq_peers", state="cold") == 1
    assert value(metrics, "stagepost_dmq_peers", state="hot") == 0


def test_periods_left_are_absent_without_a_key_so_that_nobody_is_alarmed() -> None:
    metrics = Metrics()
    assert value(metrics, KES_PERIODS_REMAINING.name) is None

    metrics.set_kes_periods_remaining(5)
    metrics.set_kes_periods_remaining(4)

    assert value(metrics, KES_PERIODS_REMAINING.name) == 4
    metrics.set_kes_periods_remaining(None)
    assert value(metrics, KES_PERIODS_REMAINING.name) is None


def test_two_nodes_in_one_process_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    one.set_mempool(1, 1)

    assert value(other, "stagepost_dmq_mempool_messages") == 0


def test_a_message_is_counted_only_at_a_protocol_that_carries_messages() -> None:
    for protocol, outcome in (
        (MiniProtocol.KEEP_ALIVE, MessageOutcome.SENT),
        (MiniProtocol.LOCAL_MESSAGE_SUBMISSION, MessageOutcome.SENT),
        (MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, MessageOutcome.ACCEPTED),
    ):
        with pytest.raises(LocalProtocolError):
            Metrics().count_messages(protocol, outcome)


def test_no_series_is_shown_for_what_cannot_happen() -> None:
    shown = {labels for name, labels in samples(Metrics()) if name == "stagepost_dmq_messages_total"}

    assert {tuple(value for _, value in sorted(labels)) for labels in shown} == {
        (outcome.value, protocol.value) for protocol, outcomes in OUTCOMES.items() for outcome in outcomes
    }


def metrics_docs() -> ModuleType:
    specification = importlib.util.spec_from_file_location("metrics_docs", ROOT / "tools" / "metrics_docs.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    kept = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

    assert kept == metrics_docs().page(), "run `make docs`"
