"""Topics of a Kafka broker behind the interface of `topics/topic.py`: written by an idempotent producer, read
by ranges of offsets.

An append is answered when every replica that must have the record has it. While the broker is away, the
producer holds its records and goes on when the broker is back, in order; records that must outlive this
process wait in a local topic (`spool.py`). A key has the same partition as in a local topic. `batches_of`
turns the records of a Kafka client into batches like those of a local topic.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from stagepost.errors import StorageError
from stagepost.topics.batch import Batch
from stagepost.topics.kafka.access import KafkaAccess
from stagepost.topics.kafka.admin import BrokerDesk
from stagepost.topics.kafka.positions import KafkaPositions
from stagepost.topics.log import block
from stagepost.topics.log.appends import AwaitedAppends
from stagepost.topics.log.block import CONTENT_BYTES_MAX, RECORDS_MAX, Row, row_of
from stagepost.topics.log.file_topic import system_now_ms
from stagepost.topics.log.group_commit import ROW_BYTES, WAITING_BYTES_MAX, queue_full
from stagepost.topics.topic import (
    Appended,
    OffsetGone,
    Place,
    Record,
    RecordRefused,
    beyond_the_end,
    partition_of,
)

_write_headers = msgspec.json.Encoder().encode


def batches_of(partition: int, messages: Sequence[Any]) -> Iterator[Batch]:
    """Yield the messages as batches, in their order. A batch has no gaps; Kafka's offsets may have some."""
    run: list[block.Row] = []
    first = content_bytes = 0
    for message in messages:
        row = row_of_message(message)
        is_next = run and message.offset() == first + len(run)
        fits = len(run) < block.RECORDS_MAX and content_bytes + row.content_bytes <= block.CONTENT_BYTES_MAX
        if run and not (is_next and fits):
            yield _batch(partition, first, run)
            run = []
        if not run:
            first, content_bytes = message.offset(), 0
        run.append(row)
        content_bytes += row.content_bytes
    if run:
        yield _batch(partition, first, run)


def row_of_message(message: Any) -> block.Row:
    """Return the message as a row.

    A key or value that is too large for a local topic becomes null, and headers that are too large are left
    out: the reader refuses such a record, as it must.
    """
    key, value, (_, timestamp_ms) = message.key(), message.value(), message.timestamp()
    headers = {str(name): _text(content) for name, content in message.headers() or ()}
    written = _write_headers(headers) if headers else b""
    return block.Row(
        None if key is None or len(key) > block.KEY_BYTES_MAX else key,
        None if value is None or len(value) > block.VALUE_BYTES_MAX else value,
        written if len(written) <= block.HEADERS_BYTES_MAX else b"",
        max(timestamp_ms, 0),
    )


def _text(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "replace")


def _batch(partition: int, first: int, rows: Sequence[block.Row]) -> Batch:
    written = block.write_block(rows, first, 0, block.NO_DIGEST)
    return Batch(partition, first, block.read_columns(written[block.HEADER_BYTES :], len(rows)), 0, len(rows))


LINGER_MS = 5
POLL_S = 0.1
CLOSE_WITHIN_S = 3.0
READ_WITHIN_S = 30.0
READ_AT_A_TIME = 1_000
FOR_EVER = 0
"""Milliseconds of a message's time-out, where 0 means none. Giving up a record while later ones go on would break the order of its key."""


class KafkaTopic:
    """Topic at a broker. Making this object costs nothing. `partitions` is the broker's number."""

    def __init__(self, access: KafkaAccess, name: str, partitions: int) -> None:
        self.access = access
        self.name = name
        self.partitions = partitions

    def writer(self, now_ms: Callable[[], int] = system_now_ms) -> KafkaTopicWriter:
        return KafkaTopicWriter(self, now_ms)

    def reader(self) -> KafkaTopicReader:
        return KafkaTopicReader(self)

    def positions(self, group: str) -> KafkaPositions:
        return KafkaPositions(self.access, self.name, self.partitions, group)


