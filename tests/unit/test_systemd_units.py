"""The units of systemd: each starts a command that exists with options that it has, and systemd itself accepts them."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from stagepost.cli import main

UNITS = sorted((Path(__file__).parents[2] / "systemd").glob("*.service"))


def read(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # keys of units have capitals
    parser.read_string(unit.read_text())
    return parser


def test_every_kind_of_process_has_a_unit() -> None:
    names = ("dashboard", "dmq", "full", "validator")
    assert [unit.name for unit in UNITS] == [f"stagepost-{name}.service" for name in names]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_start_a_command_that_exists(unit: Path) -> None:
    content = read(unit)
    assert content.sections() == ["Unit", "Service", "Install"]
    service = content["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == "/opt/stagepost/bin/stagepost"
    command: click.Command = main.stagepost
    context = click.Context(command)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(list(words))
    assert service["UMask"] == "0077"
    assert service["StateDirectoryMode"] == "0700"
    assert int(service["TimeoutStopSec"]) > 10  # nodes end within ten seconds


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine; the test above has parsed the unit")
    copy = tmp_path / unit.name
    # systemd-analyze wants the program to be there.
    copy.write_text(unit.read_text().replace("/opt/stagepost/bin/stagepost", "/bin/true"))
    done = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if unit.stem in line]
    assert not said
    assert done.returncode == 0, done.stderr


def test_systemd_refuses_a_unit_with_an_unknown_setting(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine")
    copy = tmp_path / UNITS[0].name
    text = UNITS[0].read_text().replace("/opt/stagepost/bin/stagepost", "/bin/true")
    copy.write_text(text.replace("Restart=on-failure", "Restart=perhaps"))
    done = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    assert "perhaps" in done.stdout + done.stderr
