"""The full node of a devnet as senders of messages see it: in this process, or in one of its own, through its
folder.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Protocol

from stagepost.chain.accounts import Account
from stagepost.chain.messages import read_message
from stagepost.chain.node.reading import read_ledger
from stagepost.devnet.member import MemberProcess
from stagepost.errors import StorageError
from stagepost.full_node.from_topic import MESSAGES_TOPIC
from stagepost.full_node.full_node import OnStatus
from stagepost.full_node.running import CHAIN_FOLDER, RunningFullNode
from stagepost.ground.loop.clock import Clock
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import Record, TopicReader, TopicWriter
from stagepost.trace.session_records import load_sets

LOOK_EVERY_S = 0.05


class DevnetFront(Protocol):
    @property
    def now_ms(self) -> int: ...

    @property
    def sets(self) -> ValidatorSets:
        """Return the keys that may sign receipts."""

    @property
    def linked(self) -> int | None:
        """Return the number of validators that the full node has links to; None if that cannot be seen from
        here.
        """

    @property
    def shards(self) -> int:
        """Return the number of shards of the chain, as the full node follows it; 0 if it has not begun to."""

    @property
    def height(self) -> int:
        """Return the height of the masterchain, as the full node follows it."""

    def accounts(self, addresses: list[bytes]) -> list[Account | None]: ...

    async def submit(self, data: bytes) -> bytes:
        """Submit a message. Return its id; its statuses follow."""


class HereFront:
    def __init__(self, node: RunningFullNode) -> None:
        self._node = node

    @property
    def now_ms(self) -> int:
        return self._node.full_node.now_ms

    @property
    def sets(self) -> ValidatorSets:
        return self._node.full_node.known_sets.sets

    @property
    def linked(self) -> int | None:
        return len(self._node.links.linked)

    @property
    def shards(self) -> int:
        return len(self._node.follower.ledger.master.shards)

    @property
    def height(self) -> int:
        return self._node.follower.ledger.master.seqno

    def accounts(self, addresses: list[bytes]) -> list[Account | None]:
        return [self._node.follower.ledger.account(0, one) for one in addresses]

    async def submit(self, data: bytes) -> bytes:
        return self._node.full_node.submit(data)


class ProcessFront:
    """Writes messages to the full node's topic of messages, and reads statuses from the other topic as it
    grows.

    The process may be killed at any time: the messages are on its topic, and it goes on from there.
    """

    def __init__(self, process: MemberProcess, data: Path, clock: Clock, on_status: OnStatus) -> None:
        self.process = process
        self._data = data
        self._clock = clock
        self._on_status = on_status
        self._next: dict[int, int] = {}
        self._writer: TopicWriter
        self._reader: TopicReader
        self._reading: asyncio.Task[None]

    async def start(self) -> None:
        self._writer = create_topic(self._data, MESSAGES_TOPIC).writer()
        self._reader = create_topic(self._data, STATUSES_TOPIC).reader()
        # Statuses that an earlier run left there are not ours.
        self._next = {one: self._reader.end_offset(one) for one in range(self._reader.partitions)}
        await self.process.start()
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        await self._writer.close()
        await self.process.close()

    @property
    def now_ms(self) -> int:
        return int(self._clock.unix_s() * 1_000)

    @property
    def sets(self) -> ValidatorSets:
        return load_sets(self._data)

    @property
    def linked(self) -> int | None:
        return None

    @property
    def shards(self) -> int:
        try:
            return len(read_ledger(self._data / CHAIN_FOLDER).master.shards)
        except StorageError:
            return 0  # the full node has not begun to follow

    @property
    def height(self) -> int:
        return read_ledger(self._data / CHAIN_FOLDER).master.seqno

    def accounts(self, addresses: list[bytes]) -> list[Account | None]:
        ledger = read_ledger(self._data / CHAIN_FOLDER)
        return [ledger.account(0, one) for one in addresses]

    async def submit(self, data: bytes) -> bytes:
        message_id = read_message(data, takes_cells=False).external.message_id
        await self._writer.append([Record(message_id.hex().encode(), data)])
        return message_id

    async def _read(self) -> None:
        while True:
            for partition, start in self._next.items():
                for batch in self._reader.batches(partition, start):
                    for one in batch:
                        self._on_status(Receipt.from_json(one.value or b""))
                        self._next[partition] = one.offset + 1
            await asyncio.sleep(LOOK_EVERY_S)
