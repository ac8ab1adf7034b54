"""`node validator` and `node full` obey their sections of stagepost.toml; options override them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stagepost.cli.node import node
from stagepost.ground.identifiers import LinkEncryption
from stagepost.ground.net.network import TcpAddress

SHARED = """
network = "net.json"
key = "k.skey"
data_dir = "d"
metrics_port = 9151
prometheus = "127.0.0.1:9152"
"""


class Started:
    """Stand-in for the process of a node: notes what it is started with."""

    def __init__(self) -> None:
        self.given: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __call__(self, *arguments: Any, **named: Any) -> int:
        self.given = arguments, named
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    one = Started()
    monkeypatch.setattr("stagepost.validator.process.run_validator", one)
    monkeypatch.setattr("stagepost.full_node.process.run_full_node", one)
    monkeypatch.chdir(tmp_path)
    return one


def run(*arguments: str) -> Result:
    return CliRunner().invoke(node, arguments)


def test_a_validator_starts_from_its_section(started: Started, tmp_path: Path) -> None:
    text = f'[validator]{SHARED}shards = 3\n[remp]\nmessage_timeout_s = 77\n[log]\nlevel = "warning"\n'
    (tmp_path / "stagepost.toml").write_text(text)
    assert run("validator").exit_code == 0
    assert started.given is not None
    paths, named = started.given
    assert [Path(one).name for one in paths] == ["net.json", "k.skey", "d"]
    assert named == {
        "genesis": None,
        "shards": 3,
        "message_timeout_s": 77.0,
        "log_level": "WARNING",
        "metrics_port": 9151,
        "metrics_at": TcpAddress("127.0.0.1", 9152),
        "encryption": LinkEncryption.REQUIRED,
    }


def test_options_override_the_section(started: Started, tmp_path: Path) -> None:
    (tmp_path / "stagepost.toml").write_text(f"[validator]{SHARED}shards = 3\n")
    arguments = ("--data", "other", "--shards", "1", "--metrics-port", "off", "--prometheus", "127.0.0.1:1")
    assert run("validator", *arguments, "--log-level", "error").exit_code == 0
    assert started.given is not None
    paths, named = started.given
    assert paths[2] == Path("other")
    assert (named["shards"], named["metrics_port"], named["log_level"]) == (1, None, "ERROR")
    assert named["metrics_at"] == TcpAddress("127.0.0.1", 1)


@pytest.mark.parametrize(("kind", "section"), [("validator", "validator"), ("full", "full_node")])
def test_encryption_of_links_is_a_setting_and_an_option(
    started: Started, kind: str, section: str, tmp_path: Path
) -> None:
    text = f'[{section}]{SHARED}link_encryption = "preferred"\n'
    (tmp_path / "stagepost.toml").write_text(text)
    for arguments, encryption in (
        ((), LinkEncryption.PREFERRED),
        (("--link-encryption", "off"), LinkEncryption.OFF),
    ):
        assert run(kind, *arguments).exit_code == 0
        assert started.given is not None
        assert started.given[1]["encryption"] is encryption


def test_a_full_node_starts_from_its_section(started: Started, tmp_path: Path) -> None:
    text = (
        f'[full_node]{SHARED}http = "127.0.0.1:8140"\ndmq_keys = "pool"\ndmq_socket = "s"\ndmq_magic = 5\n'
        'dmq_profile = "seed"\n'
    )
    (tmp_path / "stagepost.toml").write_text(text)
    result = run("full")
    assert result.exit_code == 0, result.output
    assert started.given is not None
    _, named = started.given
    assert named["beside"] is not None
    dmq = named["dmq"]
    assert (Path(dmq.socket).name, dmq.network_magic, Path(dmq.keys).name) == ("s", 5, "pool")
    assert dmq.profile == "seed"
    assert named["metrics_port"] == 9151


@pytest.mark.parametrize(("kind", "section"), [("validator", "validator"), ("full", "full_node")])
def test_what_is_missing_is_named_at_once(started: Started, kind: str, section: str) -> None:
    result = run(kind, "--key", "x")
    assert result.exit_code == 2
    wanted = f"missing --network, --data: give them, or set {section}.network, {section}.data_dir"
    assert wanted in result.stderr
    assert started.given is None


def test_a_bad_setting_is_refused_before_anything_starts(started: Started, tmp_path: Path) -> None:
    (tmp_path / "stagepost.toml").write_text(f"[validator]{SHARED}shards = 17\n")
    result = run("validator")
    assert "validator.shards" in str(result.exception)
    assert started.given is None
