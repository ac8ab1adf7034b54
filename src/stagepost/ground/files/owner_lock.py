"""A lock by which one process at a time owns a file; the system releases it when its holder ends, however it
ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from stagepost.errors import StorageError

_HOLDER_BYTES_MAX = 64


class LockConflict(StorageError):
    """Failure to take a lock that another process holds, or another part of this process."""


class OwnerLock:
    """Lock held from construction to `release`. The lock file itself stays, and names the last holder."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"cannot open the lock file {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, _HOLDER_BYTES_MAX, 0).decode(errors="replace").strip()
            self.release()
            raise LockConflict(
                f"{path} is held by another process, {holder or 'which left no number'}",
                advice="stop that process, or give this one a data folder of its own",
                found=holder,
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
