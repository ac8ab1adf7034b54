"""`stagepost queue ls`: the mempool of a running node, page by page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from stagepost.cli import main as command
from tests.worlds.dmq.background_node import status_page


def entry(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "message_id": f"{index:064x}",
        "pool_id": "pool1" + "q" * 50,
        "expires_at": 4_000_000_000,
        "received_ms": 1_800_000_000_000,
        "source": "local",
        "bytes": 705,
    }


class Pages:
    """A mempool of `count` messages, and the questions that were asked of it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[tuple[int, int]] = []

    def __call__(self, target: str) -> tuple[int, bytes]:
        assert urlsplit(target).path == "/mempool"
        query = parse_qs(urlsplit(target).query)
        after, limit = int(query["after"][0]), int(query["limit"][0])
        self.asked.append((after, limit))
        last = min(self.count, after + limit)
        entries = [entry(index) for index in range(after + 1, last + 1)]
        return 200, json.dumps({"entries": entries, "next": last if last < self.count else None}).encode()


def ls(data: Path, pages: Pages, *arguments: str) -> int:
    with status_page(data, pages):
        return command.run(["queue", "ls", "--data", str(data), *arguments])


def test_table_shows_what_is_held_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ls(tmp_path, Pages(3)) == 0

    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["index", "message", "pool", "bytes", "received", "from", "expires"]
    assert [line.split()[:2] for line in lines] == [[str(n), f"00000000…{n:06x}"] for n in (1, 2, 3)]
    assert lines[0].split()[2:6] == ["pool1qqqqq…qqqq", "705", "08:00:00", "local"]


def test_limit_leaves_the_rest_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = Pages(120)

    assert ls(tmp_path, pages) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 50 + 1
    assert lines[-1] == "more: stagepost queue ls --after 50"
    assert ls(tmp_path, pages, "--after", "50", "--limit", "70") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 70
    assert pages.asked == [(0, 50), (50, 70)]


def test_all_of_them_come_in_pages_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = Pages(2_500)

    assert ls(tmp_path, pages, "--all", "--json") == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [facts["index"] for facts in shown] == list(range(1, 2_501))
    expected = entry(1) | {"expires_at_ms": 4_000_000_000_000}
    del expected["expires_at"]  # times in JSON are milliseconds
    assert shown[0] == expected
    assert pages.asked == [(0, 1_000), (1_000, 1_000), (2_000, 1_000)]


def show(data: Path, pages: Pages, *arguments: str) -> int:
    with status_page(data, pages):
        return command.run(["queue", "show", "--data", str(data), *arguments])


def test_one_message_of_the_mempool_is_shown_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(tmp_path, Pages(1_200), f"{1_100:064x}", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["index"], found["message_id"], found["bytes"]) == (1_100, f"{1_100:064x}", 705)
    assert found["expires_at_ms"] == 4_000_000_000_000

    assert show(tmp_path, Pages(3), f"{2:064x}") == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["index"], lines["source"]) == ("2", "local")
    assert lines["received"].startswith("1800000000000")


def test_a_beginning_of_none_or_of_several_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(tmp_path, Pages(2), "00000000") == 1
    assert "holds 2 messages with an id that begins with 00000000" in capsys.readouterr().err
    assert show(tmp_path, Pages(2), "ffffffff") == 1
    assert "holds no message with an id that begins with ffffffff" in capsys.readouterr().err


def test_nothing_is_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ls(tmp_path, Pages(0)) == 0
    assert ls(tmp_path, Pages(3), "--after", "3") == 0

    assert capsys.readouterr().out == "nothing is held\nnothing is held behind index 3\n"


def test_no_node_is_exit_3(tmp_path: Path) -> None:
    assert command.run(["queue", "ls", "--data", str(tmp_path)]) == 3


@pytest.mark.parametrize(
    "name",
    [
        ("send",),
        ("submit",),
        ("message", "send"),
        ("listen",),
        ("peers",),
        ("check",),
        ("queue",),
        ("queue", "ls"),
    ],
)
def test_every_command_has_help_with_an_example(
    name: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run([*name, "--help"]) == 0
    assert "Example:\n    stagepost " in capsys.readouterr().out
