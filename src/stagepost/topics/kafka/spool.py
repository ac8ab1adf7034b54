"""The spool from a local topic to a broker, record by record and in order: records wait in the local topic
while the broker is away.

    local topic ─ Consumer ─ KafkaTopicWriter ─ delivery reports ─ position of group "kafka"

The position moves on when the broker has confirmed everything before it, and is then written to disk; so
nothing is lost whatever ends, and a successor goes on from there. Records that the broker already has
although their position was not written are found at the topic's end and not sent again.

`KafkaFarTopic` is the far end of a spool: the broker's topic, made if it is missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Protocol

import msgspec

from stagepost.errors import StagepostError, StorageError
from stagepost.topics.batch import Batch, Read
from stagepost.topics.consumer import POLL_S, Consumer
from stagepost.topics.kafka.access import KafkaAccess
from stagepost.topics.kafka.admin import BrokerDesk, TopicPlan
from stagepost.topics.kafka.topic import KafkaTopic, KafkaTopicWriter, range_consumer
from stagepost.topics.log.block import RECORDS_MAX
from stagepost.topics.topic import Place, Positions, Record, TopicReader, TopicWriter

log = logging.getLogger(__name__)

GROUP = "kafka"
UNCONFIRMED_RECORDS_MAX = 20_000
"""Records that the producer has and whose position is not on disk yet. One batch may exceed this."""

CANDIDATES_MAX = UNCONFIRMED_RECORDS_MAX + RECORDS_MAX
COMMIT_EVERY_S = 0.2
AGAIN_FIRST_S = 0.5
AGAIN_MAX_S = 5.0


class FarTopic(Protocol):
    """Topic at the broker; its factory raises `StagepostError` if the topic does not exist."""

    def writer(self) -> TopicWriter:
        """Return a writer at once, without waiting for the broker."""
        ...

    def present(self, candidates: list[Read]) -> Counter[bytes]:
        """Return those of the candidates that the topic holds already, by `digest_of`, with their counts.

        Call it in a thread: it waits for the broker.
        """
        ...


class _SentBatch(msgspec.Struct):
    """Batch that was sent."""

    partition: int
    next_offset: int
    records: int
    is_confirmed: bool = False


class SpoolCounters(msgspec.Struct):
    """Counters of a spool. `published` counts records that the broker has confirmed."""

    published: int = 0
    found_there: int = 0
    faults: int = 0


class KafkaSpool:
    """Spool of one topic. `reader` and `positions` are those of the local topic; the spool closes the
    positions."""

    def __init__(
        self,
        reader: TopicReader,
        positions: Positions,
        far: Callable[[], FarTopic],
        *,
        poll_s: float = POLL_S,
    ) -> None:
        self.counters = SpoolCounters()
        self.last_fault: str | None = None
        self._reader = reader
        self._positions = positions
        self._far = far
        self._poll_s = poll_s
        self._sent: deque[_SentBatch] = deque()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of records in the local topic that the broker has not confirmed: the lag."""
        committed, reader = self._positions.committed, self._reader
        places = range(reader.partitions)
        return sum(reader.end_offset(one) - committed.get(one, reader.start_offset(one)) for one in places)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def drained(self) -> None:
        """Return when no record waits, so that a caller can stop in order."""
        while self.waiting:
            await asyncio.sleep(self._poll_s)

    async def close(self) -> None:
        """Stop sending. Records without confirmation stay in the local topic, for the next start."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._positions.close()

    async def _run(self) -> None:
        """Run for ever. After a fault send all unconfirmed records again, from the local topic, in order."""
        pause_s = AGAIN_FIRST_S
        while True:
            published = self.counters.published
            try:
                await self._carry()
            except StagepostError as error:
                self._fault(error.text)
            except Exception as error:
                self._fault(f"an internal fault: {error!r}")
            pause_s = AGAIN_FIRST_S if self.counters.published > published else min(2 * pause_s, AGAIN_MAX_S)
            await asyncio.sleep(pause_s)

    def _fault(self, text: str) -> None:
        self.counters.faults += 1
        if text != self.last_fault:  # once: a broker that is away for a day must not fill the log
            log.warning("statuses wait for the broker", extra={"reason": text, "waiting": self.waiting})
        self.last_fault = text

    async def _carry(self) -> None:
        far = await asyncio.to_thread(self._far)
        candidates = self._candidates()
        present = await asyncio.to_thread(far.present, candidates) if candidates else Counter[bytes]()
        writer = far.writer()
        self._sent.clear()
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tasks = [
            asyncio.create_task(self._send(writer, present, len(candidates), failed)),
            asyncio.create_task(self._commit_often()),
        ]
        try:
            await asyncio.wait({*tasks, failed}, return_when=asyncio.FIRST_COMPLETED)
            for one in (failed, *tasks):
                if one.done():
                    one.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            failed.cancel()
            await asyncio.shield(self._finish(writer))

    async def _finish(self, writer: TopicWriter) -> None:
        await writer.close()
        await asyncio.sleep(0)  # answers that came from the writer's thread are heard first
        with suppress(StorageError):
            await self._commit()

    def _candidates(self) -> list[Read]:
        """Return the records that an earlier process may have sent without writing its position."""
        found: list[Read] = []
        committed = self._positions.committed
        for partition in range(self._reader.partitions):
            start = committed.get(partition, self._reader.start_offset(partition))
            for batch in self._reader.batches(partition, start):
                found += batch
                if len(found) >= CANDIDATES_MAX:
                    break
        return found

    async def _send(
        self, writer: TopicWriter, present: Counter[bytes], candidates: int, failed: asyncio.Future[None]
    ) -> None:
        consumer = Consumer(self._reader, self._positions, poll_s=self._poll_s)
        seen = 0
        async for batch in consumer.batches():
            while sum(one.records for one in self._sent) >= UNCONFIRMED_RECORDS_MAX:
                self._room.clear()
                await self._room.wait()
            reads = list(batch)
            if seen < candidates:
                reads = self._without(present, reads)
            seen += len(batch)
            self._hand_over(writer, batch, reads, failed)

    def _without(self, present: Counter[bytes], reads: list[Read]) -> list[Read]:
        missing = []
        for read in reads:
            digest = digest_of(read)
            if present[digest] > 0:
                present[digest] -= 1
                self.counters.found_there += 1
            else:
                missing.append(read)
        return missing

    def _hand_over(
        self, writer: TopicWriter, batch: Batch, reads: list[Read], failed: asyncio.Future[None]
    ) -> None:
        sent = _SentBatch(batch.partition, batch.next_offset, len(batch))
        self._sent.append(sent)
        if not reads:
            sent.is_confirmed = True
            return
        loop = asyncio.get_running_loop()

        def answered(outcome: list[Place] | StorageError) -> None:
            with suppress(RuntimeError):  # the loop is gone; the next start finds the records where they are
                loop.call_soon_threadsafe(self._answered, sent, outcome, failed)

        records = [Record(one.key, one.value, one.headers, one.timestamp_ms) for one in reads]
        writer.append_soon(records, answered)

    def _answered(
        self, sent: _SentBatch, outcome: list[Place] | StorageError, failed: asyncio.Future[None]
    ) -> None:
        if isinstance(outcome, StorageError):
            if not failed.done():
                failed.set_exception(outcome)
            return
        sent.is_confirmed = True
        self.last_fault = None
        self.counters.published += len(outcome)

    async def _commit_often(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_EVERY_S)
            await self._commit()

    async def _commit(self) -> None:
        """Commit up to the first unconfirmed batch, in each partition's order."""
        offsets: dict[int, int] = {}
        done = 0
        for one in self._sent:
            if not one.is_confirmed:
                break
            offsets[one.partition] = one.next_offset
            done += 1
        if offsets:
            await self._positions.commit(offsets)
            for _ in range(done):
                self._sent.popleft()
            self._room.set()


