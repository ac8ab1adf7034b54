"""The writer of a Kafka topic, against the client library's own small broker in memory; records into batches without any."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from rigs.optional import require
from stagepost.errors import ConfigError, ErrorCode, StorageError
from stagepost.topics.kafka.access import KafkaAccess
from stagepost.topics.kafka.admin import require_client
from stagepost.topics.kafka.topic import KafkaTopic, KafkaTopicWriter, batches_of
from stagepost.topics.log.block import HEADERS_BYTES_MAX, KEY_BYTES_MAX, RECORDS_MAX, VALUE_BYTES_MAX
from stagepost.topics.log.group_commit import ROW_BYTES
from stagepost.topics.topic import Place, Record, RecordRefused, partition_of

PARTITIONS = 4
"""That the small broker gives to every topic."""

NOBODY = KafkaAccess("127.0.0.1:1")


@pytest.fixture(scope="module")
def small_broker() -> Iterator[KafkaAccess]:
    try:
        require_client()
    except ConfigError as error:
        require("kafka", error.text)
    from confluent_kafka import Producer

    holder = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "x", "log_level": 0})
    brokers = holder.list_topics(timeout=10).brokers.values()
    yield KafkaAccess(",".join(f"{one.host}:{one.port}" for one in brokers))
    del holder


def test_an_append_is_answered_with_the_place_of_each_record_by_its_key(small_broker: KafkaAccess) -> None:
    topic = KafkaTopic(small_broker, "places", PARTITIONS)
    keys = [b"key %d" % (number % 7) for number in range(50)]

    async def scene() -> list[Place]:
        writer = topic.writer()
        try:
            return await writer.append([Record(key, b"value", {"session": "s"}) for key in keys])
        finally:
            await writer.close()

    places = asyncio.run(scene())

    assert [place.partition for place in places] == [partition_of(key, PARTITIONS) for key in keys]
    for partition in range(PARTITIONS):
        offsets = [place.offset for place in places if place.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_records_without_a_key_go_round(small_broker: KafkaAccess) -> None:
    async def scene() -> list[Place]:
        writer = KafkaTopic(small_broker, "round", PARTITIONS).writer()
        try:
            return await writer.append([Record(None, b"x") for _ in range(2 * PARTITIONS)])
        finally:
            await writer.close()

    assert sorted(place.partition for place in asyncio.run(scene())) == sorted([*range(PARTITIONS)] * 2)


def test_what_a_local_topic_refuses_is_refused_and_nothing_of_it_is_sent(small_broker: KafkaAccess) -> None:
    writer = KafkaTopic(small_broker, "refused", PARTITIONS).writer()
    fitting = Record(bytes(KEY_BYTES_MAX), bytes(VALUE_BYTES_MAX))
    answers: list[object] = []
    try:
        for records in (
            [fitting, Record(bytes(KEY_BYTES_MAX + 1), b"")],
            [fitting, Record(None, bytes(VALUE_BYTES_MAX + 1))],
            [fitting, Record(None, None, {"h": "x" * HEADERS_BYTES_MAX})],
            [Record(None, None)] * (RECORDS_MAX + 1),
            [fitting] * 64,
        ):
            with pytest.raises(RecordRefused):
                writer.append_soon(records, answers.append)
        writer.append_soon([], answers.append)
    finally:
        writer.close_now()
    assert answers == [[]]


def test_beyond_what_may_wait_an_append_is_refused_and_an_end_answers_all_that_wait() -> None:
    require_client_or_skip()
    limit = 3 * (ROW_BYTES + 10)
    writer = KafkaTopicWriter(KafkaTopic(NOBODY, "waiting", 1), waiting_bytes_max=limit)
    answers: list[Any] = []

    writer.append_soon([Record(None, bytes(10))] * 3, answers.append)
    assert answers == []
    writer.append_soon([Record(None, b"")], answers.append)
    assert [one.code for one in answers] == [ErrorCode.QUEUE_FULL]
    writer.close_now(within_s=0.1)
    writer.append_soon([Record(None, b"")], answers.append)

    assert len(answers) == 3
    assert all(isinstance(one, StorageError) for one in answers)
    assert "is closed" in answers[2].text


def require_client_or_skip() -> None:
    try:
        require_client()
    except ConfigError as error:
        require("kafka", error.text)


class Message(NamedTuple):
    """As the client library hands one over: everything is a call."""

    at: int
    its_key: bytes | None = None
    its_value: bytes | None = b"v"
    its_headers: list[tuple[str, bytes | None]] | None = None
    time_ms: int = 7

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.its_key

    def value(self) -> bytes | None:
        return self.its_value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.its_headers

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time_ms


def test_a_batch_ends_where_offsets_leave_a_gap() -> None:
    found = list(batches_of(2, [Message(at) for at in (5, 6, 7, 9, 12, 13)]))

    assert [(batch.partition, batch.base_offset, len(batch)) for batch in found] == [
        (2, 5, 3),
        (2, 9, 1),
        (2, 12, 2),
    ]
    assert list(batches_of(2, [])) == []


def test_keys_values_headers_and_times_are_those_of_the_message() -> None:
    message = Message(
        3, b"k", None, [("session", b"ab"), ("odd", b"\xff"), ("none", None)], 1_700_000_000_000
    )

    (batch,) = batches_of(0, [message])
    (read,) = batch

    assert (read.offset, read.key, read.value, read.timestamp_ms) == (3, b"k", None, 1_700_000_000_000)
    assert read.headers == {"session": "ab", "odd": "�", "none": ""}


def test_what_is_larger_than_a_topic_takes_becomes_null_at_the_limit() -> None:
    at_limit = Message(
        0, bytes(KEY_BYTES_MAX), bytes(VALUE_BYTES_MAX), [("h", b"x" * (HEADERS_BYTES_MAX - 8))]
    )
    beyond = Message(
        1, bytes(KEY_BYTES_MAX + 1), bytes(VALUE_BYTES_MAX + 1), [("h", b"x" * (HEADERS_BYTES_MAX - 7))]
    )

    first, second = [read for batch in batches_of(0, [at_limit, beyond]) for read in batch]

    assert (len(first.key or b""), len(first.value or b"")) == (KEY_BYTES_MAX, VALUE_BYTES_MAX)
    assert len(first.headers["h"]) == HEADERS_BYTES_MAX - 8
    assert (second.key, second.value, second.headers) == (None, None, {})
