"""Lock by which one process at a time owns a file. The system releases it when its holder ends, however it ends, so nothing
has to be cleaned up after a crash."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from stagepost.errors import StorageError

SYSTEM_LOCKS = Path("/proc/locks")
"""File in which Linux lists the locks of all processes."""
_HOLDER_BYTES_MAX = 256


class LockConflict(StorageError):
    """Error: another process holds the file, or another part of this one. `found` is the name that the holder left."""


class OwnerLock:
    """Lock that is held from construction to `release`, or until the process ends. Children do not inherit it. The lock file
    itself stays, and names the last holder: by `holder`, else by its process id."""

    def __init__(self, path: Path, holder: str | None = None) -> None:
        try:
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"cannot open the lock file {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            found = os.pread(self._descriptor, _HOLDER_BYTES_MAX, 0).decode(errors="replace").strip()
            self.release()
            raise LockConflict(
                f"{path} is held by another process, {found or 'which left no number'}",
                advice="stop that process, or give this one a data folder of its own",
                found=found,
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{holder or os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock. The lock is not tried, since a process that starts at this moment would find it
    taken. Where the system does not tell, a lock file that is there counts as held."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return False
    try:
        locks = SYSTEM_LOCKS.read_text().splitlines()
    except OSError:
        return True
    return any("FLOCK" in line and f":{inode} " in line for line in locks)
