"""Keeps the messages that a DMQ node sends on its local socket in a topic of a folder, so that they can be
read again and again.

Any CIP-0137 node will do. It sends every message once on a connection and begins again from the oldest on the
next, so messages at the end of the topic are left out. A single process writes a folder at a time; another
process that finds it taken reads what the first one writes.

    collect_once(folder, socket)      the messages that the node holds now
    keep_collecting(folder, socket)   from now on, in a thread of this process, for as long as it lives
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from stagepost.dmq.endpoints.connection import LocalNode
from stagepost.dmq.endpoints.local_notification import LocalMessageNotificationClient
from stagepost.dmq.endpoints.message_stream import ListenLimits, MessageStream
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.profiles import MiniProtocol, profile_named
from stagepost.errors import StagepostError
from stagepost.ground.files.owner_lock import LockConflict
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.net.network import SocketNetwork
from stagepost.ground.net.sockets import CONNECT_TIMEOUT_S
from stagepost.topics.log.file_topic import FileTopic, FileTopicWriter, create_topic
from stagepost.topics.topic import DMQ_MESSAGES, Record

RECENT_MAX = 60_000
"""Ids, at most, that are looked up at the end of the topic; a node holds 50,000 messages."""

WAITING_MAX = 10_000
"""Messages that may wait for the disk before the node is not asked for more."""

ORIGIN = "local"
_LIMITS = ListenLimits(away_max_s=None)


class DmqSocket(NamedTuple):
    path: str
    network_magic: int
    profile: str

    def node(self) -> LocalNode:
        return LocalNode(
            Path(self.path),
            self.network_magic,
            profile_named(self.profile),
            SocketNetwork(),
            CONNECT_TIMEOUT_S,
        )


def collect_once(folder: Path, socket: DmqSocket) -> int:
    """Return the number of new messages; 0 if another process keeps this folder. `TransportError` if no node
    is there.
    """
    retained = open_retained(folder)
    if retained is None:
        return 0
    try:
        return asyncio.run(_drain(retained, socket.node()))
    finally:
        retained.close()


def keep_collecting(folder: Path, socket: DmqSocket) -> None:
    """Make sure that a collector runs. Raise, once, the error that ended the collector of this process, and
    start a new one then.
    """
    key = str(folder.absolute()), socket
    with _running_lock:
        collector = _running.get(key)
        if collector is not None and collector.is_alive:
            return
        _running.pop(key, None)
        if collector is not None and collector.fault is not None:
            raise collector.fault
        retained = open_retained(folder)
        if retained is not None:
            _running[key] = _Collector(retained, socket)


def stop_collecting() -> None:
    """Stop the collectors of this process; received messages are written first."""
    with _running_lock:
        collectors = list(_running.values())
        _running.clear()
    for collector in collectors:
        collector.stop()


class Retained:
    """The topic as its only writer sees it."""

    def __init__(self, topic: FileTopic, writer: FileTopicWriter) -> None:
        self._writer = writer
        self._known: dict[bytes, None] = dict.fromkeys(_recent_keys(topic))

    def fresh(self, messages: Iterable[DmqMessage]) -> list[Record]:
        found = []
        for message in messages:
            key = message.message_id.hex().encode()
            if key in self._known:
                continue
            self._known[key] = None
            if len(self._known) > RECENT_MAX:
                del self._known[next(iter(self._known))]
            received_ms = time.time_ns() // 1_000_000
            headers = {"received_ms": str(received_ms), "from": ORIGIN}
            found.append(Record(key, message.encode(), headers, received_ms))
        return found

    async def append(self, records: list[Record]) -> None:
        if records:
            await self._writer.append(records)

    def close(self) -> None:
        self._writer.close_now()


def open_retained(folder: Path) -> Retained | None:
    """Open the topic of messages for writing; None if another process, or thread, writes it."""
    topic = create_topic(folder, DMQ_MESSAGES)
    try:
        writer = topic.writer()
    except LockConflict:
        return None
    return Retained(topic, writer)


def _recent_keys(topic: FileTopic) -> list[bytes]:
    reader = topic.reader()
    end = reader.end_offset(0)
    start = max(reader.start_offset(0), end - RECENT_MAX)
    return [key for batch in reader.batches(0, start, end) for key in batch.keys if key is not None]


async def _drain(retained: Retained, node: LocalNode) -> int:
    connection, talk = await node.open(MiniProtocol.LOCAL_MESSAGE_NOTIFICATION)
    try:
        client = LocalMessageNotificationClient(talk)
        count = 0
        has_more: bool | None = True
        while has_more:
            told = await client.request_messages_non_blocking()
            # A node may announce more messages and have none; asking for ever would not end.
            has_more = told.has_more and bool(told.messages)
            records = retained.fresh(told.messages)
            await retained.append(records)
            count += len(records)
        await client.done()
        return count
    finally:
        connection.close()
        await connection.bearer.wait_closed()


class _Collector:
    """A thread with a loop of its own. It ends with the process; the node sends again the messages that were
    on their way to the disk then.
    """

    def __init__(self, retained: Retained, socket: DmqSocket) -> None:
        self.fault: StagepostError | None = None
        self._retained = retained
        self._socket = socket
        self._loop = asyncio.new_event_loop()
        self._stream: MessageStream | None = None
        self._is_told_to_stop = False
        self._thread = threading.Thread(target=self._run, name="stagepost-collector", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._is_told_to_stop = True
        with suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._end_stream()))
        self._thread.join()

    async def _end_stream(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._collect())
        except StagepostError as error:
            self.fault = error
        finally:
            self._retained.close()
            self._loop.close()

    async def _collect(self) -> None:
        stream = self._stream = MessageStream(self._socket.node(), _LIMITS, SystemClock())
        if self._is_told_to_stop:
            return
        # Appends that wait for the disk together share one sync.
        waiting: set[asyncio.Task[None]] = set()
        try:
            async for message in stream:
                records = self._retained.fresh([message])
                if records:
                    waiting.add(asyncio.create_task(self._retained.append(records)))
                if len(waiting) >= WAITING_MAX or any(task.done() for task in waiting):
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
        finally:
            await stream.aclose()
            for outcome in await asyncio.gather(*waiting, return_exceptions=True):
                if isinstance(outcome, StagepostError):
                    raise outcome


_running: dict[tuple[str, DmqSocket], _Collector] = {}
_running_lock = threading.Lock()
