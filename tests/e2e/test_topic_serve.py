"""`stagepost topic serve` beside the one who writes: what it has acknowledged is read elsewhere, with the right token only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stagepost.cli.main import run
from stagepost.errors import ConfigError
from stagepost.ground.net.network import parse_address
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.remote.client import RemoteTopics
from tests.worlds.topics.topic_records import NAME, a_record, a_writer, append_now

WITHIN_S = 120.0
TOKEN = "a token of many letters"


def test_topics_are_served_while_they_grow_and_the_server_ends_when_told(tmp_path: Path) -> None:
    writer = a_writer(create_topic(tmp_path, NAME))
    command = [
        sys.executable,
        "-m",
        "stagepost.cli.main",
        "topic",
        "serve",
        "--data",
        str(tmp_path),
        "--json",
    ]
    environment = {**os.environ, "STAGEPOST_TOKEN": TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            address = parse_address(json.loads(server.stdout.readline())["address"])
            with RemoteTopics(address, TOKEN) as topics:
                assert [one.end for one in topics.bounds()] == [0]
                append_now(writer, [a_record(1), a_record(2)])
                assert [one.end for one in topics.bounds()] == [2]
                (reads,) = topics.records(NAME, 0, 0, 2)
                assert [read.value for read in reads] == [a_record(1).value, a_record(2).value]
            with RemoteTopics(address) as topics, pytest.raises(ConfigError, match="need a token"):
                topics.bounds()
            server.send_signal(signal.SIGTERM)
            assert server.wait(WITHIN_S) == 0
        finally:
            server.kill()
            writer.close_now()


def test_an_address_for_everybody_is_refused_without_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STAGEPOST_TOKEN", raising=False)
    assert run(["topic", "serve", "--data", str(tmp_path), "--address", "0.0.0.0:0"]) == 2
    assert "without a token everybody" in capsys.readouterr().err
    assert run(["topic", "serve", "--data", str(tmp_path / "nowhere")]) == 3
