"""Sinks of delivery events: one record for each change of a message's status, as JSON lines in a file.

The records are those of the topic `stagepost.delivery.events` in a dump: key, value, topic and time of arrival.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from stagepost.delivery.effects import DeliveryEvent
from stagepost.ground.identifiers import DELIVERY_EVENTS_TOPIC

FILE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes, about at most, of one file."""
FILES_KEPT = 4
"""Files, at most, the present one included."""
EVENTS_WAITING_MAX = 10_000
"""Events, at most, that wait for the disk; above it events are counted and dropped."""
FILE_MODE = 0o600
CLOSED_WITHIN_S = 5.0
"""Seconds, at most, that `close` waits for the disk."""

log = logging.getLogger(__name__)


class DeliveryEventSink(Protocol):
    """A receiver of events. `put` is called on the event loop: it must return at once and never raise."""

    def put(self, event: DeliveryEvent) -> None: ...


class NoEventSink:
    """A sink for programs that want no events."""

    def put(self, event: DeliveryEvent) -> None:
        pass


class EventSinks:
    """Several sinks as one."""

    def __init__(self, *sinks: DeliveryEventSink) -> None:
        self._sinks = sinks

    def put(self, event: DeliveryEvent) -> None:
        for sink in self._sinks:
            sink.put(event)


class JsonLinesEventSink:
    """A file of JSON lines, written by a thread. A slow or full disk costs events, which are counted, never a publisher's time.

    A file that has reached `file_bytes_max` is renamed to `.1`, the former `.1` to `.2` and so on; `files_kept` are kept.
    """

    def __init__(
        self,
        path: Path,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_kept: int = FILES_KEPT,
        waiting_max: int = EVENTS_WAITING_MAX,
    ) -> None:
        self.dropped = 0
        self._path = path
        self._file_bytes_max = file_bytes_max
        self._files_kept = files_kept
        self._waiting_max = waiting_max
        self._waiting: deque[DeliveryEvent] = deque()
        self._change = threading.Condition()
        self._is_closed = False
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
            self._is_closed = True
            self._change.notify()
        self._thread.join(CLOSED_WITHIN_S)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._is_closed)
                batch = list(self._waiting)
                self._waiting.clear()
            if not batch:
                return
            self._write([_line(event) for event in batch])

    def _write(self, lines: list[bytes]) -> None:
        written = 0
        try:
            while written < len(lines):
                written += self._append(lines[written:])
            self._is_in_trouble = False
        except OSError as error:
            with self._change:
                self.dropped += len(lines) - written
            if not self._is_in_trouble:
                self._is_in_trouble = True
                log.warning(
                    "delivery events are lost", extra={"file": str(self._path), "reason": error.strerror}
                )

    def _append(self, lines: list[bytes]) -> int:
        """Write lines to the present file; return how many fitted. The next line begins a new file."""
        # The file is opened for each batch, so that nothing is written to a file that was moved or removed meanwhile.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            size = os.fstat(descriptor).st_size
            count = 0
            for line in lines:
                if size and size + len(line) > self._file_bytes_max:
                    break
                size += len(line)
                count += 1
            _write_all(descriptor, b"".join(lines[:count]))
        finally:
            os.close(descriptor)
        if count < len(lines):
            self._rotate()
        return count

    def _rotate(self) -> None:
        for number in range(self._files_kept - 1, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            with suppress(FileNotFoundError):
                os.replace(older, self._numbered(number))
        if self._files_kept == 1:
            self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _line(event: DeliveryEvent) -> bytes:
    """Return one record in the format of a topic dump."""
    record = {
        "topic": DELIVERY_EVENTS_TOPIC,
        "key": event.delivery_id,
        "value": msgspec.json.encode(event).decode(),
        "timestamp_ms": event.timestamp_ms,
    }
    return msgspec.json.encode(record) + b"\n"


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
