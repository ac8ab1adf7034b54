"""A growing topic of a broker, for an event loop: a thread fetches, and nothing here waits for the network.

The records that were fetched and not taken yet are bounded; the thread pauses when the bound is reached.
`end_offset` is the offset up to which it has fetched. If a broker goes away, the thread waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stagepost.topics.batch import Batch
from stagepost.topics.kafka.positions import KafkaPositions
from stagepost.topics.kafka.topic import KafkaTopic, batches_of

log = logging.getLogger(__name__)

HELD_RECORDS_MAX = 10_000
HELD_BYTES_MAX = 16_777_216
FETCH_S = 0.1
FETCH_AT_A_TIME = 500
OLDEST = -2
"""Offset, Kafka's own number for the oldest kept record."""


class KafkaFeed:
    """`TopicReader` from the group's committed positions on; earlier offsets are not available here."""

    def __init__(self, topic: KafkaTopic, positions: KafkaPositions) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self.partitions = topic.partitions
        self._name = topic.name
        committed = positions.committed
        self._start = {one: committed.get(one, 0) for one in range(topic.partitions)}
        self._end = dict(self._start)
        self._newest = dict(self._start)
        self._taken = dict(self._start)
        self._held: dict[int, deque[Batch]] = {one: deque() for one in self._start}
        self._held_records = self._held_bytes = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._said: str | None = None
        self._consumer = Consumer(
            {
                **topic.access.client_settings(),
                "group.id": "stagepost-reading",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "queued.max.messages.kbytes": HELD_BYTES_MAX // 1_024,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic.name, one, committed.get(one, OLDEST)) for one in range(topic.partitions)]
        )
        self._thread = threading.Thread(target=self._fetch, name=f"kafka {topic.name}", daemon=True)
        self._thread.start()

    def start_offset(self, partition: int) -> int:
        return self._start[partition]

    def end_offset(self, partition: int) -> int:
        with self._changed:
            return self._end[partition]

    def batches(self, partition: int, start: int, end: int | None = None) -> Iterator[Batch]:
        """Yield the records fetched so far from `start` on. Drop the records before `start`: they were
        handled."""
        with self._changed:
            held = self._held[partition]
            self._taken[partition] = max(start, self._taken[partition])
            while held and held[0].next_offset <= start:
                gone = held.popleft()
                self._held_records -= len(gone)
                self._held_bytes -= _size(gone)
            self._changed.notify_all()
            present = list(held)
        last = 2**63 - 1 if end is None else end
        for batch in present:
            cut = batch.within(start, last)
            if len(cut):
                yield cut

    def lag(self) -> int:
        """Return the number of records at the broker that were not taken here yet, as far as the broker has
        told."""
        with self._changed:
            return sum(max(0, self._newest[one] - taken) for one, taken in self._taken.items())

    async def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._consumer.close)

    def _fetch(self) -> None:
        """Fetch until closed. Runs in the thread."""
        while self._has_room():
            by_partition: dict[int, list[Any]] = {}
            for message in self._consumer.consume(FETCH_AT_A_TIME, FETCH_S):
                if message.error() is None:
                    by_partition.setdefault(message.partition(), []).append(message)
                else:
                    self._complain(str(message.error()))
            self._take(by_partition)
            self._look_at_ends()

    def _look_at_ends(self) -> None:
        """Read the newest offsets, in the fetching thread only: the client lets one thread in at a time."""
        from confluent_kafka import TopicPartition

        for partition in self._newest:
            _, newest = self._consumer.get_watermark_offsets(
                TopicPartition(self._name, partition), cached=True
            )
            with self._changed:
                self._newest[partition] = max(newest, self._newest[partition])

    def _has_room(self) -> bool:
        """Wait until there is room; return False when the feed is closed."""
        with self._changed:
            while not self._is_closed and (
                self._held_records >= HELD_RECORDS_MAX or self._held_bytes >= HELD_BYTES_MAX
            ):
                self._changed.wait()
            return not self._is_closed

    def _take(self, by_partition: Mapping[int, Sequence[Any]]) -> None:
        for partition, messages in by_partition.items():
            for batch in batches_of(partition, messages):
                with self._changed:
                    self._held[partition].append(batch)
                    self._held_records += len(batch)
                    self._held_bytes += _size(batch)
                    self._end[partition] = batch.next_offset
                    self._said = None

    def _complain(self, text: str) -> None:
        """Log the fault once, until records come again."""
        if text != self._said:
            self._said = text
            log.warning("topic cannot be read from the broker", extra={"topic": self._name, "reason": text})


def _size(batch: Batch) -> int:
    columns = batch.columns
    return sum(len(one.content) for one in (columns.keys, columns.values, columns.headers))
