"""The trial of built files: what it finds in archives and on machines; `make release-check` runs the whole of it."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tools import wheel_trial
from tools.wheel_trial import Trial, content_faults, find_pythons, metadata_faults, named_pythons, version_of

ROOT = Path(__file__).parents[2]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def an_executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_the_classifiers_name_the_pythons_to_try() -> None:
    named = named_pythons((ROOT / "pyproject.toml").read_text())
    assert {"3.11", "3.12", "3.13"} <= set(named)
    assert all(one.startswith("3.") for one in named)


def test_a_python_is_what_starts_and_says_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert version_of(Path(sys.executable)) == HERE
    assert version_of(tmp_path / "nothing") is None
    an_executable(tmp_path / "path" / "python3.11", "echo 'python3.11: command not found' >&2; exit 127")
    real = an_executable(tmp_path / "pyenv" / "versions" / "3.11.9" / "bin" / "python3.11", "echo 3.11")
    other = an_executable(tmp_path / "other", "echo 3.99")
    assert find_pythons(("3.11", "3.12"), [other]) == {"3.11": real}
    given = an_executable(tmp_path / "given", "echo 3.11")
    assert find_pythons(("3.11",), [given]) == {"3.11": given}


def test_a_file_that_is_missing_or_strange_is_named() -> None:
    assert content_faults(["a.py", "b.py"], ["b.py", "a.py"], "the wheel") == []
    assert content_faults(["a.py", "key.pem"], ["a.py", "b.html"], "the wheel") == [
        "the wheel lacks b.html",
        "the wheel has key.pem, which the repository has not",
    ]


def test_a_link_of_the_description_to_a_file_is_a_fault(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a-1.dist-info/METADATA", "Name: a\n\n[x](https://example.org) ![y](docs/y.png)\n")
    assert metadata_faults(wheel) == ["the description links docs/y.png, which an index has not"]


def test_a_python_that_is_not_here_is_told_by_name_and_never_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = wheel_trial.Built(tmp_path / "a.whl", tmp_path / "a.tar.gz", "1")
    monkeypatch.setattr(wheel_trial, "build", lambda out: built)
    monkeypatch.setattr(wheel_trial, "check_files", lambda built, trial: None)
    monkeypatch.setattr(wheel_trial, "find_pythons", lambda wanted, given: {})
    trial = wheel_trial.try_all([], tmp_path)
    assert [one.partition(":")[0] for one in trial.untried] == ["Python 3.11", "Python 3.12", "Python 3.13"]
    assert [one.partition(":")[0] for one in trial.absent] == ["Python 3.14"]
    assert trial.done == []
    assert trial.faults == []


def test_an_environment_that_cannot_be_made_is_a_fault_and_ends_the_trial_of_this_python(
    tmp_path: Path,
) -> None:
    broken = an_executable(tmp_path / "broken", "exit 3")
    environment = wheel_trial.Environment(tmp_path / "room", broken)
    trial = Trial()
    built = wheel_trial.Built(tmp_path / "a.whl", tmp_path / "a.tar.gz", "1")
    assert not wheel_trial.try_base(built, "3.11", environment, trial)
    assert len(trial.faults) == 1
    assert trial.faults[0].startswith("Python 3.11: the base cannot be installed: exit ")
