"""Rules for the rows of an inbox, the same in memory and on disk."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec

from stagepost.delivery.stores.inbox import InboxContent, InboxRecord, InboxState
from stagepost.ground.storage.tables import Draft, Held, Table

RECORDS = Table("inbox", bytes, InboxRecord)
TABLES = (RECORDS,)
OLD_NEWS_MAX = 1_000


class InboxQueue:
    """Records by the time at which they may go, and old news about them, which is skipped when its turn comes.

    Entries that a draft has used up are put back if the draft did not come to pass.
    """

    def __init__(self, held: Held, capacity: int) -> None:
        self._capacity = capacity
        self._held: dict[bytes, InboxRecord] = held[RECORDS.name]
        self._heap: list[tuple[int, bytes]] = []
        self._used: list[tuple[int, bytes]] = []
        self._draft = Draft(held)
        self._overflowed_before = 0
        self._overflowed_in_draft = 0
        self._rebuild()

    @property
    def overflowed(self) -> int:
        return self._overflowed_before + (self._overflowed_in_draft if self._draft.is_settled else 0)

    def begin(self, draft: Draft) -> None:
        self._overflowed_before = self.overflowed
        self._overflowed_in_draft = 0
        if not self._draft.is_settled:
            for entry in self._used:
                heapq.heappush(self._heap, entry)
        self._used.clear()
        self._draft = draft
        if len(self._heap) > 2 * len(self._held) + OLD_NEWS_MAX:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(record.keep_until_ms, record.delivery_id) for record in self._held.values()]
        heapq.heapify(self._heap)

    def add(self, record: InboxRecord) -> None:
        heapq.heappush(self._heap, (record.keep_until_ms, record.delivery_id))

    def soonest(self) -> InboxRecord | None:
        """The record that would be dropped first; it stays until somebody drops it."""
        while self._heap:
            keep_until_ms, delivery_id = self._heap[0]
            record = self._draft.get(RECORDS, delivery_id)
            if record is not None and record.keep_until_ms == keep_until_ms:
                return record
            self._used.append(heapq.heappop(self._heap))
        return None

    def make_room(self) -> None:
        for _ in range(self._draft.count(RECORDS) - self._capacity):
            record = self.soonest()
            assert record is not None
            self._draft.drop(RECORDS, record.delivery_id)
            self._overflowed_in_draft += 1


class InboxBook:
    def __init__(self, draft: Draft, queue: InboxQueue) -> None:
        self._draft = draft
        self._queue = queue
        queue.begin(draft)

    def put(self, record: InboxRecord) -> None:
        """A claim stays, and the time to keep it never goes back."""
        before = self._draft.get(RECORDS, record.delivery_id)
        if before is not None:
            record = msgspec.structs.replace(
                record,
                keep_until_ms=max(before.keep_until_ms, record.keep_until_ms),
                is_claimed=before.is_claimed or record.is_claimed,
            )
        self._write(record, before)

    def claim(self, delivery_id: bytes, keep_until_ms: int) -> bool:
        before = self._draft.get(RECORDS, delivery_id)
        if before is not None and before.is_claimed:
            return False
        state = InboxState.PROCESSING if before is None else before.state
        self.put(
            InboxRecord(delivery_id, state, keep_until_ms, 0 if before is None else before.verdict, True)
        )
        return True

    def release(self, delivery_id: bytes) -> None:
        before = self._draft.get(RECORDS, delivery_id)
        if before is not None and before.is_claimed:
            self._write(msgspec.structs.replace(before, is_claimed=False), before)

    def expire(self, now_ms: int) -> None:
        while (record := self._queue.soonest()) is not None and record.keep_until_ms < now_ms:
            self._draft.drop(RECORDS, record.delivery_id)

    def _write(self, record: InboxRecord, before: InboxRecord | None) -> None:
        if record == before:
            return
        self._draft.put(RECORDS, record.delivery_id, record)
        if before is None or before.keep_until_ms != record.keep_until_ms:
            self._queue.add(record)

    def finish(self) -> None:
        self._queue.make_room()


def content_of(held: Held, damage: Sequence[str]) -> InboxContent:
    return InboxContent(tuple(held[RECORDS.name].values()), tuple(damage))
