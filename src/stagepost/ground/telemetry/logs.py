"""Structured logs: a constant event and its fields; one readable line on a terminal, one JSON object
otherwise.

Logs must never hold keys or bodies, so the formatters show only plain values: bytes appear as their number,
other objects as the name of their type, and the text of an exception only if we wrote it ourselves.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TextIO

from stagepost.errors import StagepostError

FIELD_CHARACTERS_MAX = 2_000
FIELD_ITEMS_MAX = 100
FIELD_DEPTH_MAX = 4
FRAMES_MAX = 20
CAUSES_MAX = 5
LINES_AT_ONCE = 100
"""Lines of one event that are written at once; later ones are written as `LINES_PER_S` allows."""
LINES_PER_S = 1.0
EVENTS_MAX = 1_024
"""Events whose lines are counted; with a further one, the counting begins anew."""
_EVENT_COLUMN = 32

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]

# Attributes that every record has; all others came with `extra`.
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logs(level: str, log_format: str, stream: TextIO | None = None) -> logging.Handler:
    """Send all logs to `stream` (by default stderr). `log_format` is text, json, or auto: text on a terminal."""
    stream = sys.stderr if stream is None else stream
    is_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    handler.addFilter(EventLimit())
    root = logging.getLogger()
    for old in [*root.handlers]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # A handler that fails must not print the record it failed on, as the library does for developers.
    logging.raiseExceptions = False
    return handler


class EventLimit(logging.Filter):
    """Limit on the lines of each event, so that strangers who connect and fail all day do not fill the disk.

    The next line of an event says in the field `left_out` how many were left out before it. Lines of level debug, which an
    operator asks for, have no limit.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._lock = Lock()
        self._lines: dict[tuple[str, str], _EventLines] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        event, now_s = (record.name, str(record.msg)), self._now_s()
        with self._lock:
            lines = self._lines.get(event)
            if lines is None:
                if len(self._lines) >= EVENTS_MAX:
                    self._lines.clear()
                lines = self._lines[event] = _EventLines(now_s)
            left_out = lines.take(now_s)
        if left_out:
            record.left_out = left_out
        return left_out is not None


class _EventLines:
    """Lines that one event may still write, and how many it could not."""

    def __init__(self, now_s: float) -> None:
        self._allowed, self._since_s, self._left_out = float(LINES_AT_ONCE), now_s, 0

    def take(self, now_s: float) -> int | None:
        """Return the number of lines left out before this one, or None if this one is left out, too."""
        gained = (now_s - self._since_s) * LINES_PER_S
        self._allowed, self._since_s = min(LINES_AT_ONCE, self._allowed + gained), now_s
        if self._allowed < 1:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        self._allowed -= 1
        return left_out


class JsonFormatter(logging.Formatter):
    """Formatter of JSON lines: `timestamp_ms`, `level`, `event`, `logger`, then the fields. A field cannot
    take one of these names."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Plain] = {
            "timestamp_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "event": _event(record),
            "logger": record.name,
        }
        for name, value in _fields(record).items():
            line.setdefault(name, value)
        return json.dumps(line, ensure_ascii=True)


class TextFormatter(logging.Formatter):
    """Formatter of text lines: time of day, level, event, then `name=value` for each field."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{moment}.{int(record.msecs):03d} {record.levelname.lower():<7} {_one_line(_event(record)):<{_EVENT_COLUMN}}"
        fields = " ".join(f"{name}={_as_text(value)}" for name, value in _fields(record).items())
        return f"{head} {fields}".rstrip()


def _event(record: logging.LogRecord) -> str:
    """Return the event. Our events are constant; those of libraries have arguments, which are shown as
    carefully as fields."""
    text = record.msg if isinstance(record.msg, str) else f"<{type(record.msg).__name__}>"
    if not record.args:
        return text
    try:
        if isinstance(record.args, Mapping):
            return text % {name: plain(value) for name, value in record.args.items()}
        return text % tuple(plain(value) for value in record.args)
    except (TypeError, ValueError, KeyError):
        return text


def _fields(record: logging.LogRecord) -> dict[str, Plain]:
    fields = {name: plain(value) for name, value in vars(record).items() if name not in _OWN_ATTRIBUTES}
    if record.exc_info and record.exc_info[1] is not None:
        fields["exception"] = _exception(record.exc_info[1])
    return fields


def plain(value: object, depth: int = 0) -> Plain:
    """Return the value if it is plain and short; otherwise a short text about it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        # An enum of texts is shown as its text.
        text = str(value)
        return text if len(text) <= FIELD_CHARACTERS_MAX else f"{text[:FIELD_CHARACTERS_MAX]}…"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if depth < FIELD_DEPTH_MAX:
        if isinstance(value, dict):
            items = list(value.items())[:FIELD_ITEMS_MAX]
            return {str(plain(name, depth + 1)): plain(inner, depth + 1) for name, inner in items}
        if isinstance(value, list | tuple | set | frozenset):
            return [plain(inner, depth + 1) for inner in list(value)[:FIELD_ITEMS_MAX]]
    if isinstance(value, StagepostError):
        return plain(value.text)
    return f"<{type(value).__name__}>"


def _exception(error: BaseException) -> Plain:
    """Return types and places, from the outermost exception to the first cause; texts only of our own and the
    system's errors."""
    described: list[Plain] = []
    current: BaseException | None = error
    while current is not None and len(described) < CAUSES_MAX:
        frames = traceback.extract_tb(current.__traceback__)[-FRAMES_MAX:]
        entry: dict[str, Plain] = {"type": type(current).__name__}
        if isinstance(current, StagepostError):
            entry |= {"text": plain(current.text), "code": current.code.value}
        elif isinstance(current, OSError):
            entry["text"] = plain(current.strerror or "")
        entry["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        described.append(entry)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return described


def _as_text(value: Plain) -> str:
    if isinstance(value, str) and value and value.isprintable() and not any(c in ' "=' for c in value):
        return value
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=not value.isprintable())
    return json.dumps(value, ensure_ascii=True)


def _one_line(event: str) -> str:
    """Return the event on one line, so that nobody can forge a second line or move the reader's cursor."""
    return event if event.isprintable() else json.dumps(event, ensure_ascii=True)
