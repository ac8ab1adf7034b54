"""One driver at a time writes a tables folder; a second one is told who holds it.

The system lets go of the lock when its holder ends, however it ends, so nothing has to be cleaned up after a crash.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from stagepost.errors import StorageError

LOCK_FILE = "driver.lock"
HOLDER_BYTES_MAX = 256


class DriverLock:
    """Held from construction to `release`, or until the process ends. Children do not inherit it."""

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"cannot write tables into {folder}: {error.strerror}", advice="see --out"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, HOLDER_BYTES_MAX, 0).decode(errors="replace").strip()
            self.release()
            raise StorageError(
                f"the tables in {folder} are being written by {holder or 'a process that left no name'}",
                advice="wait for it or stop it; one driver writes a tables folder at a time",
                found=holder,
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
