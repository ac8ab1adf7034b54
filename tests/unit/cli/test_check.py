"""`stagepost check`: findings, their limits, and the exit codes that monitors read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.cli import main as command
from stagepost.delivery import MemoryNetwork, ReliablePublisher, ReliablePublisherConfig
from stagepost.ground.files.running_nodes import FULL_NODE, StatusFacts
from stagepost.ground.telemetry.health import Finding, HealthFacts, NodeReading, Severity, judge
from stagepost.ground.telemetry.status import DmqNodePage
from tests.worlds.dmq.background_node import a_peer, a_status, status_page, write_node_file

NOW = 1_800_000_000.0


def findings(**changes: Any) -> dict[str, Finding]:
    status = msgspec.convert(a_status(**changes), DmqNodePage)
    report = judge(HealthFacts((NodeReading("node", status),)), NOW)
    return {finding.part: finding for finding in report.findings}


def mempool(**changes: Any) -> dict[str, Any]:
    return {"mempool": a_status()["mempool"] | changes}


def run(data: Path, *arguments: str) -> int:
    return command.run(["check", "--data", str(data), *arguments])


def served(data: Path, status: dict[str, Any], *arguments: str) -> int:
    with status_page(data, lambda _: (200, json.dumps(status).encode())):
        return run(data, *arguments)


def test_healthy_node_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert served(tmp_path, a_status(peers=[a_peer()] * 18, kes_periods_remaining=40)) == 0

    answer, node, held, keys = capsys.readouterr().out.splitlines()
    assert answer == "good      all that was looked at is well"
    assert node == "ok        node        up 3 d 4 h, 18 hot peers, no message yet"
    assert held == "ok        mempool     10 of 50000 messages, 7000 of 160000000 bytes"
    assert keys.startswith("ok        keys        KES: 40 periods left (ends in about 60 d 0 h, on 2")
    assert keys.endswith(" UTC)")


def test_a_warning_is_named_beside_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert served(tmp_path, a_status(peers=[a_peer()], kes_periods_remaining=3)) == 1
    assert capsys.readouterr().out.splitlines()[0] == "good      nothing is broken; 1 warning: keys"


def test_worst_finding_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = a_status(kes_periods_remaining=3, **mempool(messages=50_000))

    assert served(tmp_path, status, "--json") == 2
    answer, *lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (answer["health"], answer["exit_code"]) == ("bad", 2)
    assert [(line["level"], line["part"]) for line in lines] == [
        ("ok", "node"),
        ("critical", "mempool"),
        ("warning", "keys"),
    ]
    assert lines[2]["text"].startswith("KES: 3 periods left (ends in about 4 d 12 h, on ")
    assert lines[2]["text"].endswith("); renew the operational certificate")


@pytest.mark.parametrize(
    ("periods", "level"),
    [(4, Severity.OK), (3, Severity.WARNING), (1, Severity.WARNING), (0, Severity.CRITICAL)],
)
def test_keys_have_limits(periods: int, level: Severity) -> None:
    assert findings(kes_periods_remaining=periods)["keys"].level is level


def test_node_without_keys_says_nothing_of_them() -> None:
    assert "keys" not in findings()


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"messages": 39_999}, Severity.OK),
        ({"messages": 40_000}, Severity.WARNING),
        ({"messages": 50_000}, Severity.CRITICAL),
        ({"bytes": 127_999_999}, Severity.OK),
        ({"bytes": 128_000_000}, Severity.WARNING),
        ({"bytes": 160_000_000}, Severity.CRITICAL),
        ({"messages_max": 0, "bytes_max": 0}, Severity.OK),
    ],
)
def test_mempool_has_limits(changes: dict[str, int], level: Severity) -> None:
    assert findings(**mempool(**changes))["mempool"].level is level


def test_node_tells_how_long_ago_it_heard_something_and_what_is_oldest() -> None:
    found = findings(
        last_message_ms=int(NOW * 1_000) - 2_000, **mempool(oldest_ms=int(NOW * 1_000) - 840_000)
    )

    assert found["node"].text == "up 3 d 4 h, 1 hot peer, last message 2 s ago"
    assert found["mempool"].text.endswith(", oldest 14m")


def test_node_that_nobody_hears_is_a_warning_and_one_that_is_not_ready_critical() -> None:
    assert findings(peers=[])["node"].level is Severity.WARNING
    assert findings(peers=[a_peer(state="warm")])["node"].level is Severity.WARNING
    assert findings(ready=False)["node"].level is Severity.CRITICAL


def test_part_with_a_fault_is_critical_and_says_why() -> None:
    found = findings(parts={"store": "disk is full", "pools": None})

    assert found["store"] == Finding(Severity.CRITICAL, "store", "disk is full")
    assert "pools" not in found


def test_dead_node_that_left_its_note_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with status_page(tmp_path, lambda _: (200, b"{}")):
        pass  # the port is free again, the note stays

    assert run(tmp_path) == 3
    assert "process 4711) does not answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    "note", [None, "", "{}", "[]", '{"pid": "x", "local_socket": "s", "network_magic": 1}']
)
def test_no_note_or_a_broken_one_is_unknown(
    note: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if note is not None:
        (tmp_path / "node.json").write_text(note)

    assert run(tmp_path) == 3
    answer, node = capsys.readouterr().out.splitlines()
    assert answer.startswith("unknown   could not look: node: ")
    assert node.startswith("unknown   node        ")


def test_node_without_a_status_page_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_node_file(tmp_path, None)

    assert run(tmp_path) == 3
    assert "--metrics-port" in capsys.readouterr().out


@pytest.mark.parametrize("answer", [(500, b"no"), (200, b"not json"), (200, b'{"version": 1}')])
def test_answer_that_is_not_understood_is_unknown(answer: tuple[int, bytes], tmp_path: Path) -> None:
    with status_page(tmp_path, lambda _: answer):
        assert run(tmp_path) == 3


def test_mistake_on_the_command_line_is_unknown_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["check", "--dta", "x"]) == 3
    assert "No such option" in capsys.readouterr().err


def test_a_full_node_that_is_gone_is_unknown_and_not_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StatusFacts(1, FULL_NODE, 1).write(tmp_path)
    assert run(tmp_path) == 3
    assert "does not answer" in capsys.readouterr().out


def test_a_folder_that_does_not_exist_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "none") == 3
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().out


def test_the_publisher_says_how_many_messages_its_outbox_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outbox = tmp_path / "outbox"

    async def publish() -> None:
        config = ReliablePublisherConfig(persistence="disk", queue_path=str(outbox), queue_size=2)
        async with ReliablePublisher(MemoryNetwork(seed=0).join("alice"), config) as publisher:
            for number in range(2):
                await publisher.publish_queued("orders", b"%d" % number)

    asyncio.run(publish())
    assert command.run(["check", "--outbox", str(outbox)]) == 2
    assert "outbox 2 of 2" in capsys.readouterr().out
    assert command.run(["check", "--outbox", str(outbox), "--queue-size", "9"]) == 0
    assert "outbox 2 of 9" in capsys.readouterr().out
