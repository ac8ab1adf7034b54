"""Writes of small files that a node owes its readers: the node tries each at once, and again until the disk takes it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stagepost.errors import StorageError
from stagepost.ground.files.small_files import Files, write_all

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds from a write that the disk refused to the next try."""


class OwedWrites:
    """Writes by name. A later write of the same name takes the place of one that still waits, so it must do the work of
    both. `fault` is why a write waits; None if none does."""

    def __init__(self, retry_s: float = RETRY_S) -> None:
        self.fault: StorageError | None = None
        self._retry_s = retry_s
        self._owed: dict[str, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def do(self, name: str, write: Callable[[], None]) -> None:
        """Call `write` now; if it raises `StorageError`, call it again later."""
        self._owed[name] = write
        self._try_all()

    def close(self) -> None:
        """Try once more what waits; report what is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._owed:
            self._try_all(is_last=True)

    def _try_all(self, *, is_last: bool = False) -> None:
        failed: StorageError | None = None
        for name, write in list(self._owed.items()):
            try:
                write()
            except StorageError as error:
                failed = failed or error
                if self.fault is None or is_last:
                    log.error("a file is not written", extra={"file": name, "reason": error.text})
            else:
                del self._owed[name]
        self.fault = failed
        if failed is not None and self._timer is None and not is_last:
            self._timer = asyncio.get_running_loop().call_later(self._retry_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._try_all()


class LinesFile:
    """Lines that are appended to a file, whole or not at all; `write` may be repeated after it has failed."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._files = files or Files()
        self._lines: list[bytes] = []

    def add(self, line: bytes) -> None:
        self._lines.append(line + b"\n")

    def write(self) -> None:
        """Append every line that was added and is not in the file yet; `StorageError` if the disk refuses."""
        if not self._lines:
            return
        files = self._files
        try:
            file = files.open(self._path, is_new=not self._path.exists())
            try:
                end = os.fstat(file).st_size
                try:
                    write_all(files, file, b"".join(self._lines), end)
                    files.sync(file)
                except OSError:
                    with suppress(OSError):
                        files.cut(file, end)
                    raise
            finally:
                files.close(file)
        except OSError as error:
            raise StorageError(
                f"{self._path} cannot be written: {(error.strerror or str(error)).lower()}",
                advice="check the disk and the space left on it",
            ) from error
        self._lines.clear()
