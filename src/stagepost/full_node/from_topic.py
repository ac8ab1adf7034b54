"""Intake of a full node from the topic of messages: the node submits each record, and the position moves on when the
statuses topic holds on disk that enough validators have the message.

After a crash in between, records come again; the full node, the queues and the chain all know a message by its id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import NamedTuple

from stagepost.errors import DecodeError, ErrorCode, StagepostError, StorageError
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.status_topic import EarlierIds
from stagepost.remp.message import MESSAGES_TOPIC as MESSAGES_TOPIC
from stagepost.topics.batch import Read
from stagepost.topics.consumer import POLL_S, Consumer
from stagepost.topics.topic import Positions, TopicReader

log = logging.getLogger(__name__)

GROUP = "full-node"
ID_BYTES = 32
TOPIC_SUBMITTER = "topic"
"""Submitter that is charged for what comes from the topic: all its writers together."""
AGAIN_S = 0.5
"""Seconds to the next try when the full node is not ready, has too much to do, or cannot write."""

COMMIT_EVERY_S = 0.2
"""Seconds between two commits of the position."""

NOT_YET = frozenset({ErrorCode.NOT_READY, ErrorCode.QUEUE_FULL, ErrorCode.STORAGE_UNAVAILABLE})
"""Codes of a refusal that passes: the same message may be taken later."""


class UncommittedRead(NamedTuple):
    """Record that was submitted and whose position is not committed. `message_id` is None if the record has no message."""

    partition: int
    next_offset: int
    message_id: bytes | None


class MessageIntake:
    """Intake from one topic. `refused` counts records that are not a message."""

    def __init__(
        self, reader: TopicReader, positions: Positions, full_node: FullNode, *, poll_s: float = POLL_S
    ) -> None:
        self.taken = 0
        self.refused = 0
        self._consumer = Consumer(reader, positions, poll_s=poll_s)
        self._positions = positions
        self._full_node = full_node
        self._waiting: deque[UncommittedRead] = deque()
        self._done: dict[int, int] = {}
        """Positions by partition that are reached and not on disk yet."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._commit_often())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._commit()
        except StorageError as error:
            # Records behind the committed position come again, and the full node knows their messages by id.
            log.error("position not committed at the end", extra={"reason": error.text})
        finally:
            self._positions.close()

    async def _run(self) -> None:
        async for batch in self._consumer.batches():
            for read in batch:
                message_id = await self._take(read)
                self._waiting.append(UncommittedRead(batch.partition, read.offset + 1, message_id))

    async def _commit_often(self) -> None:
        """Commit at intervals: validators answer within moments, but not at once."""
        while True:
            await asyncio.sleep(COMMIT_EVERY_S)
            try:
                await self._commit()
            except StorageError as error:
                log.error("position not committed", extra={"reason": error.text})

    async def _commit(self) -> None:
        """Commit up to the first record, in the order of submission, that may have to be submitted again."""
        while self._waiting and not self._is_under_way(self._waiting[0].message_id):
            done = self._waiting.popleft()
            self._done[done.partition] = done.next_offset
        if self._done:
            reached = dict(self._done)
            await self._positions.commit(reached)
            self._done = {one: at for one, at in self._done.items() if reached.get(one) != at}

    def _is_under_way(self, message_id: bytes | None) -> bool:
        return message_id is not None and self._full_node.is_under_way(message_id)

    async def _take(self, read: Read) -> bytes | None:
        while True:
            try:
                return self._submit(read)
            except StagepostError as error:
                if error.code not in NOT_YET:
                    raise
            await asyncio.sleep(AGAIN_S)

    def _submit(self, read: Read) -> bytes | None:
        key_id = _id_in(read.key)
        if key_id is None or not read.value:
            self.refused += 1
            log.error("record without a message id or without a message", extra={"offset": read.offset})
            return None
        earlier = EarlierIds(read.headers.get("dmq_id"), read.headers.get("delivery_id"))
        try:
            message_id = self._full_node.submit(read.value, earlier, TOPIC_SUBMITTER)
        except DecodeError as error:
            self.refused += 1
            self._full_node.reject(key_id, error.text, earlier)
            return key_id
        except StagepostError as error:
            if error.code is ErrorCode.MSG_DUPLICATE:
                return error.message_id  # the first submitter may be gone before the message is settled
            raise
        self.taken += 1
        return message_id


def _id_in(key: bytes | None) -> bytes | None:
    """Return the message id in `key`: 64 hexadecimal digits, or raw bytes, of which the first 32 count."""
    if key is None or len(key) < ID_BYTES:
        return None
    try:
        return bytes.fromhex(key.decode("ascii")) if len(key) == 2 * ID_BYTES else key[:ID_BYTES]
    except ValueError:
        return key[:ID_BYTES]
