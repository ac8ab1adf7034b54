"""Other people's implementations, built by their own package managers into a folder that git ignores.

A build is made once and kept under the hash of its sources. What cannot be had (no toolchain, no module or crate)
is a reason to skip; what can be had and does not compile is a failure.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from rigs.optional import require

HERE = Path(__file__).parents[1] / "tests" / "interop"
BUILDS = HERE.parents[1] / ".cache" / "interop"
BUILT_WITHIN_S = 900.0
SOURCES = ("*.go", "go.mod", "go.sum", "Cargo.toml", "*.rs")


class Unavailable(Exception):
    """A toolchain or a library that cannot be had here; `thing` is its name in `STAGEPOST_REQUIRE`."""

    def __init__(self, thing: str, reason: str) -> None:
        super().__init__(reason)
        self.thing = thing
        self.reason = reason


@cache
def go_program(name: str) -> Path:
    """For a test, which is skipped where the program cannot be had."""
    return _or_skip(build_go_program, name)


@cache
def rust_program(name: str) -> Path:
    return _or_skip(build_rust_program, name)


def _or_skip(build: Callable[[str], Path], name: str) -> Path:
    try:
        return build(name)
    except Unavailable as missing:
        require(missing.thing, missing.reason)


def build_go_program(name: str) -> Path:
    """The program in this folder, on the version of gouroboros that its go.mod names."""
    tool = _tool("go")
    # The installed toolchain or none: another one would be a download of its own.
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    with _build_folder(name, [HERE / name, HERE / "gouroboros_shared"], tool, "version") as folder:
        program = folder / name
        if not program.exists():
            sources = HERE / name
            _obtain("go", [tool, "list", "-deps", "."], sources, environment)
            _compile([tool, "build", "-buildvcs=false", "-o", f"{program}.new", "."], sources, environment)
            Path(f"{program}.new").rename(program)
        return program


def build_rust_program(name: str) -> Path:
    """The program in this folder. Built from a copy: cargo writes its lock file beside the sources."""
    tool = _tool("cargo")
    environment = {**os.environ, "CARGO_TARGET_DIR": "target"}
    with _build_folder(name, [HERE / name], tool, "--version") as folder:
        program = folder / f"{name}-peer"
        if not program.exists():
            sources = folder / "sources"
            shutil.rmtree(sources, ignore_errors=True)
            shutil.copytree(HERE / name, sources)
            _obtain("rust", [tool, "fetch"], sources, environment)
            _compile([tool, "build", "--offline", "--quiet"], sources, environment)
            (sources / "target" / "debug" / program.name).rename(program)
            shutil.rmtree(sources)
        return program


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise Unavailable("rust" if name == "cargo" else name, f"there is no {name} on this machine")
    return path


@contextmanager
def _build_folder(name: str, sources: Sequence[Path], tool: str, version: str) -> Iterator[Path]:
    """The folder of this build, ours alone while it is being made. Builds of older sources are removed."""
    digest = hashlib.sha256(subprocess.run([tool, version], capture_output=True, check=True).stdout)
    for folder in sources:
        for path in sorted(path for pattern in SOURCES for path in folder.rglob(pattern)):
            digest.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes())
    BUILDS.mkdir(parents=True, exist_ok=True)
    ours = BUILDS / f"{name}-{digest.hexdigest()[:16]}"
    with (BUILDS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for older in BUILDS.glob(f"{name}-*"):
            if older != ours:
                shutil.rmtree(older)
        ours.mkdir(exist_ok=True)
        yield ours


def _obtain(thing: str, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    result = _run(command, folder, environment)
    if result.returncode:
        reason = f"`{Path(command[0]).name} {command[1]}` cannot get what it needs: {_last(result)}"
        raise Unavailable(thing, reason)


def _compile(command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    result = _run(command, folder, environment)
    assert result.returncode == 0, f"{' '.join(command)} in {folder} failed:\n{result.stderr}"


def _run(
    command: Sequence[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILT_WITHIN_S,
        check=False,
    )


def _last(result: subprocess.CompletedProcess[str]) -> str:
    return (result.stderr.strip().splitlines() or ["it says nothing"])[-1]
