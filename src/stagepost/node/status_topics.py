"""The topic of statuses: one record for each receipt, by message id, with what is known of the layers before."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stagepost.bus.topic import Place, Record, TopicWriter
from stagepost.errors import StorageError
from stagepost.remp.receipt import Receipt

FINALIZED, REJECTED, SENT = "Finalized", "RejectedByFullnode", "SentToValidators"


class EarlierIds(msgspec.Struct, frozen=True):
    """The same message in the layers before this one, where it came through them."""

    dmq_id: str | None = None
    delivery_id: str | None = None

    def headers(self) -> dict[str, str]:
        found = {"dmq_id": self.dmq_id, "delivery_id": self.delivery_id}
        return {name: value for name, value in found.items() if value is not None}


class StatusTopic:
    """`failed` hears of what the disk refused, `written` of every record when the disk has it or has refused it; they may be
    called in a thread of the writer's own."""

    def __init__(
        self, writer: TopicWriter, failed: Callable[[StorageError], None] = lambda error: None
    ) -> None:
        self.published = 0
        self.written: Callable[[Record], None] = lambda record: None
        self._writer = writer
        self._failed = failed

    def publish(
        self,
        receipt: Receipt,
        session_id: bytes | None,
        earlier: EarlierIds,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        """`settled` is called as `written` is."""
        headers = earlier.headers()
        if session_id is not None:
            headers["session"] = session_id.hex()
        self.published += 1
        record = Record(receipt.message_id.hex().encode(), receipt.to_json().encode(), headers)
        self._writer.append_soon([record], lambda outcome: self._appended(record, outcome, settled))

    async def close(self) -> None:
        """What was handed over is written first."""
        await self._writer.close()

    def _appended(
        self, record: Record, outcome: list[Place] | StorageError, settled: Callable[[], None]
    ) -> None:
        if isinstance(outcome, StorageError):
            self._failed(outcome)
        settled()
        self.written(record)
