"""`stagepost config` as people use it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stagepost.cli.main import run
from stagepost.config.settings import SETTINGS

POOLS = {"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": []}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_init_writes_a_file_that_check_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "init"]) == 0
    assert capsys.readouterr().out == "wrote stagepost.toml\n"

    assert run(["config", "check"]) == 0
    assert capsys.readouterr().out == "ok\n"


def test_init_overwrites_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("stagepost.toml").write_text("mine")

    assert run(["config", "init"]) == 2
    assert Path("stagepost.toml").read_text() == "mine"
    assert capsys.readouterr().err.splitlines()[-1] == "CONFIG_INVALID"


def test_init_writes_where_it_is_told_and_says_so_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "init", "--config", "other.toml", "--json"]) == 0

    assert objects(capsys.readouterr().out) == [{"written": "other.toml"}]
    assert tomllib.loads(Path("other.toml").read_text()).keys() == {
        *(
            "node",
            "delivery",
            "remp",
            "validator",
            "full_node",
            "kafka",
            "pipeline",
            "webhook",
            "telemetry",
            "web",
            "log",
        )
    }


def test_init_into_a_missing_folder_could_not_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "init", "--config", "gone/other.toml"]) == 3
    assert "could not write gone/other.toml" in capsys.readouterr().err


def break_files() -> None:
    Path("stagepost.toml").write_text('[delivery]\nqueue_sise = 5\nack_timeout_s = "soon"\n')
    group = {"accessPoints": [{"address": "a", "port": 1}, {"address": "b", "port": "3001"}], "valency": 1}
    Path("dmq.topology.json").write_text(json.dumps({"localRoots": [group]}))


def test_check_lists_every_fault_of_every_file(capsys: pytest.CaptureFixture[str]) -> None:
    break_files()

    assert run(["config", "check"]) == 2
    assert capsys.readouterr().out == (
        "stagepost.toml: 2 problems\n"
        "  delivery.queue_sise      unknown key; did you mean queue_size?\n"
        '  delivery.ack_timeout_s   expected seconds as a number, found "soon"\n'
        "dmq.topology.json: 1 problem\n"
        '  localRoots[0].accessPoints[1].port   expected a number, found "3001" (remove the quotes)\n'
        "CONFIG_INVALID  nothing was started\n"
    )


def test_check_says_the_same_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    break_files()

    assert run(["config", "check", "--json"]) == 2
    lines = objects(capsys.readouterr().out)
    assert [line["file"] for line in lines if line["kind"] == "fault"] == [
        "stagepost.toml",
        "stagepost.toml",
        "dmq.topology.json",
    ]
    assert lines[-1] == {"kind": "result", "is_valid": False, "code": "CONFIG_INVALID"}


def test_check_looks_at_the_files_that_flags_name(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.json").write_text(json.dumps(POOLS | {"max_kes_evolutions": 65}))

    assert run(["config", "check", "--pools", "mine.json", "-t", "gone.json", "--port", "70000"]) == 2
    out = capsys.readouterr().out
    assert "command line: 1 problem" in out
    assert "gone.json: 1 problem" in out
    assert "expected a number in 1..64, found 65" in out


def test_check_notes_what_is_missing_or_in_vain(capsys: pytest.CaptureFixture[str]) -> None:
    Path("dmq.config.json").write_text(json.dumps({"TargetNumberOfRootPeers": 5}))

    assert run(["config", "check"]) == 0
    notes = capsys.readouterr().err
    assert "TargetNumberOfRootPeers has no effect here" in notes
    assert "needs one of them (--cardano-node-socket or --pools)" in notes


def test_show_prints_toml_with_origins(capsys: pytest.CaptureFixture[str]) -> None:
    Path("stagepost.toml").write_text("[node]\nport = 5\n[contexts.a]\nnode.network_magic = 6\n")

    assert run(["config", "show", "--context", "a", "--data", "there", "--metrics-port", "off"]) == 0
    out = capsys.readouterr().out
    shown = tomllib.loads(out)
    assert (shown["node"]["port"], shown["node"]["network_magic"], shown["node"]["data_dir"]) == (
        5,
        6,
        "there",
    )
    assert shown["node"]["metrics_port"] == "off"
    origins = {line.split(" ")[0]: line.rpartition(" # ")[2] for line in out.splitlines() if " = " in line}
    assert origins["network_magic"] == "stagepost.toml: contexts.a.node.network_magic"
    assert origins["data_dir"] == "command line: --data"
    assert origins["wire_profile"] == "default"


def test_what_show_prints_can_be_used_as_a_settings_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("dmq.topology.json").write_text('{"localRoots": []}')
    run(["config", "show", "--port", "7"])
    Path("stagepost.toml").write_text(capsys.readouterr().out)

    assert run(["config", "check"]) == 0
    run(["config", "show", "--json"])
    shown = {line["key"]: line["value"] for line in objects(capsys.readouterr().out.removeprefix("ok\n"))}
    assert shown["node.port"] == 7


def test_show_prints_one_object_per_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--json"]) == 0

    lines = objects(capsys.readouterr().out)
    assert [line["key"] for line in lines] == list(SETTINGS)
    assert {line["origin"] for line in lines} == {"default"}


def test_show_refuses_what_check_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    Path("stagepost.toml").write_text("[nod]\n")

    assert run(["config", "show"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "CONFIG_INVALID  nothing was started"


@pytest.mark.parametrize("command", [[], ["init"], ["check"], ["show"]])
def test_every_command_has_help_with_an_example(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", *command, "--help"]) == 0
    assert "Example:\n    stagepost config" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        ([], 90.0),
        (["--context", "slow"], 600.0),
        (["--message-timeout", "3s"], 3.0),
        (["--config", "empty.toml"], 240.0),
    ],
)
@pytest.mark.parametrize(
    ("role", "runs"),
    [
        ("validator", "stagepost.validator.process.run_validator"),
        ("full", "stagepost.full_node.process.run_full_node"),
    ],
)
def test_members_let_messages_expire_as_flag_or_settings_say(
    role: str, runs: str, flags: list[str], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stagepost.toml").write_text(
        "[remp]\nmessage_timeout_s = 90\n[contexts.slow]\nremp.message_timeout_s = 600\n"
    )
    Path("empty.toml").write_text("")
    given: list[object] = []

    def note(*_: object, message_timeout_s: float, **__: object) -> int:
        given.append(message_timeout_s)
        return 0

    monkeypatch.setattr(runs, note)
    needed = ["--network", "network.json", "--key", "member.skey", "--data", "data"]
    assert run(["node", role, *needed, *flags]) == 0
    assert given == [seconds]


def test_a_member_with_faulty_settings_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    Path("stagepost.toml").write_text("[remp]\nmessage_timeout_s = 0\n")
    assert run(["node", "validator", "--network", "n.json", "--key", "k", "--data", "d"]) == 2
    assert "remp.message_timeout_s" in capsys.readouterr().err
