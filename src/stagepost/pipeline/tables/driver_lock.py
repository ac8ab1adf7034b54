"""Lock of a tables folder: one driver at a time writes there, and a second one is told who holds it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from stagepost.errors import StorageError
from stagepost.ground.files.owner_lock import LockConflict, OwnerLock

LOCK_FILE = "driver.lock"


class DriverLock:
    """Lock that is held from construction to `release`, or until the process ends."""

    def __init__(self, folder: Path) -> None:
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = OwnerLock(folder / LOCK_FILE, holder)
        except LockConflict as error:
            raise StorageError(
                f"the tables in {folder} are being written by {error.found or 'a process that left no name'}",
                advice="wait for it or stop it; one driver writes a tables folder at a time",
                found=error.found,
            ) from error
        except (OSError, StorageError) as error:
            reason = error if isinstance(error, OSError) else error.__cause__
            raise StorageError(
                f"cannot write tables into {folder}: {getattr(reason, 'strerror', None)}", advice="see --out"
            ) from error

    def release(self) -> None:
        self._lock.release()
