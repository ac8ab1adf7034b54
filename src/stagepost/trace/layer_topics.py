"""Writers of the topics of the layers before REMP: DMQ messages that a node accepts, the peers that pull them, and the
changes of deliveries' statuses.

    async with recorded(data, node.intake.on_accepted, node.on_supplied): …
    ReliablePublisher(transport, config, events=sink)           # sink = DeliveryEventsLog(folder)

The topics are for people: a record that the disk refuses is logged or counted, and holds up no message.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from stagepost.delivery.effects import DeliveryEvent
from stagepost.dmq.mempool import MempoolEntry
from stagepost.dmq.message import DmqMessage
from stagepost.errors import ConfigError, StagepostError, StorageError
from stagepost.ground.files.owner_lock import LockConflict
from stagepost.ground.identifiers import DELIVERY_EVENTS_TOPIC, DMQ_MESSAGES_TOPIC, DMQ_PULLS_TOPIC
from stagepost.topics.log.file_topic import FileTopicWriter, create_topic
from stagepost.topics.topic import Place, Record, Retention, TopicWriter

KEPT = Retention(bytes_max=268_435_456, age_ms_max=7 * 24 * 3_600_000)
"""256 MiB and seven days of records, at most, that each of these topics keeps on the disk of a node or publisher."""
EVENTS_WAITING_MAX = 10_000
"""Events, at most, that wait for the disk; above it events are counted and dropped."""
HELD_S_MAX = 0.25
"""Seconds, at most, for which one publisher keeps the topic of delivery events before others have their turn."""
LOCK_RETRY_S = 0.02
FAULTS_MAX = 3
"""Tries in a row, at most, to open the topic on a disk that refuses."""
CLOSED_WITHIN_S = 5.0
"""Seconds, at most, that `close` waits for the disk and for other publishers of the folder."""

log = logging.getLogger(__name__)


class _LayerTopic:
    """Topic that people read: a record that the disk refuses is logged, for the topic must not hold up messages."""

    def __init__(self, writer: TopicWriter) -> None:
        self.written = 0
        self._writer = writer

    def _write(self, records: Sequence[Record]) -> None:
        self.written += len(records)
        self._writer.append_soon(records, _log_failure)

    async def close(self) -> None:
        """Close the writer, after the records that it has were written."""
        await self._writer.close()


class DmqMessagesTopic(_LayerTopic):
    """Topic of the DMQ messages that a node accepts."""

    def accepted(self, entry: MempoolEntry) -> None:
        message = entry.message
        headers = {"received_ms": str(entry.received_ms), "from": entry.source}
        self._write([Record(message.message_id.hex().encode(), message.raw, headers)])


class PullRecord(msgspec.Struct, frozen=True):
    """Record of a pull: `peer` got the body of a DMQ message from this node."""

    dmq_id: str
    peer: str
    timestamp_ms: int


class DmqPullsTopic(_LayerTopic):
    """Topic of the peers that pulled messages from a node."""

    def supplied(self, peer: str, messages: Sequence[DmqMessage]) -> None:
        now_ms = time.time_ns() // 1_000_000
        pulls = [PullRecord(message.message_id.hex(), peer, now_ms) for message in messages]
        self._write([Record(pull.dmq_id.encode(), msgspec.json.encode(pull)) for pull in pulls])


class DeliveryEventsTopic(_LayerTopic):
    """Topic of the changes of deliveries' statuses, for the only publisher of a folder; a `DeliveryEventSink`."""

    def put(self, event: DeliveryEvent) -> None:
        self._write([_event_record(event)])


