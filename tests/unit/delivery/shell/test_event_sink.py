"""Delivery events in a file: the records of a topic's dump, bounded, rotated, and never in a publisher's way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stagepost.delivery.effects import DeliveryEvent
from stagepost.delivery.shell.events import EventSinks, JsonLinesEventSink, NoEventSink
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.ground.identifiers import DELIVERY_EVENTS_TOPIC


def event(number: int, status: DeliveryStatus = DeliveryStatus.SENT, **changes: Any) -> DeliveryEvent:
    facts: dict[str, Any] = {
        "delivery_id": f"{number:064x}",
        "status": status,
        "tier": Tier.ACKED,
        "topic": "demo",
        "timestamp_ms": 1_800_000_000_000 + number,
        "attempt": 0,
        "dmq_id": None,
        "error": None,
        "acked_by": (),
    }
    return DeliveryEvent(**facts | changes)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_change_is_one_record_of_the_topic(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = JsonLinesEventSink(path)
    sink.put(event(1, dmq_id="ab" * 32))
    sink.put(event(1, DeliveryStatus.ACKED, acked_by=("x", "y")))
    sink.put(event(2, DeliveryStatus.FAILED, error="ErrAckTimeout"))
    sink.close()
    sink.close()

    records = lines(path)
    assert [set(record) for record in records] == [{"topic", "key", "value", "timestamp_ms"}] * 3
    assert {record["topic"] for record in records} == {DELIVERY_EVENTS_TOPIC} == {"stagepost.delivery.events"}
    assert records[0]["key"] == f"{1:064x}"
    assert json.loads(records[0]["value"]) == {
        "delivery_id": f"{1:064x}",
        "status": "Sent",
        "tier": "acked",
        "topic": "demo",
        "timestamp_ms": 1_800_000_000_001,
        "attempt": 0,
        "dmq_id": "ab" * 32,
        "error": None,
        "acked_by": [],
    }
    assert json.loads(records[1]["value"])["acked_by"] == ["x", "y"]
    assert json.loads(records[2]["value"])["error"] == "ErrAckTimeout"
    assert path.stat().st_mode & 0o777 == 0o600


def test_full_files_move_on_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    one = len(_written(tmp_path / "one", [event(0)]))
    sink = JsonLinesEventSink(path, file_bytes_max=3 * one, files_kept=3)
    for number in range(11):
        sink.put(event(number))
    sink.close()

    assert sorted(file.name for file in tmp_path.glob("events*")) == [
        "events.jsonl",
        "events.jsonl.1",
        "events.jsonl.2",
    ]
    kept = [int(record["key"], 16) for name in (".2", ".1", "") for record in lines(Path(f"{path}{name}"))]
    assert kept == [3, 4, 5, 6, 7, 8, 9, 10]
    assert all(file.stat().st_size <= 3 * one for file in tmp_path.glob("events*"))


def test_record_larger_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = JsonLinesEventSink(path, file_bytes_max=10, files_kept=1)
    for number in range(3):
        sink.put(event(number))
    sink.close()

    assert [record["key"] for record in lines(path)] == [f"{2:064x}"]


def test_disk_that_takes_nothing_costs_events_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = JsonLinesEventSink(tmp_path / "missing" / "events.jsonl")
    for number in range(5):
        sink.put(event(number))
    sink.close()

    assert sink.dropped == 5
    assert [record.message for record in caplog.records] == ["delivery events are lost"]


def test_what_waits_is_bounded_and_the_rest_is_counted(tmp_path: Path) -> None:
    pipe = tmp_path / "events.jsonl"
    os.mkfifo(pipe)  # opening it waits for a reader, as a disk that hangs would
    sink = JsonLinesEventSink(pipe, waiting_max=10)
    for number in range(100):
        sink.put(event(number))
    assert sink.dropped >= 100 - 20  # those that wait, and those that the writer has taken already

    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        sink.close()
    finally:
        os.close(reader)


def test_after_the_end_events_are_counted_as_dropped(tmp_path: Path) -> None:
    sink = JsonLinesEventSink(tmp_path / "events.jsonl")
    sink.close()
    sink.put(event(1))

    assert sink.dropped == 1


def test_several_sinks_are_one(tmp_path: Path) -> None:
    file = JsonLinesEventSink(tmp_path / "events.jsonl")
    sinks = EventSinks(file, NoEventSink())
    sinks.put(event(1))
    file.close()

    assert len(lines(tmp_path / "events.jsonl")) == 1


def _written(path: Path, events: list[DeliveryEvent]) -> bytes:
    sink = JsonLinesEventSink(path)
    for one in events:
        sink.put(one)
    sink.close()
    return path.read_bytes()
