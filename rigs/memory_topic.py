"""A topic in memory, for tests and simulation: the same interface and the same rules, with faults from a
seed."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

import msgspec

from stagepost.errors import StorageError
from stagepost.topics.batch import Batch
from stagepost.topics.log import block
from stagepost.topics.log.appends import PendingAppend, Routed, Router, answer
from stagepost.topics.log.group_commit import ROW_BYTES, WAITING_BYTES_MAX, queue_full
from stagepost.topics.topic import (
    Appended,
    OffsetGone,
    Place,
    Record,
    beyond_the_end,
    require_name,
    require_partitions,
)

BYTES_MAX = 67_108_864
"""Bytes of one topic: beyond them, the disk is full."""


class MemoryFaults(msgspec.Struct, frozen=True):
    """Faults of a topic: `failure_rate` of all group commits fail; each takes up to `delay_s_max` seconds."""

    seed: int = 0
    failure_rate: float = 0.0
    delay_s_max: float = 0.0


class _Partition:
    """Blocks as they would stand in a file, with the offset at which each begins."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.digest = block.NO_DIGEST
        self.bases: list[int] = []
        self.blocks: list[bytes] = []

    def append(self, rows: Sequence[block.Row], now_ms: int) -> int:
        written = block.write_block(rows, self.end_offset, now_ms, self.digest)
        self.bases.append(self.end_offset)
        self.blocks.append(written)
        self.digest = written[block.FIELDS_BYTES : block.HEADER_BYTES]
        self.end_offset += len(rows)
        return self.bases[-1]


class _AppendedGroup(NamedTuple):
    routed: Routed
    pending: PendingAppend


class MemoryTopic:
    """Topic that outlives its writers, as a disk outlives processes: `crash` ends the present writer, and its
    unsynced records are lost."""

    def __init__(
        self,
        name: str,
        partitions: int = 1,
        *,
        faults: MemoryFaults = MemoryFaults(),  # noqa: B008  # frozen
        bytes_max: int = BYTES_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        self.name = require_name(name, "topic")
        self.partitions = require_partitions(partitions)
        self.is_full = False
        self.faults = faults
        self.chance = Random(faults.seed)
        self.bytes_max = bytes_max
        self.waiting_bytes_max = waiting_bytes_max
        self.held: list[_Partition] = [_Partition() for _ in range(partitions)]
        self.positions_of: dict[str, dict[int, int]] = {}
        self.bytes = 0
        self._writer: MemoryTopicWriter | None = None

    def writer(
        self, now_ms: Callable[[], int] | None = None, *, retry_s: float | None = None
    ) -> MemoryTopicWriter:
        """Return the writer; it uses the running loop's clock by default. With `retry_s` it is a
        `RetryingWriter`."""
        if self._writer is not None:
            raise StorageError(f"topic {self.name} is held by another writer", advice="close that one first")
        self._writer = MemoryTopicWriter(self, now_ms or _loop_ms, retry_s)
        return self._writer

    def reader(self) -> MemoryTopicReader:
        return MemoryTopicReader(self)

    def positions(self, group: str) -> MemoryPositions:
        return MemoryPositions(self, require_name(group, "group of readers"))

    def crash(self) -> None:
        """End the writing process. Appends under way have not happened, and are answered so."""
        if self._writer is not None:
            self._writer.abandon()

    def release(self) -> None:
        self._writer = None

    def forget_before(self, partition: int, offset: int) -> None:
        """Remove whole blocks before `offset`, as retention does."""
        held = self.held[partition]
        gone = max(0, bisect_right(held.bases, offset) - 1)
        self.bytes -= sum(map(len, held.blocks[:gone]))
        del held.bases[:gone], held.blocks[:gone]
        held.start_offset = held.bases[0] if held.bases else held.end_offset

    def append(self, partition: int, rows: Sequence[block.Row], now_ms: int) -> int:
        held = self.held[partition]
        offset = held.append(rows, now_ms)
        self.bytes += len(held.blocks[-1])
        return offset


def _loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1_000)


