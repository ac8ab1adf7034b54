"""The command line as a whole: errors as JSON, commands that are nearly right, one name for each option."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from stagepost.cli import main as command
from stagepost.config.settings import SECTIONS, settings_schema
from stagepost.config.settings_file import initial_file


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["chek"], "check"),
        (["peer"], "peers"),
        (["node", "ful"], "full"),
        (["queue", "replai"], "replay"),
    ],
)
def test_a_command_that_is_nearly_right_is_named(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(arguments) == 2
    assert len(re.findall(rf"Did you mean '?{meant}\b", capsys.readouterr().err)) == 1
    assert command.run(["zzzz"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def test_errors_are_json_with_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*arguments: str) -> dict[str, Any]:
        status = command.run([*arguments])
        output = capsys.readouterr()
        assert output.out == ""
        found: dict[str, Any] = json.loads(output.err)
        assert found["exit_code"] == status
        return found

    none = str(tmp_path / "none")
    assert told("peers", "--data", none, "--json")["code"] == "STORAGE_UNAVAILABLE"
    mistyped = told("peers", "--dta", none, "--json")
    assert (mistyped["code"], mistyped["exit_code"]) == ("USAGE", 2)
    assert "--dta" in mistyped["error"]


def test_serving_a_folder_that_does_not_exist_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["serve", "--data", str(tmp_path / "none")]) == 3
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().err


def test_a_file_type_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    assert command.run(["export", "--tables", str(tmp_path), "--out", str(tmp_path / "x.xlsx")]) == 2
    assert "no file of type .xlsx can be written; give --to csv, jsonl or parquet" in capsys.readouterr().err
    assert not (tmp_path / "x.xlsx").exists()


def parameters(*names: str) -> dict[str, click.Parameter]:
    found: click.Command = command.stagepost
    for name in names:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), name)
        assert inner is not None
        found = inner
    return {opt: one for one in found.params for opt in one.opts}


@pytest.mark.parametrize(
    ("names", "present", "former"),
    [
        (("node", "full"), "--socket", "--dmq-socket"),
        (("node", "full"), "--network-magic", "--dmq-magic"),
        (("node", "dmq"), "--socket", "--local-socket"),
        (("node", "dmq"), "--network-magic", "--dmq-network-magic"),
        (("pipeline", "run"), "--tables", "--out"),
        (("pipeline", "backfill"), "--tables", "--out"),
    ],
)
def test_an_option_has_one_name_and_the_former_one_is_understood(
    names: tuple[str, ...], present: str, former: str
) -> None:
    found = parameters(*names)
    assert found[present] is found[former]


def test_help_shows_the_present_name_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["node", "full", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--socket PATH" in shown
    assert "--dmq-socket" not in shown


def test_the_schema_knows_every_setting_and_the_file_that_init_writes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.run(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json.loads(json.dumps(settings_schema()))
    for section, settings in SECTIONS.items():
        known = schema["properties"][section]["properties"]
        assert known.keys() == settings.keys()
        for name, setting in settings.items():
            assert {"type", "enum", "anyOf"} & known[name].keys(), f"{section}.{name} has no type"
            assert known[name]["description"] == setting.about
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema)
    assert not list(validator.iter_errors(tomllib.loads(initial_file())))
    wrong: tuple[dict[str, Any], ...] = (
        {"delivery": {"queue_sise": 1}},
        {"delivery": {"queue_size": "x"}},
        {"other": {}},
    )
    assert all(list(validator.iter_errors(one)) for one in wrong)
