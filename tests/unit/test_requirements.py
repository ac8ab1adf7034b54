"""Pins are complete, hashed, agree with one another, and say nothing about where packages come from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILED = sorted((ROOT / "requirements").glob("*.txt"))
PIN = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^\s;]+)(?: ; [^\\]+?)?(?P<hashes>(?: --hash=\S+)*)"
)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def logical_lines(text: str) -> list[str]:
    """Requirements without comments, each on one line."""
    uncommented = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\s*\\\n\s*", " ", uncommented)
    return [line.strip() for line in joined.splitlines() if line.strip()]


def faults(text: str) -> list[str]:
    """What is wrong with a compiled requirements file."""
    found = ["holds an address"] if "://" in text else []
    for line in logical_lines(text):
        pin = PIN.fullmatch(line)
        if pin is None:
            found.append(f"not a pin: {line[:60]}")
        elif not pin["hashes"] or not all(HASH.fullmatch(part) for part in pin["hashes"].split()):
            found.append(f"without a SHA-256 hash: {pin['name']}")
    return found


def pins(file_name: str) -> dict[str, str]:
    lines = logical_lines((ROOT / "requirements" / file_name).read_text())
    return {pin["name"]: pin["version"] for pin in map(PIN.fullmatch, lines) if pin is not None}


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.name)
def test_compiled_file_holds_hashed_pins_and_nothing_else(path: Path) -> None:
    text = path.read_text()

    assert logical_lines(text)
    assert faults(text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("click==8.1.7\n", "without a SHA-256 hash: click"),
        ("click==8.1.7 \\\n    --hash=md5:00\n", "without a SHA-256 hash: click"),
        ("click>=8 \\\n    --hash=sha256:" + "0" * 64, "not a pin: click>=8"),
        ("--extra-index" + "-url somewhere\n", "not a pin: --extra"),
        ("click @ file:" + "//x/click.whl\n", "holds an address"),
        ("# from ftp:" + "//host/click\n", "holds an address"),
    ],
)
def test_a_planted_fault_is_found(text: str, fault: str) -> None:
    assert any(found.startswith(fault) for found in faults(text))


def test_files_agree_on_every_version_they_share() -> None:
    merged: dict[str, str] = {}
    for path in COMPILED:
        for name, version in pins(path.name).items():
            assert merged.setdefault(name, version) == version, f"{path.name} pins another {name}"


def test_every_dependency_of_the_project_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime = {re.split(r"[^a-z0-9-]", text)[0] for text in project["dependencies"]}
    test = {re.split(r"[^a-z0-9-]", text)[0] for text in project["optional-dependencies"]["test"]}

    assert runtime <= pins("base.txt").keys()
    assert pins("base.txt").keys() | test <= pins("test.txt").keys()
    assert {"hatchling", "editables"} <= pins("build.txt").keys()
