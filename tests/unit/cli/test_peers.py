"""`stagepost peers`: the connections of a node as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stagepost.cli import main as command
from tests.worlds.dmq.background_node import a_peer, a_status, status_page

PEERS = [
    a_peer(),
    a_peer(
        address="[2001:db8::1]:3141",
        direction="inbound",
        state="warm",
        version=1,
        profile="seed",
        flavour="cip",
        round_trip_ms=None,
        last_violation="PROTOCOL_WINDOW: acknowledged 5 of 3 ids\x1b[0m",
    ),
]


def peers(data: Path, *arguments: str) -> int:
    return command.run(["peers", "--data", str(data), *arguments])


def test_table_has_a_line_for_each_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with status_page(tmp_path, lambda _: (200, json.dumps(a_status(peers=PEERS)).encode())):
        assert peers(tmp_path) == 0

    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["peer", "direction", "state"]
    expected = "192.0.2.7:3141 outbound hot dmq-node v2 haskell 12 ids 5600 B 31 ms 42 1.5 –"
    assert " ".join(first.split()) == expected
    assert second.endswith("PROTOCOL_WINDOW: acknowledged 5 of 3 ids·[0m")
    assert header.index("state") == first.index("hot") == second.index("warm")


def test_json_gives_the_nodes_own_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with status_page(tmp_path, lambda _: (200, json.dumps(a_status(peers=PEERS)).encode())):
        assert peers(tmp_path, "--json") == 0

    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == PEERS


def test_nobody_is_not_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with status_page(tmp_path, lambda _: (200, json.dumps(a_status(peers=[])).encode())):
        assert peers(tmp_path) == 0
        assert capsys.readouterr().out == "no peers yet\n"
        assert peers(tmp_path, "--json") == 0
        assert capsys.readouterr().out == ""


def test_no_node_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert peers(tmp_path) == 3
    assert "no node runs in" in capsys.readouterr().err
