"""`topic ls` and `topic dump` over the address of `topic serve`: the same lines as from the folder itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stagepost.cli.main import run
from stagepost.topics.log.file_topic import create_topic
from tests.worlds.topics.topic_records import NAME, a_record, a_writer, append_now

WITHIN_S = 120.0
TOKEN = "a token of many letters"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a topic of two partitions, and the address at which it is served, with a token."""
    data = tmp_path_factory.mktemp("served")
    writer = a_writer(create_topic(data, NAME, partitions=2))
    append_now(writer, [a_record(number) for number in range(10)])
    writer.close_now()
    command = [sys.executable, "-m", "stagepost.cli.main", "topic", "serve", "--data", str(data), "--json"]
    environment = {**os.environ, "STAGEPOST_TOKEN": TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            yield data, json.loads(server.stdout.readline())["address"]
            server.send_signal(signal.SIGTERM)
            assert server.wait(WITHIN_S) == 0
        finally:
            server.kill()


def test_the_same_is_listed_and_written_from_elsewhere(
    served: tuple[Path, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, address = served
    monkeypatch.setenv("STAGEPOST_TOKEN", TOKEN)
    listed = []
    for where in (["--data", str(data)], ["--address", address]):
        assert run(["topic", "ls", *where, "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        listed.append([(one["topic"], one["partition"], one["records"]) for one in rows])
    assert listed[0] == listed[1]
    assert sum(records for _, _, records in listed[0]) == 10
    for options in ([], ["--partition", "1"], ["--partition", "1", "--from", "1"]):
        written: list[bytes] = []
        for where in (["--data", str(data)], ["--address", address]):
            out = tmp_path / f"dump-{len(written)}.jsonl"
            assert run(["topic", "dump", NAME, *where, "--out", str(out), *options]) == 0
            written.append(out.read_bytes())
        assert written[0] == written[1] != b""
    assert run(["topic", "ls", "--address", address]) == 0
    assert NAME in capsys.readouterr().out


def test_what_is_not_there_is_said_and_no_half_file_stays(
    served: tuple[Path, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, address = served
    out = tmp_path / "dump.jsonl"
    monkeypatch.delenv("STAGEPOST_TOKEN", raising=False)
    assert run(["topic", "ls", "--address", address]) == 2
    assert "need a token" in capsys.readouterr().err
    monkeypatch.setenv("STAGEPOST_TOKEN", TOKEN)
    for name, options in (("none", []), (NAME, ["--partition", "2"])):
        assert run(["topic", "dump", name, "--address", address, "--out", str(out), *options]) == 2
        assert f"topics there: {NAME}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    for both in ([], ["--data", str(tmp_path), "--address", address]):
        assert run(["topic", "ls", *both]) == 2
        assert run(["topic", "dump", NAME, "--out", str(out), *both]) == 2
    monkeypatch.setattr("stagepost.cli.topic.PATIENCE_S", 0.0)
    assert run(["topic", "ls", "--address", "127.0.0.1:1"]) == 3