class KafkaTopicWriter:
    """Writer that calls `done` in the thread that hears the broker's answers."""

    def __init__(
        self,
        topic: KafkaTopic,
        now_ms: Callable[[], int] = system_now_ms,
        *,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        from confluent_kafka import Producer

        self.partitions = topic.partitions
        self._name = topic.name
        self._now_ms = now_ms
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._turn = 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._awaited = AwaitedAppends(self.append_soon)
        self._producer = Producer(
            {
                **topic.access.client_settings(),
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": FOR_EVER,
                # Not compressed: every client library reads that. A topic's own setting may say otherwise,
                # and then the broker compresses.
                "linger.ms": LINGER_MS,
                # Our own limit is reached first, and has an error text.
                "queue.buffering.max.messages": 2 * WAITING_BYTES_MAX // ROW_BYTES,
                "queue.buffering.max.kbytes": 16 * WAITING_BYTES_MAX // 1_024,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._hear_answers, name=f"kafka {topic.name}", daemon=True)
        self._thread.start()

    def append_soon(self, records: Sequence[Record], done: Appended) -> None:
        rows = self._rows(records)
        if not rows:
            done([])
            return
        held = sum(row.content_bytes + ROW_BYTES for row in rows)
        with self._lock:
            if self._is_closed:
                refusal: StorageError | None = StorageError(f"the writer of {self._name} is closed")
            elif self._waiting_bytes and self._waiting_bytes + held > self._waiting_bytes_max:
                refusal = queue_full(self._name, self._waiting_bytes, self._waiting_bytes_max)
            else:
                refusal = None
                self._waiting_bytes += held
        if refusal is not None:
            done(refusal)
            return
        pending = _Pending(len(rows), lambda outcome: self._settled(held, done, outcome))
        for number, (record, row) in enumerate(zip(records, rows, strict=True)):
            self._produce(record, row, number, pending)

    def _rows(self, records: Sequence[Record]) -> list[Row]:
        """Return the rows; raise `RecordRefused` for records that a local topic would refuse as well: then
        none of them is taken."""
        now_ms = self._now_ms()
        rows = [row_of(record, now_ms) for record in records]
        for found, limit, what in (
            (len(rows), RECORDS_MAX, "records"),
            (sum(row.content_bytes for row in rows), CONTENT_BYTES_MAX, "bytes"),
        ):
            if found > limit:
                raise RecordRefused(
                    f"one append may hold {limit} {what}, this one holds {found}",
                    advice="append the records in several calls",
                    limit=limit,
                    found=found,
                )
        return rows

    def _produce(self, record: Record, row: Row, number: int, pending: _Pending) -> None:
        def answered(error: Any, message: Any) -> None:
            if error is None:
                pending.settle(number, Place(message.partition(), message.offset()))
            else:
                pending.settle(number, self._failed(error))

        try:
            self._producer.produce(
                self._name,
                row.value,
                row.key,
                self._partition(row.key),
                answered,
                timestamp=row.timestamp_ms,
                headers=[(name, value.encode()) for name, value in record.headers.items()],
            )
        except Exception as error:
            # The producer has given up altogether.
            pending.settle(number, self._failed(error))

    def _partition(self, key: bytes | None) -> int:
        if key is not None:
            return partition_of(key, self.partitions)
        self._turn += 1
        return self._turn % self.partitions

    def _failed(self, error: Any) -> StorageError:
        return StorageError(
            f"the Kafka broker did not take a record of {self._name}: {error}",
            advice="read the broker's log; see the topic's settings and this user's rights",
        )

    def _settled(self, held: int, done: Appended, outcome: list[Place] | StorageError) -> None:
        with self._lock:
            self._waiting_bytes -= held
        done(outcome)

    def _hear_answers(self) -> None:
        while not self._is_closed:
            self._producer.poll(POLL_S)

    async def append(self, records: Sequence[Record]) -> list[Place]:
        return await self._awaited.append(records)

    async def close(self) -> None:
        await asyncio.to_thread(self.close_now)

    def close_now(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Close within `within_s` seconds. Unconfirmed records are answered with an error: they may be at the
        broker or not."""
        with self._lock:
            self._is_closed = True
        self._thread.join()
        if self._producer.flush(within_s):
            self._producer.purge()
            self._producer.flush(1.0)


class _Pending:
    """Append that is answered once every record has its answer. Any error is the answer."""

    def __init__(self, count: int, done: Appended) -> None:
        self._places = [Place(-1, -1)] * count
        self._left = count
        self._done = done
        self._error: StorageError | None = None
        self._lock = threading.Lock()

    def settle(self, number: int, outcome: Place | StorageError) -> None:
        with self._lock:
            if isinstance(outcome, StorageError):
                self._error = self._error or outcome
            else:
                self._places[number] = outcome
            self._left -= 1
            if self._left:
                return
        self._done(self._places if self._error is None else self._error)


class KafkaTopicReader:
    """Reader of ranges that waits for the broker: for threads and tools. A program with an event loop takes a
    `KafkaFeed`."""

    def __init__(self, topic: KafkaTopic) -> None:
        self.partitions = topic.partitions
        self._topic = topic

    def start_offset(self, partition: int) -> int:
        return self._bounds(partition)[0]

    def end_offset(self, partition: int) -> int:
        return self._bounds(partition)[1]

    def _bounds(self, partition: int) -> tuple[int, int]:
        return BrokerDesk(self._topic.access).bounds(self._topic.name, self._topic.partitions)[partition]

    def batches(self, partition: int, start: int, end: int | None = None) -> Iterator[Batch]:
        first, last = self._bounds(partition)
        if start < first:
            raise OffsetGone(self._topic.name, partition, start, first)
        end = last if end is None else end
        if max(start, end) > last:
            raise beyond_the_end(self._topic.name, partition, max(start, end), last)
        if start < end:
            yield from self._read(partition, start, end)

    def _read(self, partition: int, start: int, end: int) -> Iterator[Batch]:
        from confluent_kafka import TopicPartition

        name = self._topic.name
        consumer = range_consumer(self._topic.access)
        try:
            consumer.assign([TopicPartition(name, partition, start)])
            heard = time.monotonic()
            while start < end:
                messages = consumer.consume(READ_AT_A_TIME, POLL_S)
                for failed in (one for one in messages if one.error() is not None):
                    raise StorageError(f"{name} cannot be read from the broker: {failed.error()}")
                for batch in batches_of(partition, messages):
                    cut = batch.within(start, end)
                    if len(cut):
                        yield cut
                # Offsets without a record count as well: markers of transactions, records that were compacted
                # away.
                place = consumer.position([TopicPartition(name, partition)])[0].offset
                if messages:
                    heard, start = time.monotonic(), max(start, place)
                elif time.monotonic() - heard > READ_WITHIN_S:
                    raise StorageError(
                        f"the broker has sent no record of {name} from offset {start} on for {READ_WITHIN_S:g} s",
                        advice="check that the broker runs",
                    )
        finally:
            consumer.close()


def range_consumer(access: KafkaAccess) -> Any:
    """Return a consumer that reads the ranges assigned to it, and commits nothing."""
    from confluent_kafka import Consumer

    return Consumer(
        {
            **access.client_settings(),
            "group.id": "stagepost-reading",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
