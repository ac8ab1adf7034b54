"""The folder of an outbox or an inbox, with the errors that reliable delivery promises."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stagepost.delivery.errors import ErrQueueLocked
from stagepost.ground.files.owner_lock import LockConflict, OwnerLock
from stagepost.ground.storage.owned_folder import open_owned
from stagepost.ground.storage.sqlite_file import Connect
from stagepost.ground.storage.table_file import TableFile
from stagepost.ground.storage.tables import AnyTable


def open_queue_folder(
    folder: Path, name: str, tables: Sequence[AnyTable], what: str, connect: Connect
) -> tuple[TableFile, OwnerLock]:
    """Open the folder and take it; `ErrQueueLocked` names the process that has it."""
    try:
        return open_owned(folder, name, tables, what, connect)
    except LockConflict as error:
        raise ErrQueueLocked(error.text, advice=error.advice, found=error.found) from error
