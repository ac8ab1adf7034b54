"""Damage done to files on purpose, and programs that run in a process of their own because of what they do to it."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]


def flip(content: bytearray, place: int) -> None:
    content[place] ^= 1 << (place % 8)


def cut(content: bytearray, place: int) -> None:
    del content[place:]


def damaged(
    content: bytes, change: Callable[[bytearray, int], None], places: Iterable[int]
) -> Iterator[bytes]:
    """One copy for each place, which may be any number."""
    for place in places:
        copy = bytearray(content)
        change(copy, place % len(content))
        yield bytes(copy)


def change_row(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement, values)
    connection.commit()
    connection.close()


def files_in(folder: Path) -> dict[str, bytes | None]:
    """Every name below a folder, lock files apart: what each file holds, None for a folder or a socket."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.suffix != ".lock"
    }


def run_alone(script: str) -> str:
    """What a program prints that runs in a process of its own; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "src" + os.pathsep + "."},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


UNREADABLE = {
    "garbage": "file is not a database",
    "truncated": "malformed",
    "empty": "is empty",
    "without a table": "lacks the table counts",
    "a folder": "is not a file",
    "only its log": "is missing, but its log is there",
    "locked": "database is locked",
    "forbidden file": "",
    "forbidden folder": "permission denied",
}
"""Ways in which nobody can read a SQLite file with tables, each with a part of the reason that readers give."""

CAPABILITY_VERSION = 0x20080522
CAPABILITY_BYTES = 24
PASS_OVER_MODES = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


@contextmanager
def made_unreadable(path: Path, how: str) -> Iterator[None]:
    """Keep the file unreadable in one of the ways of `UNREADABLE`."""
    content = path.read_bytes()
    match how:
        case "garbage":
            path.write_bytes(b"these are my notes" * 500)
        case "truncated":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.write_bytes(b"")
        case "without a table":
            change_row(path, "DROP TABLE counts")
        case "a folder":
            path.unlink()
            path.mkdir()
        case "only its log":
            path.rename(path.with_name(f"{path.name}-wal"))
        case "locked":
            connection = sqlite3.connect(path, isolation_level=None)
            # A connection that locks the whole file, as a backup program or another SQLite shell may do.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            with closing(connection):
                yield
            return
        case _:
            with _forbidden(path if how == "forbidden file" else path.parent):
                yield
            return
    yield


def content_of_folder(folder: Path) -> dict[str, bytes | None]:
    """Return what lies in a folder, by name; None for what cannot be read. SQLite makes logs as it likes."""
    return {
        path.name: _content(path) for path in folder.glob("*") if not path.name.endswith(("-wal", "-shm"))
    }


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (PermissionError, IsADirectoryError):
        return None


@contextmanager
def _forbidden(path: Path) -> Iterator[None]:
    """Take every right at `path` away, also from root."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with _bound_by_modes():
            yield
    finally:
        path.chmod(mode)


@contextmanager
def _bound_by_modes() -> Iterator[None]:
    """Let the modes of files bind this thread, root's as well: give up the capabilities that pass over modes."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("Ii", CAPABILITY_VERSION, 0))
    before = ctypes.create_string_buffer(CAPABILITY_BYTES)
    if libc.capget(header, before):
        raise OSError(ctypes.get_errno(), "capget")
    effective, *rest = struct.unpack("6I", before.raw)
    bound = struct.pack("6I", effective & ~PASS_OVER_MODES, *rest)
    if libc.capset(header, ctypes.create_string_buffer(bound, CAPABILITY_BYTES)):
        raise OSError(ctypes.get_errno(), "capset")
    try:
        yield
    finally:
        if libc.capset(header, before):
            raise OSError(ctypes.get_errno(), "capset")
