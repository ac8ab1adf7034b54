"""Damage done to files on purpose, and programs that run in a process of their own because of what they do to it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
