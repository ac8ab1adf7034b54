"""`stagepost conform`: what it refuses to do, what it prints without a node, and its exit codes."""

from __future__ import annotations

import json
import os
from html import escape
from pathlib import Path

import click
import pytest

from stagepost.cli import main as command
from stagepost.cli.conform.page import write_page
from stagepost.cli.exit_codes import UNREACHABLE
from stagepost.dmq.conform.attacker import NodeTarget
from stagepost.dmq.conform.cases import CASES
from stagepost.dmq.conform.report import COULD_NOT_LOOK, ConformReport
from stagepost.dmq.conform.runner import CaseResult
from stagepost.errors import StorageError


def conform(*arguments: str) -> int:
    return command.run(["conform", *arguments])


def test_nobody_to_look_at_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conform(f"{tmp_path}/no.socket") == COULD_NOT_LOOK
    assert "could not look" in capsys.readouterr().err
    assert conform("127.0.0.1:1") == COULD_NOT_LOOK
    assert capsys.readouterr().out == ""


def test_a_pattern_that_names_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("127.0.0.1:1", "--only", "nosuch*") == COULD_NOT_LOOK
    assert "'nosuch*'" in capsys.readouterr().err
    assert conform("--serve", "127.0.0.1:0", "--only", "handshake.choice") == COULD_NOT_LOOK
    assert "'handshake.choice'" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_named_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conform("127.0.0.1:1", "--report", f"{tmp_path}/no/report.html") == UNREACHABLE
    assert "no/report.html" in capsys.readouterr().err
    (tmp_path / "report.html").write_text("earlier")
    assert conform("127.0.0.1:1", "--report", f"{tmp_path}/report.html") == COULD_NOT_LOOK
    assert (tmp_path / "report.html").read_text() == "earlier"


@pytest.mark.parametrize(("host", "address"), [("::1", "[::1]:3141"), ("127.0.0.1", "127.0.0.1:3141")])
def test_an_address_is_shown_as_people_write_it(host: str, address: str) -> None:
    assert NodeTarget(3_141, None, 42, host).address == address


def test_two_addresses_or_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform() == COULD_NOT_LOOK
    assert conform("127.0.0.1:1", "127.0.0.1:2") == COULD_NOT_LOOK
    assert "two addresses" in capsys.readouterr().err


@pytest.mark.parametrize("magic", ["2912307721", "2147483649", "2147483650"])
def test_floods_are_refused_on_public_networks(magic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("127.0.0.1:1", "--floods", "--yes", "--network-magic", magic) == COULD_NOT_LOOK
    assert "no floods" in capsys.readouterr().err


def test_floods_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(text: str, **_: object) -> None:
        asked.append(text)
        raise click.exceptions.Abort

    monkeypatch.setattr("click.confirm", refuse)
    assert conform("127.0.0.1:1", "--floods", "--network-magic", "42") == 130
    assert len(asked) == 1


def test_list_names_every_case_with_its_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("--list") == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CASES)
    assert any("mux.empty: A segment without payload" in line for line in lines)


def test_new_pools_are_made_once_and_are_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kit"
    assert conform("--new-pools", str(folder)) == 0

    assert (folder / "kit.json").stat().st_mode & 0o777 == 0o600
    pools = json.loads((folder / "pools.json").read_text())["pools"]
    assert sorted(pool["stake"] for pool in pools) == [0, 1, 1, 1]
    assert conform("--new-pools", str(folder)) == COULD_NOT_LOOK
    assert "has pools already" in capsys.readouterr().err


def test_a_folder_without_pools_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("127.0.0.1:1", "--pools", str(tmp_path)) != 0
    assert f"{tmp_path}{os.sep}kit.json" in capsys.readouterr().err


def test_server_mode_says_where_it_listens_and_what_nobody_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    socket, page = tmp_path / "kit.socket", tmp_path / "report.html"
    waiting = ("--serve", "--wait", "0.1s", "--report", str(page))
    assert conform(str(socket), *waiting, "--only", "client.network") == COULD_NOT_LOOK

    said = capsys.readouterr()
    assert f"listening on {socket}" in said.err
    assert "not looked at: 1" in said.out
    assert "client.network" in page.read_text()


def test_server_mode_lists_cases_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("--serve", "--list") == 0

    assert all("client." in line for line in capsys.readouterr().out.splitlines())


def test_the_page_shows_deviations_first_and_no_markup_of_the_node(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\x1b[31m & more"
    broken = CaseResult(CASES[0], faults=[evil])
    broken.transcript.add(True, 0.5, b"\x81\x06")
    path = tmp_path / "page.html"
    write_page(path, ConformReport(evil, 42, "auto", [evil], [CaseResult(CASES[1]), broken]))

    page = path.read_text()
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "8106" in page
    assert "http" not in page
    broken_at, holding_at = (page.index(escape(case.name)) for case in CASES[:2])
    assert broken_at < page.index("<summary>Holds</summary>") < holding_at


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not write"):
        write_page(tmp_path / "none" / "page.html", ConformReport("here", 42, "auto", []))
