"""`stagepost check`: findings, their limits, and the exit codes that monitors read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.cli import main as command
from stagepost.cli.check.findings import Finding, Level, findings_of
from stagepost.ground.telemetry.status import DmqNodePage
from tests.worlds.dmq.background_node import a_peer, a_status, status_page, write_node_file

NOW = 1_800_000_000.0


def findings(**changes: Any) -> dict[str, Finding]:
    status = msgspec.convert(a_status(**changes), DmqNodePage)
    return {finding.part: finding for finding in findings_of(status, NOW)}


def mempool(**changes: Any) -> dict[str, Any]:
    return {"mempool": a_status()["mempool"] | changes}


def run(data: Path, *arguments: str) -> int:
    return command.run(["check", "--data", str(data), *arguments])


def served(data: Path, status: dict[str, Any], *arguments: str) -> int:
    with status_page(data, lambda _: (200, json.dumps(status).encode())):
        return run(data, *arguments)


def test_healthy_node_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert served(tmp_path, a_status(peers=[a_peer()] * 18, kes_periods_remaining=40)) == 0

    assert capsys.readouterr().out.splitlines() == [
        "ok        node      up 3 d 4 h, 18 hot peers, no message yet",
        "ok        mempool   10 of 50000 messages, 7000 of 160000000 bytes",
        "ok        keys      KES: 40 periods left (ends in about 60 d 0 h)",
    ]


def test_worst_finding_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = a_status(kes_periods_remaining=3, **mempool(messages=50_000))

    assert served(tmp_path, status, "--json") == 2
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["level"], line["part"]) for line in lines] == [
        ("ok", "node"),
        ("critical", "mempool"),
        ("warning", "keys"),
    ]
    assert lines[2]["text"] == (
        "KES: 3 periods left (ends in about 4 d 12 h); renew the operational certificate"
    )


@pytest.mark.parametrize(
    ("periods", "level"), [(4, Level.OK), (3, Level.WARNING), (1, Level.WARNING), (0, Level.CRITICAL)]
)
def test_keys_have_limits(periods: int, level: Level) -> None:
    assert findings(kes_periods_remaining=periods)["keys"].level is level


def test_node_without_keys_says_nothing_of_them() -> None:
    assert "keys" not in findings()


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"messages": 39_999}, Level.OK),
        ({"messages": 40_000}, Level.WARNING),
        ({"messages": 50_000}, Level.CRITICAL),
        ({"bytes": 127_999_999}, Level.OK),
        ({"bytes": 128_000_000}, Level.WARNING),
        ({"bytes": 160_000_000}, Level.CRITICAL),
        ({"messages_max": 0, "bytes_max": 0}, Level.OK),
    ],
)
def test_mempool_has_limits(changes: dict[str, int], level: Level) -> None:
    assert findings(**mempool(**changes))["mempool"].level is level


def test_node_tells_how_long_ago_it_heard_something_and_what_is_oldest() -> None:
    found = findings(
        last_message_ms=int(NOW * 1_000) - 2_000, **mempool(oldest_ms=int(NOW * 1_000) - 840_000)
    )

    assert found["node"].text == "up 3 d 4 h, 1 hot peer, last message 2 s ago"
    assert found["mempool"].text.endswith(", oldest 14m")


def test_node_that_nobody_hears_is_a_warning_and_one_that_is_not_ready_critical() -> None:
    assert findings(peers=[])["node"].level is Level.WARNING
    assert findings(peers=[a_peer(state="warm")])["node"].level is Level.WARNING
    assert findings(ready=False)["node"].level is Level.CRITICAL


def test_part_with_a_fault_is_critical_and_says_why() -> None:
    found = findings(parts={"store": "disk is full", "pools": None})

    assert found["store"] == Finding(Level.CRITICAL, "store", "disk is full")
    assert "pools" not in found


def test_dead_node_that_left_its_note_is_critical(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with status_page(tmp_path, lambda _: (200, b"{}")):
        pass  # the port is free again, the note stays

    assert run(tmp_path) == 2
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
    assert capsys.readouterr().out.startswith("unknown   node      ")


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


def test_a_full_node_that_was_sent_forged_receipts_is_a_warning_and_one_without_links_is_critical(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagepost.cli.check import findings as remp_health
    from stagepost.ground.files.running_nodes import FULL_NODE, StatusFacts

    StatusFacts(1, FULL_NODE, 1).write(tmp_path)
    status: dict[str, object] = {
        "kind": FULL_NODE,
        "uptime_s": 60.0,
        "messages": 3,
        "validators_linked": 7,
        "parts": {"disk": None, "validators": None},
        "receipts_refused": {"RECEIPT_SIGNATURE": 2},
    }
    monkeypatch.setattr(remp_health, "fetch", lambda facts, target: json.dumps(status).encode())
    assert command.run(["check", "--data", str(tmp_path)]) == 1
    assert "2 receipts refused since the start: 2 RECEIPT_SIGNATURE" in capsys.readouterr().out
    status["parts"] = {"disk": None, "validators": "no validator has a link with this node"}
    assert command.run(["check", "--data", str(tmp_path)]) == 2


def test_a_full_node_that_left_its_note_and_is_gone_is_critical(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stagepost.ground.files.running_nodes import FULL_NODE, StatusFacts

    StatusFacts(1, FULL_NODE, 1).write(tmp_path)
    assert command.run(["check", "--data", str(tmp_path)]) == 2
    assert "does not answer" in capsys.readouterr().out
