"""The topic of statuses: one record for each receipt, by message id, with what is known of the layers before."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stagepost.bus.topic import Place, Record, TopicReader, TopicWriter
from stagepost.errors import DecodeError, StorageError
from stagepost.remp.receipt import Receipt

ENDS = frozenset({"Finalized", "RejectedByFullnode"})


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

    def publish(self, receipt: Receipt, session_id: bytes | None, earlier: EarlierIds) -> None:
        headers = earlier.headers()
        if session_id is not None:
            headers["session"] = session_id.hex()
        self.published += 1
        record = Record(receipt.message_id.hex().encode(), receipt.to_json().encode(), headers)
        self._writer.append_soon([record], lambda outcome: self._appended(record, outcome))

    async def close(self) -> None:
        """What was handed over is written first."""
        await self._writer.close()

    def _appended(self, record: Record, outcome: list[Place] | StorageError) -> None:
        if isinstance(outcome, StorageError):
            self._failed(outcome)
        self.written(record)


def open_messages(reader: TopicReader, now_ms: int, life_ms: int) -> dict[bytes, EarlierIds]:
    """Messages of which the topic holds no end: what a full node goes on with after a restart. `life_ms`: so long after
    the last record of a message nothing more is expected of it."""
    found: dict[bytes, EarlierIds] = {}
    ended: set[bytes] = set()
    for partition in range(reader.partitions):
        for batch in reader.batches(partition, reader.start_offset(partition)):
            if batch.timestamps[-1] < now_ms - life_ms:
                continue
            for one in batch:
                try:
                    receipt = Receipt.from_json(one.value or b"")
                except DecodeError:
                    continue  # somebody else has written it
                if receipt.kind.name in ENDS:
                    ended.add(receipt.message_id)
                    found.pop(receipt.message_id, None)
                elif receipt.message_id not in ended:
                    earlier = EarlierIds(one.headers.get("dmq_id"), one.headers.get("delivery_id"))
                    found.setdefault(receipt.message_id, earlier)
    return found
