"""Traces of OpenTelemetry, made from the record of a message: trees, ids, statuses, and each message once.

The receiver decodes OpenTelemetry's own messages; `make soak` sends the same to a real collector.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.dashboard_world import DashboardWorld
from stagepost.cli.main import run
from stagepost.delivery.effects import DeliveryEvent
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.errors import ConfigError, TransportError
from stagepost.trace.finished import OPEN_MS_MAX, SETTLE_MS, FinishedMessages
from stagepost.trace.layer_topics import DeliveryEventsLog
from stagepost.trace.otlp import OtlpWriter, traces_url
from stagepost.trace.reading import read_trace
from stagepost.trace.spans import SPANS_MAX, SpanStatus, has_ended, spans_of
from tests.worlds.trace.otlp_receiver import Receiver, otlp_receiver, tree_of

NOW_MS = 1_700_000_000_000
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LATE_MS = NOW_MS + 1_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DashboardWorld]:
    made = DashboardWorld(tmp_path / "data", NOW_MS)
    yield made
    made.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    with otlp_receiver() as made:
        yield made


def report(data: Path, delivery_id: str, *statuses: DeliveryStatus, **changes: str | None) -> None:
    sink = DeliveryEventsLog(data)
    for place, status in enumerate(statuses):
        is_last = place == len(statuses) - 1
        event = DeliveryEvent(
            delivery_id, status, Tier.ACKED, "orders", NOW_MS + 10 * place, 0, None,
            changes.get("error") if is_last else None, (), changes.get("reason") if is_last else None,
            None, changes.get("traceparent"),
        )  # fmt: skip
        sink.put(event)
    sink.close()
    assert sink.dropped == 0


def test_delivered_rejected_and_expired_messages_are_trees_in_a_receiver(
    world: DashboardWorld, receiver: Receiver
) -> None:
    ids = {"finalized": world.finalized(), "rejected": world.rejected(), "expired": world.expired()}
    assert run(["telemetry", "--data", str(world.data), "--otlp", receiver.base, "--once"]) == 0
    assert receiver.paths == ["/v1/traces"]
    assert receiver.resources[0]["service.name"] == "stagepost"
    of_trace = {
        name: [span for span in receiver.spans if span.trace_id == one[:32]] for name, one in ids.items()
    }
    assert sum(map(len, of_trace.values())) == len(receiver.spans), "the trace id is the message's"
    trees = {name: tree_of(spans)["message"] for name, spans in of_trace.items()}
    members = {f"V{number}" for number in range(1, 8)}
    assert set(trees["finalized"]) >= {"full node", "chain", "end"} | members
    assert list(trees["finalized"]["chain"]) == ["queued", "included", "accepted", "final"]
    assert list(trees["finalized"]["V3"]) == [
        "PutIntoQueue",
        "IncludedIntoBlock",
        "IncludedIntoAcceptedBlock",
    ]
    assert "RejectedByCollator" in trees["rejected"]["V1"]
    assert "final" not in trees["rejected"]["chain"]
    roots = {name: next(span for span in spans if not span.parent_id) for name, spans in of_trace.items()}
    assert {name: span.status for name, span in roots.items()} == {
        "finalized": "ok",
        "rejected": "error",
        "expired": "error",
    }
    assert "contract error 52" in roots["rejected"].status_text
    assert roots["finalized"].attributes["messaging.message.id"] == ids["finalized"]
    assert (roots["finalized"].end_ns - roots["finalized"].start_ns) == 1_230 * 1_000_000


def test_the_callers_trace_is_continued_and_a_failure_says_why(
    world: DashboardWorld, receiver: Receiver
) -> None:
    report(
        world.data, "ab" * 32, DeliveryStatus.PENDING, DeliveryStatus.QUEUED, DeliveryStatus.FAILED,
        error="ErrMessageExpired", reason="the message waited for too long", traceparent=CALLER,
    )  # fmt: skip
    assert run(["telemetry", "abababab", "--data", str(world.data), "--otlp", receiver.base]) == 0
    assert {span.trace_id for span in receiver.spans} == {CALLER.split("-")[1]}
    tree = tree_of(receiver.spans, above=CALLER.split("-")[2])
    assert tree == {"message": {"program": {"published": {}, "stored": {}, "failed": {}}, "end": {}}}
    root = receiver.spans[0]
    assert (root.status, root.status_text) == ("error", "the message waited for too long")
    failed = next(span for span in receiver.spans if span.name == "failed")
    assert (failed.status, failed.end_ns - failed.start_ns) == ("error", 10 * 1_000_000)


def test_the_same_record_gives_the_same_spans(world: DashboardWorld) -> None:
    trace = read_trace(world.data, world.finalized(), LATE_MS)
    assert spans_of(trace) == spans_of(trace)
    assert len({span.span_id for span in spans_of(trace)}) == len(spans_of(trace)) <= SPANS_MAX
    report(world.data, "cd" * 32, DeliveryStatus.PENDING)
    open_one = read_trace(world.data, "cd" * 32, LATE_MS)
    assert not has_ended(open_one)
    assert [(span.name, span.status) for span in spans_of(open_one)] == [
        ("message", SpanStatus.UNSET),
        ("program", SpanStatus.UNSET),
        ("published", SpanStatus.UNSET),
    ]


def test_each_message_is_given_once_when_its_record_is_whole_also_after_a_restart(
    world: DashboardWorld,
) -> None:
    data = world.data
    first = world.finalized("first")
    finished = FinishedMessages(data, "telemetry")
    assert finished.read(LATE_MS) == [], "further receipts may follow"
    report(data, "cd" * 32, DeliveryStatus.PENDING)
    found = finished.read(LATE_MS + SETTLE_MS)
    assert [trace.message_id.hex() for trace in found] == [first]
    finished.commit()
    finished.close()

    again = FinishedMessages(data, "telemetry")
    assert again.read(LATE_MS) == []
    assert again.pending == 1, "the open message is read again, the given one is not"
    report(data, "cd" * 32, DeliveryStatus.PENDING, DeliveryStatus.FAILED)
    assert again.read(LATE_MS) == []
    (failed,) = again.read(LATE_MS + SETTLE_MS)
    assert failed.message_id.hex() == "cd" * 32
    again.close()

    uncommitted = FinishedMessages(data, "telemetry")
    uncommitted.read(LATE_MS)
    assert uncommitted.pending == 1, "what was given and not committed is given again"
    uncommitted.close()


def test_a_message_that_never_ends_is_given_as_it_is(world: DashboardWorld) -> None:
    report(world.data, "cd" * 32, DeliveryStatus.PENDING)
    finished = FinishedMessages(world.data, "telemetry")
    assert finished.read(LATE_MS) == []
    assert finished.read(LATE_MS + OPEN_MS_MAX - 1) == []
    assert len(finished.read(LATE_MS + OPEN_MS_MAX + 1_000)) == 1
    finished.close()


def test_a_collector_that_is_away_is_an_error_and_nothing_is_committed(
    world: DashboardWorld, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    world.finalized()
    receiver.refusals = [400]
    command = ["telemetry", "--data", str(world.data), "--otlp", receiver.base, "--once"]
    assert run(command) == 3
    assert "did not take" in capsys.readouterr().err
    assert run(command) == 0
    assert receiver.spans, "the same messages are sent by the next run"
    with OtlpWriter(receiver.base) as writer:
        receiver.refusals = [400]
        with pytest.raises(TransportError, match=r"did not take 1 span"):
            writer.write(spans_of(read_trace(world.data, world.rejected(), LATE_MS))[:1])


def test_without_a_collector_the_spans_are_json_lines(
    world: DashboardWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    message_id = world.finalized()
    assert run(["telemetry", message_id[:8], "--data", str(world.data)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["name"] == "message"
    assert lines[0]["parent_id"] is None
    assert {line["trace_id"] for line in lines} == {message_id[:32]}


def test_addresses_of_collectors() -> None:
    assert traces_url("http://127.0.0.1:4318") == "http://127.0.0.1:4318/v1/traces"
    assert traces_url("https://example.org/otlp/traces") == "https://example.org/otlp/traces"
    for wrong in ("127.0.0.1:4318", "ftp://x", ""):
        with pytest.raises(ConfigError, match="not the address of a collector"):
            traces_url(wrong)
