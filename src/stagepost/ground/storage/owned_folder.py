"""A folder with one table file: of this user, and of one process at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stagepost.ground.files.data_folder import make_private
from stagepost.ground.files.owner_lock import LockConflict, OwnerLock, is_held
from stagepost.ground.storage.layout import Beginning
from stagepost.ground.storage.sqlite_file import Connect
from stagepost.ground.storage.table_file import TableFile
from stagepost.ground.storage.tables import AnyTable

LOCK_FILE = "owner.lock"


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
    """Return the process that has the folder; None if nobody has."""
    try:
        process = int((path / LOCK_FILE).read_text())
        os.kill(process, 0)
    except (OSError, ValueError):
        return None
    return process if is_held(path / LOCK_FILE) else None
