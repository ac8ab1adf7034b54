"""Builds `failing_disk.c` and gives its orders: which call of a node's store fails next, and what has been counted."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from enum import IntFlag
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("failing_disk.c")
BUILDS = Path(__file__).parents[2] / ".cache" / "hostile"
FOR_EVER = 2**60
_FIELDS = ("kinds", "fail_at", "failures", "error", "is_short", "calls", "failed", "syncs", "opens")


class NotToBeHad(Exception):
    """What a test needs is not on this machine; the text says what."""


class Calls(IntFlag):
    WRITES = 1
    SYNCS = 2
    READS = 4
    OPENS = 8
    CHANGES = WRITES | SYNCS
    ALL = WRITES | SYNCS | READS | OPENS


@cache
def shim() -> Path:
    """The library, built once for its source."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NotToBeHad("there is no C compiler (cc) on this machine, so no disk can be made to fail")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = BUILDS / f"failing-disk-{digest}.so"
    if not library.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        fresh = library.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O1", "-fPIC", "-shared", "-o", str(fresh), str(SOURCE), "-ldl"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert built.returncode == 0, f"{SOURCE.name} does not compile:\n{built.stderr}"
        fresh.rename(library)
    return library


class DiskControl:
    """Orders to the disk of one node, and its counts. `environment` is what the node must be started with."""

    def __init__(self, path: Path, name: str = "messages.sqlite") -> None:
        """`name`: calls on files count whose path has it in it."""
        self._path = path
        self._name = name
        path.write_bytes(bytes(8 * len(_FIELDS)))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8 * len(_FIELDS))

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "LD_PRELOAD": str(shim()),
            "STAGEPOST_DISK_CONTROL": str(self._path),
            "STAGEPOST_DISK_NAME": self._name,
        }

    def fail(
        self,
        at: int = 1,
        *,
        count: int = 1,
        kinds: Calls = Calls.CHANGES,
        error: int = errno.EIO,
        short: bool = False,
    ) -> None:
        """From now on the `at`-th call of these kinds fails, and those behind it until `count` have."""
        self._set("fail_at", 0)
        for name, value in (("calls", 0), ("failed", 0), ("kinds", int(kinds)), ("failures", count)):
            self._set(name, value)
        self._set("error", error)
        self._set("is_short", int(short))
        self._set("fail_at", at)

    def heal(self) -> None:
        self._set("fail_at", 0)

    @property
    def failed(self) -> int:
        """Calls that were made to fail since the last order."""
        return self._get("failed")

    @property
    def syncs(self) -> int:
        return self._get("syncs")

    @property
    def opens(self) -> int:
        return self._get("opens")

    def _get(self, name: str) -> int:
        (value,) = struct.unpack_from("=q", self._shared, 8 * _FIELDS.index(name))
        return int(value)

    def _set(self, name: str, value: int) -> None:
        struct.pack_into("=q", self._shared, 8 * _FIELDS.index(name), value)
