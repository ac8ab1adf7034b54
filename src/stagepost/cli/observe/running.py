"""The observer behind `stagepost observe`: messages of a DMQ node and stake of a cardano-node, into figures and topics."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stagepost.dmq.endpoints.connection import LocalNode
from stagepost.dmq.endpoints.message_stream import ListenLimits, MessageStream
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.mithril.observatory import Observatory
from stagepost.dmq.mithril.parameters import LotteryParameters, known_parameters
from stagepost.dmq.mithril.stake_parts import decode_stake_part, stake_parts
from stagepost.dmq.node.cardano_source import CardanoSource
from stagepost.dmq.node.config import CardanoAccess
from stagepost.dmq.profiles import profile_named
from stagepost.dmq.validation import check_proof
from stagepost.errors import ConfigError, StagepostError
from stagepost.ground.files.owner_lock import LockConflict
from stagepost.ground.files.small_files import Files, replace_durably
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.net.network import SocketNetwork
from stagepost.ground.net.sockets import CONNECT_TIMEOUT_S
from stagepost.pipeline.sources.dmq_collector import Retained, open_retained
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.topics.log.file_topic import FileTopicWriter, create_topic, open_topic
from stagepost.topics.topic import DMQ_MESSAGES, STAKE, Record

NO_SETS = b'{"sessions": []}\n'
REPLAYED_MAX = 20_000
"""Records of an earlier run that are read again at the start, at most."""
LOOK_EVERY_S = 0.2
FIRST_STAKE_WITHIN_S = 10.0
"""Seconds that the end of a run waits for the first stake of a cardano-node that answers slowly."""


@dataclass(frozen=True)
class ObserveOptions:
    """The two sockets, and where and for how long to record. `cardano_socket` None: stake stays unknown."""

    socket: Path
    network_magic: int
    profile: str
    cardano_socket: Path | None
    cardano_magic: int
    parameters: LotteryParameters | None
    record: Path | None
    idle_timeout_s: float | None
    duration_s: float | None
    every_s: float


@dataclass
class Observer:
    """Run of the observer. `show` is called every so often, and at the end."""

    options: ObserveOptions
    show: Callable[[Observer], None]
    say: Callable[[str], None]
    live: Observatory = field(default_factory=Observatory)
    invalid: int = 0
    stake_words: str = "stake unknown: no --cardano-socket was given"
    _recorder: Recorder | None = None
    _source: CardanoSource | None = None
    _said_of_node: str | None = None

    async def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="stagepost-observe-") as scratch:
            if self.options.record is not None:
                self._recorder = Recorder(self.options.record)
                self._recorder.replay(self.live)
            tasks = [asyncio.create_task(self._show_again())]
            if self.options.cardano_socket is not None:
                access = CardanoAccess(self.options.cardano_socket, self.options.cardano_magic)
                folder = self.options.record or Path(scratch)
                self._source = CardanoSource(access, SocketNetwork(), SystemClock(), folder)
                self._source.load()
                tasks += [
                    asyncio.create_task(self._source.watch()),
                    asyncio.create_task(self._follow_stake()),
                ]
            try:
                async with asyncio.timeout(self.options.duration_s):
                    await self._listen()
                    await self._await_stake()
            except TimeoutError:
                pass
            finally:
                for task in tasks:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                if self._recorder is not None:
                    self._recorder.close()
            for outcome in outcomes:
                if isinstance(outcome, StagepostError):
                    raise outcome
        self.show(self)

    async def _listen(self) -> None:
        options = self.options
        node = LocalNode(
            options.socket,
            options.network_magic,
            profile_named(options.profile),
            SocketNetwork(),
            CONNECT_TIMEOUT_S,
        )
        limits = ListenLimits(idle_timeout_s=options.idle_timeout_s)
        async with MessageStream(node, limits, SystemClock(), self._on_connection) as stream:
            async for message in stream:
                await self._take(message)

    def _on_connection(self, error: StagepostError | None) -> None:
        said = None if error is None else f"the DMQ node is away, trying again: {error.text}"
        if said is not None and said != self._said_of_node:
            self.say(said)
        self._said_of_node = said

    async def _take(self, message: DmqMessage) -> None:
        arrived_ms = None if self._recorder is None else await self._recorder.keep_message(message)
        if arrived_ms is None:
            arrived_ms = time.time_ns() // 1_000_000
        if check_proof(message) is None:
            self.live.hear(message, arrived_ms)
        else:
            self.invalid += 1

    async def _follow_stake(self) -> None:
        assert self._source is not None
        seen = None
        while True:
            record = self._source.record
            if record is not None and record is not seen:
                seen = record
                parameters = self.options.parameters or known_parameters(record.network_magic, record.epoch)
                for part in stake_parts(record, parameters):
                    self.live.learn(part)
                    if self._recorder is not None:
                        await self._recorder.keep_stake(part.key, part.digest, msgspec.json.encode(part))
            self.stake_words = self._source.works_with
            await asyncio.sleep(LOOK_EVERY_S)

    async def _await_stake(self) -> None:
        if self._source is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_STAKE_WITHIN_S):
                while self._source.record is None:
                    await asyncio.sleep(LOOK_EVERY_S)
                await asyncio.sleep(2 * LOOK_EVERY_S)  # until it is in the figures and on disk

    async def _show_again(self) -> None:
        while True:
            await asyncio.sleep(self.options.every_s)
            self.show(self)


class Recorder:
    """The two topics of a data folder as their only writer sees them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        messages = open_retained(folder)
        if messages is None:
            raise _taken(folder)
        self._messages: Retained = messages
        try:
            self._stake: FileTopicWriter = create_topic(folder, STAKE).writer()
        except LockConflict:
            messages.close()
            raise _taken(folder) from None
        self._known: set[tuple[str, str]] = set()
        if not (folder / SETS_FILE).exists():
            # The pipeline asks for the keys that may sign receipts, and an observer has no receipts.
            replace_durably(Files(), folder / SETS_FILE, NO_SETS)

    def replay(self, live: Observatory) -> None:
        """Take what an earlier run recorded, the newest of it, into the figures."""
        for value, _ in _newest(self._folder, STAKE):
            with suppress(StagepostError):
                part = decode_stake_part(value)
                live.learn(part)
                self._known.add((part.key, part.digest))
        for value, arrived_ms in _newest(self._folder, DMQ_MESSAGES):
            with suppress(StagepostError):
                message = DmqMessage.decode(value, profile="seed")
                if check_proof(message) is None:
                    live.hear(message, arrived_ms)

    async def keep_message(self, message: DmqMessage) -> int | None:
        """Append a message; return the arrival that was recorded, None if an earlier run had recorded the message."""
        records = self._messages.fresh([message])
        await self._messages.append(records)
        return records[0].timestamp_ms if records else None

    async def keep_stake(self, key: str, digest: str, value: bytes) -> None:
        """Append a part of a distribution, unless an earlier run has recorded the same."""
        if (key, digest) in self._known:
            return
        now_ms = time.time_ns() // 1_000_000
        await self._stake.append([Record(key.encode(), value, {"received_ms": str(now_ms)}, now_ms)])
        self._known.add((key, digest))

    def close(self) -> None:
        self._messages.close()
        self._stake.close_now()


def _newest(folder: Path, topic: str) -> list[tuple[bytes, int]]:
    reader = open_topic(folder, topic).reader()
    end = reader.end_offset(0)
    start = max(reader.start_offset(0), end - REPLAYED_MAX)
    return [
        (read.value, read.timestamp_ms)
        for batch in reader.batches(0, start, end)
        for read in batch
        if read.value is not None
    ]


def _taken(folder: Path) -> ConfigError:
    return ConfigError(
        f"another process records into {folder}",
        advice="stop it, or choose another folder with --record",
    )
