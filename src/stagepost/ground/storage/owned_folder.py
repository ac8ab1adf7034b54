"""A folder with one table file: of this user, and of one process at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stagepost.ground.files.data_folder import make_private
from stagepost.ground.files.owner_lock import LockConflict, OwnerLock
from stagepost.ground.storage.layout import Beginning
from stagepost.ground.storage.sqlite_file import Connect
from stagepost.ground.storage.table_file import TableFile
from stagepost.ground.storage.tables import AnyTable

LOCK_FILE = "owner.lock"
SYSTEM_LOCKS = Path("/proc/locks")


def open_owned(
    folder: Path,
    name: str,
    tables: Sequence[AnyTable],
    what: str,
    connect: Connect,
    begins: Beginning | None = None,
) -> tuple[TableFile, OwnerLock]:
    """Make the folder if need be, and take it; `LockConflict` names the process that has it."""
    make_private(folder, f"{what} folder", advice=f"choose another folder for the {what}")
    try:
        lock = OwnerLock(folder / LOCK_FILE)
    except LockConflict as error:
        raise LockConflict(
            f"the {what} in {folder} is in use by process {error.found or 'without a number'}",
            advice="stop that process, or choose another folder",
            found=error.found,
        ) from error
    try:
        return TableFile(folder / name, tables, f"{what} in", connect=connect, begins=begins), lock
    except BaseException:
        lock.release()
        raise


def holder(path: Path) -> int | None:
    """The process that has the folder; None if nobody has.

    The lock is not tried, since a process that starts at this moment would find it taken.
    """
    try:
        process = int((path / LOCK_FILE).read_text())
        os.kill(process, 0)
        inode = (path / LOCK_FILE).stat().st_ino
    except (OSError, ValueError):
        return None
    try:
        locks = SYSTEM_LOCKS.read_text().splitlines()
    except OSError:
        return process  # the last holder lives; this system does not tell more
    is_held = any("FLOCK" in line and f":{inode} " in line for line in locks)
    return process if is_held else None