def digest_of(read: Read) -> bytes:
    """Return the digest by which a record is known again at the broker: of everything but its place."""
    content = (read.key, read.value, sorted(read.headers.items()), read.timestamp_ms)
    return sha256(repr(content).encode()).digest()


LOOKED_AT_MAX = 500_000
"""Records at the end of the topic that are searched. Beyond them the search stops: then some records may come twice."""

PATIENCE_S = 10.0


class KafkaFarTopic:
    """Topic at a Kafka broker. The constructor asks for it, and raises `StagepostError` if there is none."""

    def __init__(self, access: KafkaAccess, plan: TopicPlan, *, may_create: bool) -> None:
        self._topic = KafkaTopic(access, plan.name, BrokerDesk(access).require(plan, may_create=may_create))

    def writer(self) -> KafkaTopicWriter:
        return self._topic.writer()

    def present(self, candidates: list[Read]) -> Counter[bytes]:
        """Return the candidates among the records that arrived since the oldest of the candidates did."""
        wanted = {digest_of(one) for one in candidates}
        since_ms = min(one.timestamp_ms for one in candidates)
        found: Counter[bytes] = Counter()
        for partition, (start, end) in self._ranges(since_ms).items():
            for read in self._reads(partition, start, end):
                digest = digest_of(read)
                if digest in wanted:
                    found[digest] += 1
        return found

    def _ranges(self, since_ms: int) -> dict[int, tuple[int, int]]:
        from confluent_kafka import KafkaException, TopicPartition

        name, partitions = self._topic.name, self._topic.partitions
        bounds = BrokerDesk(self._topic.access).bounds(name, partitions)
        consumer = range_consumer(self._topic.access)
        try:
            asked = [TopicPartition(name, one, since_ms) for one in range(partitions)]
            answers = consumer.offsets_for_times(asked, timeout=PATIENCE_S)
        except KafkaException as error:
            raise StorageError(f"the Kafka broker does not return the offsets of {name}: {error}") from error
        finally:
            consumer.close()
        share = LOOKED_AT_MAX // partitions
        ranges = {}
        for answer in answers:
            oldest, end = bounds[answer.partition]
            start = end if answer.offset < 0 else max(oldest, answer.offset, end - share)
            ranges[answer.partition] = (start, end)
        return ranges

    def _reads(self, partition: int, start: int, end: int) -> list[Read]:
        if start >= end:
            return []
        return [read for batch in self._topic.reader().batches(partition, start, end) for read in batch]
