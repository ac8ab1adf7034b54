"""The positions of a group in a topic of a broker, kept by the broker like those of Kafka's own groups."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from stagepost.errors import StorageError
from stagepost.topics.kafka.access import KafkaAccess
from stagepost.topics.kafka.admin import LOOK_EVERY_S, require_client
from stagepost.topics.topic import require_name

COMMIT_WITHIN_S = 5.0
READ_WITHIN_S = 15.0
CLOSE_WITHIN_S = 3.0

_Job = tuple[list[Any], Future[None]]


class KafkaPositions:
    """Positions of one group. The constructor waits for the broker and reads the committed positions. Close
    it.

    A group has no members here: every process reads all partitions, and two processes of one group name would
    overwrite each other's positions. A consumer that consumes nothing reads and commits: the client library's
    other way, its administration client, ends the process when the broker's group coordinator is not ready
    yet, as it is for a moment after every start.
    """

    def __init__(self, access: KafkaAccess, topic: str, partitions: int, group: str) -> None:
        require_client()
        from confluent_kafka import Consumer

        self._topic = topic
        self._group = require_name(group, "group of readers")
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_closed = False
        self._consumer = Consumer(
            {
                **access.client_settings(),
                "group.id": group,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            self._committed = self._read(partitions)
        except BaseException:
            self._consumer.close()
            raise
        self._thread = threading.Thread(target=self._commit_all, name=f"kafka group {group}", daemon=True)
        self._thread.start()

    @property
    def committed(self) -> Mapping[int, int]:
        return dict(self._committed)

    async def commit(self, offsets: Mapping[int, int]) -> None:
        from confluent_kafka import TopicPartition

        if not offsets:
            return
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        answer: Future[None] = Future()
        self._jobs.put((places, answer))
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(answer)), COMMIT_WITHIN_S)
        except TimeoutError as error:
            raise self._failed("committed", f"no answer within {COMMIT_WITHIN_S:g} s") from error
        self._committed |= dict(offsets)

    def close(self) -> None:
        """Stop the thread; further calls do nothing. Do not wait for a broker that is away."""
        if not self._is_closed:
            self._is_closed = True
            self._jobs.put(None)
            self._thread.join(CLOSE_WITHIN_S)

    def _commit_all(self) -> None:
        """Commit all jobs. Runs in the thread, which alone uses the client: the client lets one thread in at
        a time."""
        while (job := self._jobs.get()) is not None:
            places, answer = job
            try:
                done = self._consumer.commit(offsets=places, asynchronous=False)
            except Exception as error:
                answer.set_exception(self._failed("committed", error))
                continue
            failed = next((place.error for place in done if place.error is not None), None)
            if failed is None:
                answer.set_result(None)
            else:
                answer.set_exception(self._failed("committed", failed))
        self._consumer.close()

    def _read(self, partitions: int) -> dict[int, int]:
        from confluent_kafka import KafkaException, TopicPartition

        places = [TopicPartition(self._topic, one) for one in range(partitions)]
        ends = time.monotonic() + READ_WITHIN_S
        while True:
            try:
                found = self._consumer.committed(places, timeout=COMMIT_WITHIN_S)
                for place in found:
                    if place.error is not None:
                        raise KafkaException(place.error)
                return {place.partition: place.offset for place in found if place.offset >= 0}
            except KafkaException as error:
                # The group coordinator of a broker that has just started takes a moment.
                if time.monotonic() > ends:
                    raise self._failed("read", error) from error
                time.sleep(LOOK_EVERY_S)

    def _failed(self, what: str, error: object) -> StorageError:
        return StorageError(
            f"the position of group {self._group} in {self._topic} cannot be {what} at the Kafka broker: {error}",
            advice="check that the broker runs, and that this user may read with that group",
        )
