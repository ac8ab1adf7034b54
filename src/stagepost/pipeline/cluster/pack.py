"""`stagepost pipeline pack`: this package and the packages that its steps need on workers, as one archive
that Spark ships to them.

A worker unpacks the archive into the folder of its task and puts that folder on the path of its Python, which
may have nothing else installed. Compiled modules fit one Python version and one kind of machine: the archive
names both, and is refused elsewhere before anything starts.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

import stagepost
from stagepost.errors import ConfigError, StorageError
from stagepost.ground.wire.foreign_json import decode_foreign

LABEL_FILE = "stagepost-pack.json"
NEEDED_BY_STEPS = ("pyarrow", "deltalake", "msgspec", "pynacl", "prometheus-client")
"""Packages that steps and sources import on workers; their own requirements go along. Spark's own Python
comes with Spark.
"""

COMPRESSION_LEVEL = 1
"""Level 1 of 9: every worker of every run unpacks the archive, and the last tenth of its size costs a lot of
time.
"""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LEFT_OUT_FOLDERS = {"__pycache__", "tests", "include", "includes", "src"}
_LEFT_OUT_SUFFIXES = {".pyc", ".pyi", ".pyx", ".pxd", ".pxi", ".h", ".cc", ".a"}
# Parts of pyarrow that speak with services of their own kind; no step does, and they are half of its size.
_LEFT_OUT_LIBRARIES = re.compile(r"pyarrow/(lib)?(arrow)?_?(flight|s3|s3fs|gcsfs|azurefs|hdfs|orc)\b")


class Label(msgspec.Struct, frozen=True):
    """Versions and machine that an archive was made with."""

    stagepost: str
    python: str
    machine: str
    packages: dict[str, str]


class Packed(NamedTuple):
    path: Path
    files: int
    size_bytes: int
    label: Label


def pack(out: Path) -> Packed:
    """Write the archive beside its place and move it there, so that nobody ships half an archive."""
    label = this_label()
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    count = 0
    try:
        with zipfile.ZipFile(
            temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL
        ) as archive:
            archive.writestr(LABEL_FILE, msgspec.json.encode(label))
            for source, name in _files(tuple(label.packages)):
                archive.write(source, name)
                count += 1
        temporary.replace(out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write the archive {out}: {error.strerror}", advice="see --out") from error
    return Packed(out, count, out.stat().st_size, label)


def read_label(path: Path) -> Label:
    """Return the label of an archive. `ConfigError` for a file that is not such an archive, `StorageError`
    for one that cannot be read.
    """
    advice = "make one with `stagepost pipeline pack --out FILE`"
    try:
        with zipfile.ZipFile(path) as archive:
            return decode_foreign(archive.read(LABEL_FILE), Label)
    except OSError as error:
        raise StorageError(f"the archive {path} cannot be read: {error.strerror}", advice=advice) from error
    except (zipfile.BadZipFile, KeyError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is no archive of this package", advice=advice) from error


def require_fitting(path: Path) -> Label:
    """Return the label of an archive that this driver can send along; otherwise `ConfigError` naming both
    sides.
    """
    found, here = read_label(path), this_label()
    for what, theirs, ours in (
        ("stagepost", found.stagepost, here.stagepost),
        ("Python", found.python, here.python),
        ("machine", found.machine, here.machine),
    ):
        if theirs != ours:
            raise ConfigError(
                f"the archive {path} was made for {what} {theirs}, and this is {what} {ours}",
                advice="make it again with `stagepost pipeline pack`, with the Python that submits",
                found=theirs,
            )
    return found


def this_label() -> Label:
    packages = {name: found.version for name, found in _closure(NEEDED_BY_STEPS)}
    return Label(stagepost.__version__, python_version(), f"{sys.platform} {platform.machine()}", packages)


def python_version() -> str:
    """Return major and minor version: compiled modules and pickled functions depend on no more."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _closure(names: tuple[str, ...]) -> Iterator[tuple[str, Distribution]]:
    """Yield the packages, and their requirements in turn, as installed here. A requirement for other systems
    only is not here.
    """
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError as error:
            if name in names:
                raise ConfigError(
                    f"the archive needs {name}, which this Python does not have",
                    advice="pip install 'stagepost[spark]'",
                ) from error
            continue
        yield name, found
        for line in found.requires or ():
            if "extra ==" not in line and (match := _NAME.match(line)):
                waiting.append(match[0].lower())


def _files(names: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Yield the path of each file, and its name in the archive."""
    own = Path(stagepost.__file__).parent
    for path in sorted(own.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path, str(PurePosixPath(own.name, *path.relative_to(own).parts))
    for name in names:
        for file in distribution(name).files or ():
            place = Path(str(file.locate()))
            if not _is_left_out(PurePosixPath(file)) and place.is_file():
                yield place, str(PurePosixPath(file))


def _is_left_out(name: PurePosixPath) -> bool:
    return (
        ".." in name.parts  # scripts, which lie outside of the folder of packages
        or bool(_LEFT_OUT_FOLDERS & set(name.parts[:-1]))
        or name.suffix in _LEFT_OUT_SUFFIXES
        or _LEFT_OUT_LIBRARIES.match(str(name)) is not None
    )