class DeliveryEventsLog:
    """Topic of delivery events that several publishers of a folder write in turn; a `DeliveryEventSink` with a thread.

    A slow or full disk, or a folder that somebody else keeps, costs events, which are counted in `dropped`, never a
    publisher's time.
    """

    def __init__(self, folder: Path, *, waiting_max: int = EVENTS_WAITING_MAX) -> None:
        self.dropped = 0
        self._folder = folder
        self._waiting_max = waiting_max
        self._waiting: deque[DeliveryEvent] = deque()
        self._change = threading.Condition()
        self._is_closed = False
        self._ends_at = float("inf")
        self._is_in_trouble = False
        self._thread = threading.Thread(target=self._run, name="stagepost-events", daemon=True)
        self._thread.start()

    def put(self, event: DeliveryEvent) -> None:
        with self._change:
            if self._is_closed or len(self._waiting) >= self._waiting_max:
                self.dropped += 1
                return
            self._waiting.append(event)
            self._change.notify()

    def close(self) -> None:
        """Write the events that wait, then end. May be repeated."""
        with self._change:
            if not self._is_closed:
                self._ends_at = time.monotonic() + CLOSED_WITHIN_S
            self._is_closed = True
            self._change.notify()
        self._thread.join(2 * CLOSED_WITHIN_S)

    def _run(self) -> None:
        while self._awaited(None):
            try:
                writer = self._writer()
            except StagepostError as error:
                self._drop_all(error)
                continue
            try:
                held_until = time.monotonic() + HELD_S_MAX
                while (left_s := held_until - time.monotonic()) > 0 and self._awaited(left_s):
                    self._append(writer)
            finally:
                writer.close_now()

    def _awaited(self, timeout_s: float | None) -> bool:
        """Wait for events; return whether there are any."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._is_closed, timeout_s)
            return bool(self._waiting)

    def _writer(self) -> FileTopicWriter:
        faults = 0
        while True:
            try:
                # Another publisher may make the topic at the same moment: then the second try finds it.
                return create_topic(self._folder, DELIVERY_EVENTS_TOPIC).writer(retention=KEPT)
            except LockConflict:
                if time.monotonic() >= self._ends_at:
                    raise
            except StorageError:
                faults += 1
                if faults >= FAULTS_MAX:
                    raise
            time.sleep(LOCK_RETRY_S)

    def _append(self, writer: FileTopicWriter) -> None:
        with self._change:
            batch = list(self._waiting)
            self._waiting.clear()
        written = threading.Event()
        outcomes: list[list[Place] | StorageError] = []

        def done(outcome: list[Place] | StorageError) -> None:
            outcomes.append(outcome)
            written.set()

        writer.append_soon([_event_record(event) for event in batch], done)
        written.wait()
        if isinstance(outcomes[0], StorageError):
            self._drop(len(batch), outcomes[0])
        else:
            self._is_in_trouble = False

    def _drop_all(self, error: StagepostError) -> None:
        with self._change:
            count = len(self._waiting)
            self._waiting.clear()
        self._drop(count, error)

    def _drop(self, count: int, error: StagepostError) -> None:
        self.dropped += count
        if not self._is_in_trouble:
            self._is_in_trouble = True
            log.warning("delivery events are lost", extra={"folder": str(self._folder), "reason": error.text})


def events_log(node_data: str | Path | None, queue_path: str | Path | None) -> DeliveryEventsLog | None:
    """Return the log of a publisher: in the data folder of its node if that is known, else in the folder of its outbox;
    None if there is neither.
    """
    folder = node_data or queue_path
    if folder is None:
        return None
    path = Path(folder)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise ConfigError(
            f"the folder {path} for delivery events cannot be used: {reason}",
            advice="choose another folder, or move what is there away",
        ) from error
    return DeliveryEventsLog(path)


def _event_record(event: DeliveryEvent) -> Record:
    return Record(event.delivery_id.encode(), msgspec.json.encode(event), timestamp_ms=event.timestamp_ms)


@asynccontextmanager
async def recorded(
    data: Path,
    on_accepted: list[Callable[[MempoolEntry], None]],
    on_supplied: list[Callable[[str, Sequence[DmqMessage]], None]],
) -> AsyncIterator[None]:
    """Write what a DMQ node accepts and supplies to the topics of its data folder, until the block ends."""
    messages = DmqMessagesTopic(create_topic(data, DMQ_MESSAGES_TOPIC).writer(retention=KEPT))
    try:
        pulls = DmqPullsTopic(create_topic(data, DMQ_PULLS_TOPIC).writer(retention=KEPT))
    except BaseException:
        await messages.close()
        raise
    on_accepted.append(messages.accepted)
    on_supplied.append(pulls.supplied)
    try:
        yield
    finally:
        await messages.close()
        await pulls.close()


def _log_failure(outcome: list[Place] | StorageError) -> None:
    if isinstance(outcome, StorageError):
        log.error("record not written", extra={"reason": outcome.text})
