"""Common part of outbox and inbox: the folder that one process owns, rows behind a writer, damage that is reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from stagepost.delivery.errors import ErrQueueCorrupt, ErrQueueLocked
from stagepost.delivery.stores.outbox import OnStorageError
from stagepost.errors import StagepostError
from stagepost.ground.files.owner_lock import LockConflict, OwnerLock
from stagepost.ground.storage.group_writer import DraftBook, RowWriter
from stagepost.ground.storage.owned_folder import open_owned
from stagepost.ground.storage.sqlite_file import Connect
from stagepost.ground.storage.table_file import TableFile
from stagepost.ground.storage.tables import AnyTable

B = TypeVar("B", bound=DraftBook)


class RowStore(Generic[B]):
    """Made by its subclasses, which open what the rows are kept in."""

    _writer: RowWriter[B]

    def __init__(self, damage: Sequence[str]) -> None:
        self.on_storage_error: OnStorageError | None = None
        self._damage = tuple(damage)

    async def flush(self) -> None:
        await self._writer.do(_nothing)

    async def close(self) -> None:
        await self._writer.close()

    def kill(self) -> None:
        self._writer.kill()

    def _report_damage(self) -> None:
        for sentence in self._damage:
            self._report(ErrQueueCorrupt(sentence))

    def _report(self, error: StagepostError) -> None:
        if self.on_storage_error is not None:
            self.on_storage_error(error)


def _nothing(book: DraftBook) -> None:
    """Done when everything before it is done."""


def open_queue_folder(
    folder: Path, name: str, tables: Sequence[AnyTable], what: str, connect: Connect
) -> tuple[TableFile, OwnerLock]:
    """Open the folder and take it; `ErrQueueLocked` names the process that has it."""
    try:
        return open_owned(folder, name, tables, what, connect)
    except LockConflict as error:
        raise ErrQueueLocked(error.text, advice=error.advice, found=error.found) from error
