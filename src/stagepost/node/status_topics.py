"""The topic of statuses: one record for each receipt, by message id, with what is known of the layers before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from stagepost.bus.topic import Place, Record, TopicWriter
from stagepost.errors import StorageError
from stagepost.remp.receipt import Receipt
from stagepost.runtime.turn_end import turn_end

TOGETHER_MAX = 32
"""Records of one append: receipts of the largest size would still fit."""

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
        self._waiting: list[tuple[Record, Callable[[], None]]] = []

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
        self._waiting.append((record, settled))
        if len(self._waiting) == 1:
            turn_end()(self._hand_over)
        elif len(self._waiting) >= TOGETHER_MAX:
            self._hand_over()

    async def close(self) -> None:
        """What was published is written first."""
        self._hand_over()
        await self._writer.close()

    def _hand_over(self) -> None:
        """All that was published in one turn of the loop: each append wakes the thread that writes."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            records = [record for record, _ in waiting]
            self._writer.append_soon(records, lambda outcome: self._appended(waiting, outcome))

    def _appended(
        self,
        published: Sequence[tuple[Record, Callable[[], None]]],
        outcome: list[Place] | StorageError,
    ) -> None:
        for record, settled in published:
            if isinstance(outcome, StorageError):
                self._failed(outcome)
            settled()
            self.written(record)
