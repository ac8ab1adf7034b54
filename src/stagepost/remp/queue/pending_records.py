"""Records that wait for our next block, within what one block may hold."""

from __future__ import annotations

import msgspec

from stagepost.remp.queue.records import (
    PAYLOAD_BYTES_MAX,
    RECORDS_MAX,
    Header,
    OlderHeader,
    Record,
    encode_payload,
    encode_record,
)

_FRAME_BYTES = 20
_COMMIT_BYTES = 48


class RecordLimits(msgspec.Struct, frozen=True):
    """Of one block; older networks allow less."""

    records_max: int = RECORDS_MAX
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    older_records: bool = False
    """Whether messages are announced the older way, without destination and time."""


class PendingRecords:
    def __init__(self, limits: RecordLimits) -> None:
        self._limits = limits
        self._waiting: dict[object, Record] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, record: Record) -> None:
        """What waits already is not said twice."""
        if self._limits.older_records and isinstance(record, Header):
            record = record.in_older_form
        self._waiting.setdefault(_key(record), record)

    def drop_header(self, message_id: bytes) -> None:
        """Somebody else has announced it meanwhile."""
        self._waiting.pop(("header", message_id), None)

    def next_payload(self, number: int) -> bytes | None:
        chosen: list[object] = []
        size = _FRAME_BYTES
        for key, record in self._waiting.items():
            size += len(encode_record(record)) + _COMMIT_BYTES
            if chosen and (len(chosen) >= self._limits.records_max or size > self._limits.payload_bytes_max):
                break
            chosen.append(key)
        if not chosen:
            return None
        return encode_payload([self._waiting.pop(key) for key in chosen], number)


def _key(record: Record) -> object:
    if isinstance(record, Header | OlderHeader):
        return "header", record.message_id
    return record
