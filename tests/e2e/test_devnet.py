"""A whole network on this machine by one command, and what people then do with its folder."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from stagepost.cli import main as command
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT, devnet

pytestmark = pytest.mark.xdist_group("devnet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a devnet that has sent its messages, and has been started again for some more."""
    data = tmp_path_factory.mktemp("devnet") / "data"
    options = ("--validators", "4", "--shards", "2", "--one-process", "--rate", "100")
    for count in ("30", "10"):
        done = devnet(data, *options, "--messages", count)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].endswith("sums exact")
        assert f"finalized{'':13} {count}" in done.stdout
    return data


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    return command.run(arguments), capsys.readouterr().out


def test_every_receipt_of_its_topic_holds_by_the_sets_that_it_wrote(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses, sets = tmp_path / "statuses.jsonl", tmp_path / "sets.json"
    dumped = run(
        capsys, "topic", "dump", "stagepost.remp.statuses", "--data", str(folder), "--out", str(statuses)
    )
    assert dumped[0] == 0
    assert run(capsys, "sets", "export", "--data", str(folder), "--out", str(sets))[0] == 0
    status, output = run(capsys, "verify", str(statuses), "--validator-sets", str(sets), "--json")
    assert status == 0
    counts = json.loads(output.splitlines()[-1])
    assert counts["refused"] == counts["repeated"] == 0
    assert counts["messages"] == 40
    records = [json.loads(line) for line in statuses.read_text().splitlines()]
    receipts = [json.loads(record["value"]) for record in records]
    finals = [one["message_id"] for one in receipts if one["kind"] == "Finalized"]
    assert len(finals) == len(set(finals)) == 40
    assert {one["shard"] for one in receipts if one["kind"] == "Finalized"} == {
        "4000000000000000",
        "c000000000000000",
    }
    sessions = {session["session_id"] for session in json.loads(sets.read_text())["sessions"]}
    assert {record["headers"]["session"] for record in records} <= sessions


def test_a_message_is_traced_from_the_folder_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stagepost.trace.reading import topic_records

    key = next(record.key for record in topic_records(folder) if record.key)
    status, output = run(capsys, "trace", key[:12], "--data", str(folder), "--json")
    assert status == 0
    found = json.loads(output)
    assert (found["verdict"], found["validators"], found["silent"]) == ("finalized", 4, [])
    status, output = run(capsys, "trace", key, "--data", str(folder))
    assert status == 0
    assert "Finalized" in output.splitlines()[0]


def test_a_folder_of_another_network_is_refused(folder: Path) -> None:
    done = devnet(folder, "--validators", "5", "--one-process", "--messages", "1")
    assert done.returncode == 1
    assert "other validators" in done.stderr


def test_without_messages_it_runs_until_it_is_stopped(tmp_path: Path) -> None:
    arguments = ["--validators", "1", "--one-process", "--data", str(tmp_path / "data")]
    process = subprocess.Popen(
        [*COMMAND, "devnet", *arguments],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert "devnet ready" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()
