"""Common part of outbox and inbox: rows behind a writer, damage that is reported, an end in good order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from stagepost.delivery.errors import ErrQueueCorrupt
from stagepost.delivery.stores.outbox import OnStorageError
from stagepost.errors import StagepostError
from stagepost.ground.storage.group_writer import DraftBook, RowWriter

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
