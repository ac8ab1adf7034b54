"""An outbox over any writer of rows: what the one on disk and its twin in memory have in common."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.delivery.stores.outbox import DeadLetter, OutboxChange, OutboxContent, OutboxRecord
from stagepost.delivery.stores.outbox_rules import HEAD, THE_HEAD, OutboxBook, OutboxHead, content_of
from stagepost.delivery.stores.row_store import RowStore
from stagepost.errors import StorageError
from stagepost.ground.storage.tables import Held


class OutboxRows(RowStore[OutboxBook]):
    def __init__(self, held: Held, damage: Sequence[str]) -> None:
        super().__init__(damage)
        head: OutboxHead = held[HEAD.name][THE_HEAD]
        self._held = held
        self._nonce_prefix = head.nonce_prefix
        self._is_loose = head.is_loose
        self._last_sequence = head.next_counter - 1

    @property
    def nonce_prefix(self) -> bytes:
        return self._nonce_prefix

    def load(self) -> OutboxContent:
        self._report_damage()
        return content_of(self._held, self._damage)

    async def insert(
        self, record: OutboxRecord, dead: Sequence[DeadLetter] = (), *, replayed: int | None = None
    ) -> None:
        if record.sequence <= self._last_sequence:
            raise StorageError(
                f"sequence {record.sequence} was used already, the next one is {self._last_sequence + 1}",
                found=record.sequence,
            )
        self._last_sequence = record.sequence
        await self._writer.do(lambda book: book.insert(record, dead, replayed))

    def mark(self, change: OutboxChange) -> None:
        self._writer.soon(lambda book: book.mark(change))

    async def close(self) -> None:
        if self._is_loose:
            self._is_loose = False
            self._writer.soon(lambda book: book.tighten())
        await super().close()
