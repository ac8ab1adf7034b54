"""A clock that a test can set, for one real node: libfaketime, if this machine has it or can get it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.hostile.disk_shim import BUILDS, NotToBeHad

LIBRARY = "libfaketimeMT.so.1"
PACKAGE = "libfaketime"
FETCHED_WITHIN_S = 60.0


def library() -> Path:
    """Installed, or unpacked once from the system's own package; nothing is installed for a test."""
    found = _library_or_reason()
    if isinstance(found, NotToBeHad):
        raise found
    return found


@cache
def _library_or_reason() -> Path | NotToBeHad:
    """Where nothing can be fetched, that is tried once and not by every test."""
    try:
        return _found_or_fetched()
    except NotToBeHad as reason:
        return reason


def _found_or_fetched() -> Path:
    kept = BUILDS / "faketime"
    for folder in (Path("/usr/lib"), kept):
        if found := sorted(folder.rglob(LIBRARY)):
            return found[0]
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NotToBeHad(f"{PACKAGE} is not installed, and there is no apt-get to fetch it with")
    kept.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", "-qq", PACKAGE], kept)
    for package in kept.glob(f"{PACKAGE}_*.deb"):
        _run(["dpkg-deb", "-x", package.name, "."], kept)
    if found := sorted(kept.rglob(LIBRARY)):
        return found[0]
    raise NotToBeHad(f"the package {PACKAGE} has no {LIBRARY}")


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=FETCHED_WITHIN_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotToBeHad(f"{PACKAGE} is not installed and cannot be fetched: {error}") from error


class FakeClock:
    """The wall clock of the nodes that are started with `environment`; their monotonic clock is the machine's."""

    def __init__(self, path: Path, ahead_s: int = 0) -> None:
        self._path = path
        self.ahead_s = ahead_s
        self.set(ahead_s)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, ahead_s: int) -> None:
        """So far ahead of the true time, or behind it with a negative number; nobody sees half a number."""
        self.ahead_s = ahead_s
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{ahead_s:+d}\n")
        fresh.replace(self._path)

    def step(self, by_s: int) -> None:
        self.set(self.ahead_s + by_s)
