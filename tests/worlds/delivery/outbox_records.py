"""Records for the tests of outboxes and inboxes, with good defaults."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.delivery.stores.inbox import InboxRecord, InboxState
from stagepost.delivery.stores.outbox import DeadLetter, Finished, OutboxContent, OutboxRecord
from stagepost.delivery.stores.outbox_stores import SqliteOutbox

CREATED_MS = 1_750_000_000_000


def an_id(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "big"), digest_size=32).digest()


def a_record(
    sequence: int,
    *,
    key: bytes | None = None,
    payload: bytes | None = None,
    delivery_id: bytes | None = None,
    tier: Tier = Tier.QUEUED,
) -> OutboxRecord:
    return OutboxRecord(
        sequence,
        delivery_id or an_id(sequence),
        tier,
        "weather/zürich",
        f"payload {sequence}".encode() * 5 if payload is None else payload,
        sequence.to_bytes(16, "big"),
        CREATED_MS + sequence,
        key_hash=key,
        ackers=("alice", "b" * 56),
        required=2,
        last_used=sequence,
    )


def a_dead(record: OutboxRecord, error: str = "ErrQueueEvicted") -> DeadLetter:
    return DeadLetter(record, error, "pushed out by a newer one", record.created_ms + 500)


def sent(sequence: int) -> Finished:
    return Finished(sequence, DeliveryStatus.SENT, CREATED_MS + 900)


def acked(sequence: int, *acked_by: str) -> Finished:
    return Finished(sequence, DeliveryStatus.ACKED, CREATED_MS + 900, acked_by)


def seen(number: int, state: InboxState = InboxState.DONE, keep_until_ms: int = CREATED_MS) -> InboxRecord:
    return InboxRecord(an_id(number), state, keep_until_ms)


def filled(
    folder: Path, records: Sequence[OutboxRecord], marks: Sequence[Finished | DeadLetter] = ()
) -> None:
    async def main() -> None:
        store = SqliteOutbox(folder)
        store.load()
        await asyncio.gather(*(store.insert(record) for record in records))
        for mark in marks:
            store.mark(mark)
        await store.close()

    asyncio.run(main())


def loaded(folder: Path) -> OutboxContent:
    async def main() -> OutboxContent:
        store = SqliteOutbox(folder)
        content = store.load()
        await store.close()
        return content

    return asyncio.run(main())
