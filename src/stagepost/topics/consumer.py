"""The way of a group through a topic: from its last position, as the topic grows; committed after the records
were handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping

from stagepost.topics.batch import Batch
from stagepost.topics.topic import OffsetGone, Positions, TopicReader

POLL_S = 0.02
"""Seconds that a record may lie on the disk before a waiting consumer looks again."""


class Consumer:
    """Reader that gives each record at least once: records that were handled and not committed come again.

    Without a committed position it begins at the oldest record, or with `from_end` at the end. `skipped`
    counts the records that retention removed unread. A caller that must not skip records leaves `skip_gone`
    off, and gets `OffsetGone`.
    """

    def __init__(
        self,
        reader: TopicReader,
        positions: Positions,
        *,
        from_end: bool = False,
        skip_gone: bool = False,
        poll_s: float = POLL_S,
    ) -> None:
        self.skipped = 0
        self._reader = reader
        self._positions = positions
        self._skip_gone = skip_gone
        self._poll_s = poll_s
        begin = reader.end_offset if from_end else reader.start_offset
        committed = positions.committed
        self._next = {
            partition: committed[partition] if partition in committed else begin(partition)
            for partition in range(reader.partitions)
        }

    @property
    def next_offsets(self) -> Mapping[int, int]:
        """Offset of the next record of each partition."""
        return dict(self._next)

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield batches for ever: each partition in turn, each in its own order."""
        scans: dict[int, Iterator[Batch]] = {}
        while True:
            has_found = False
            for partition in self._next:
                batch = self._following(partition, scans)
                if batch is not None:
                    has_found = True
                    yield batch
            # A reader that has much to catch up on must not keep the others from running.
            await asyncio.sleep(0 if has_found else self._poll_s)

    def _following(self, partition: int, scans: dict[int, Iterator[Batch]]) -> Batch | None:
        """Return the next batch of a partition, or None. A scan goes on until the end that was there when it
        began."""
        try:
            batch = next(scans.setdefault(partition, self._scan(partition)), None)
        except OffsetGone as gone:
            if not self._skip_gone:
                raise
            self.skipped += gone.first_kept - self._next[partition]
            self._next[partition] = gone.first_kept
            batch = None
        if batch is None:
            del scans[partition]
        else:
            self._next[partition] = batch.next_offset
        return batch

    def _scan(self, partition: int) -> Iterator[Batch]:
        return self._reader.batches(partition, self._next[partition])

    async def commit(self, batch: Batch) -> None:
        """Record that this batch, and all before it in its partition, were handled; return when that is
        durable."""
        await self._positions.commit({batch.partition: batch.next_offset})