class MemoryTopicWriter:
    """Writer for one event loop. Appends that come while a group is under way make up the next one."""

    def __init__(self, topic: MemoryTopic, now_ms: Callable[[], int], retry_s: float | None) -> None:
        self.partitions = topic.partitions
        self.fault: StorageError | None = None
        self._retry_s = retry_s
        self._topic = topic
        self._now_ms = now_ms
        self._router = Router(topic.name, topic.partitions, range(topic.partitions))
        self._jobs: list[_AppendedGroup] = []
        self._waiting_bytes = 0
        self._group: list[_AppendedGroup] = []
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._is_closed = False

    def append_soon(self, records: Sequence[Record], done: Appended) -> None:
        routed = self._router.routed(records, self._now_ms())
        pending = PendingAppend(routed, done)
        if self._is_closed:
            _settle_all(
                [_AppendedGroup(routed, pending)], StorageError(f"the writer of {self._topic.name} is closed")
            )
        elif self._retry_s is None and self._waiting_bytes > self._topic.waiting_bytes_max:
            full = queue_full(self._topic.name, self._waiting_bytes, self._topic.waiting_bytes_max)
            _settle_all([_AppendedGroup(routed, pending)], full)
        elif routed:
            self._jobs.append(_AppendedGroup(routed, pending))
            self._waiting_bytes += _held_bytes(routed)
            if self._timer is None:
                self._begin()

    async def append(self, records: Sequence[Record]) -> list[Place]:
        appended: asyncio.Future[list[Place]] = asyncio.get_running_loop().create_future()
        self.append_soon(records, partial(answer, appended))
        return await appended

    async def close(self) -> None:
        self._is_closed = True
        while self._timer is not None:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self._topic.release()

    def abandon(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left, self._group, self._jobs = self._group + self._jobs, [], []
        self._topic.release()
        _settle_all(left, StorageError(f"the writer of {self._topic.name} is gone"))

    def _begin(self) -> None:
        delay_s = self._topic.chance.uniform(0.0, self._topic.faults.delay_s_max)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._commit)

    def _commit(self) -> None:
        self._timer = None
        self._group, self._jobs, self._waiting_bytes = self._jobs, [], 0
        topic, group = self._topic, self._group
        reason = self._failure(group)
        if reason is not None:
            self.fault = StorageError(
                f"topic {topic.name} cannot be written: {reason}",
                advice="check the disk and the space left on it",
                reason=reason,
            )
            if self._retry_s is not None and not self._is_closed:
                self._group, self._jobs = [], group
                self._waiting_bytes = sum(_held_bytes(job.routed) for job in group)
                self._timer = asyncio.get_running_loop().call_later(self._retry_s, self._commit)
                return
            _settle_all(group, self.fault)
        else:
            self.fault = None
            for routed, pending in group:
                for partition, (rows, _) in routed.items():
                    pending.settle(partition, topic.append(partition, rows, self._now_ms()))
        self._group = []
        if self._jobs:
            self._begin()
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _failure(self, group: Sequence[_AppendedGroup]) -> str | None:
        topic = self._topic
        wanted = sum(_held_bytes(job.routed) for job in group)
        if topic.is_full or topic.bytes + wanted > topic.bytes_max:
            return "no space left on device"
        return "input/output error" if topic.chance.random() < topic.faults.failure_rate else None


def _held_bytes(routed: Routed) -> int:
    return sum(row.content_bytes + ROW_BYTES for rows, _ in routed.values() for row in rows)


def _settle_all(jobs: Sequence[_AppendedGroup], error: StorageError) -> None:
    for routed, pending in jobs:
        for partition in routed:
            pending.settle(partition, error)


class MemoryTopicReader:
    def __init__(self, topic: MemoryTopic) -> None:
        self.partitions = topic.partitions
        self._topic = topic

    def start_offset(self, partition: int) -> int:
        return self._topic.held[partition].start_offset

    def end_offset(self, partition: int) -> int:
        return self._topic.held[partition].end_offset

    def batches(self, partition: int, start: int, end: int | None = None) -> Iterator[Batch]:
        held = self._topic.held[partition]
        if start < held.start_offset:
            raise OffsetGone(self._topic.name, partition, start, held.start_offset)
        end = held.end_offset if end is None else end
        if max(start, end) > held.end_offset:
            raise beyond_the_end(self._topic.name, partition, max(start, end), held.end_offset)
        while start < end:
            if start < held.start_offset:
                raise OffsetGone(self._topic.name, partition, start, held.start_offset)
            written = held.blocks[bisect_right(held.bases, start) - 1]
            header = block.read_header(written)
            columns = block.read_columns(written[block.HEADER_BYTES :], header.records)
            whole = Batch(partition, header.base_offset, columns, 0, header.records)
            yield whole.within(start, end)
            start = min(whole.next_offset, end)


class MemoryPositions:
    """Positions of a group, which stay with the topic."""

    def __init__(self, topic: MemoryTopic, group: str) -> None:
        self._held = topic.positions_of.setdefault(group, {})

    @property
    def committed(self) -> Mapping[int, int]:
        return dict(self._held)

    async def commit(self, offsets: Mapping[int, int]) -> None:
        self._held.update(offsets)

    def close(self) -> None:
        """Do nothing: nothing is held."""
