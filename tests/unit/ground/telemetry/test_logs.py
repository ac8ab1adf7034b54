"""Logs: one line for each event, fields beside it, and never a key or a body."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from stagepost.dmq.key_texts import ColdSigningKey
from stagepost.errors import ErrorCode, RemoteProtocolError, StorageError
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.telemetry.logs import (
    EVENTS_MAX,
    FIELD_CHARACTERS_MAX,
    FIELD_DEPTH_MAX,
    FIELD_ITEMS_MAX,
    LINES_AT_ONCE,
    LINES_PER_S,
    EventLimit,
    JsonFormatter,
    TextFormatter,
    configure_logs,
    plain,
)

CANARY = bytes(range(160, 192))
"""A secret of 32 bytes that must not be seen in any form."""


@pytest.fixture(autouse=True)
def _root_logger_is_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = [*root.handlers], root.level, logging.raiseExceptions
    yield
    for handler in [*root.handlers]:
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    logging.raiseExceptions = raising


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_record(event: str, /, *args: object, **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("stagepost.node", logging.INFO, "x.py", 1, event, args, None)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    vars(record).update(fields)
    return record


def as_json(record: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(record)
    assert "\n" not in line
    parsed = json.loads(line)
    assert isinstance(parsed, dict)
    return parsed


def test_json_has_time_level_event_logger_and_fields() -> None:
    assert as_json(
        a_record("message rejected", reason=ErrorCode.MSG_EXPIRED, count=3, ok=True, none=None)
    ) == {
        "timestamp_ms": 1_700_000_000_250,
        "level": "info",
        "event": "message rejected",
        "logger": "stagepost.node",
        "reason": "MSG_EXPIRED",
        "count": 3,
        "ok": True,
        "none": None,
    }


def test_a_field_cannot_pass_for_the_event() -> None:
    assert as_json(a_record("real", event="forged", level="error"))["event"] == "real"


def test_text_is_one_readable_line() -> None:
    line = TextFormatter().format(a_record("node started", port=3141, peer="10.0.0.1:3141", why="no room"))

    assert line.endswith(
        'info    node started                     port=3141 peer=10.0.0.1:3141 why="no room"'
    )
    assert TextFormatter().format(a_record("stopped")).endswith("stopped")


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2Jcleared", "\u202ebackwards", "carriage\rreturn"])
def test_nobody_forges_a_line_or_moves_the_cursor(text: str) -> None:
    for record in (a_record("event", field=text), a_record(text), a_record("%s", text)):
        assert TextFormatter().format(record).isprintable()
        assert JsonFormatter().format(record).isprintable()


@pytest.mark.parametrize(
    ("stream", "log_format", "is_json"),
    [
        (io.StringIO, "auto", True),
        (Terminal, "auto", False),
        (Terminal, "json", True),
        (io.StringIO, "text", False),
    ],
)
def test_auto_is_text_on_a_terminal_and_json_elsewhere(
    stream: type[io.StringIO], log_format: str, is_json: bool
) -> None:
    out = stream()
    configure_logs("info", log_format, out)
    logging.getLogger("stagepost.x").info("hello", extra={"n": 1})
    logging.getLogger("stagepost.x").debug("not shown")

    (line,) = out.getvalue().splitlines()
    assert line.startswith("{") is is_json


def test_configuring_again_replaces_the_first_choice() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logs("info", "json", first)
    configure_logs("warning", "json", second)
    logging.getLogger("stagepost").info("quiet")
    logging.getLogger("stagepost").warning("loud")

    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["event"] == "loud"


# ── nothing secret ───────────────────────────────────────────────────────────────────────────────────────────


def forms_of(secret: bytes) -> list[str]:
    return [
        secret.hex(),
        secret.hex().upper(),
        secret.decode("latin-1"),
        repr(secret)[2:-1],
        repr(bytearray(secret))[12:-2],
        ", ".join(str(byte) for byte in secret),
    ]


def secret_objects() -> list[object]:
    class Holder:
        def __repr__(self) -> str:
            return f"Holder({CANARY!r})"

        __str__ = __repr__

    key = SigningKey.generate(CANARY)
    return [
        CANARY,
        bytearray(CANARY),
        memoryview(CANARY),
        [CANARY],
        {"key": CANARY},
        {CANARY: 1},
        (Holder(), {CANARY}),
        Holder(),
        key,
        ColdSigningKey(CANARY),
        ValueError(f"bad key {CANARY.hex()}"),
    ]


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
@pytest.mark.parametrize("number", range(len(secret_objects())))
def test_no_secret_is_shown_as_field_argument_or_exception(formatter: logging.Formatter, number: int) -> None:
    value = secret_objects()[number]
    records = [a_record("event", field=value), a_record("event %s %r", value, value)]
    if isinstance(value, dict) and "key" in value:
        records.append(a_record("event %(key)s", value))
    try:
        raise ValueError(value) from KeyError(value)
    except ValueError as error:
        with_traceback = a_record("failed")
        with_traceback.exc_info = (ValueError, error, error.__traceback__)
        records.append(with_traceback)

    for record in records:
        line = formatter.format(record)
        assert not any(form in line for form in forms_of(CANARY)), line


def test_a_traceback_tells_types_and_places_and_only_texts_of_our_own() -> None:
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise StorageError("could not write messages.sqlite") from error
    except StorageError as error:
        record = a_record("failed")
        record.exc_info = (StorageError, error, error.__traceback__)

    outer, inner = as_json(record)["exception"]

    assert (outer["type"], outer["text"]) == ("StorageError", "could not write messages.sqlite")
    assert outer["code"] == "STORAGE_UNAVAILABLE"
    assert "test_logs.py" in outer["at"][0]
    assert (inner["type"], inner["text"]) == ("OSError", "No space left on device")


def test_an_event_that_does_not_fit_its_arguments_is_shown_without_them() -> None:
    assert as_json(a_record("%d left", "three"))["event"] == "%d left"


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_long_fields_are_cut_and_those_at_the_limit_are_not() -> None:
    assert plain("x" * FIELD_CHARACTERS_MAX) == "x" * FIELD_CHARACTERS_MAX
    assert plain("x" * (FIELD_CHARACTERS_MAX + 1)) == "x" * FIELD_CHARACTERS_MAX + "…"
    assert plain([0] * (FIELD_ITEMS_MAX + 1)) == [0] * FIELD_ITEMS_MAX


def test_deep_fields_end_in_the_name_of_their_type() -> None:
    deep: object = 1
    for _ in range(FIELD_DEPTH_MAX + 1):
        deep = [deep]

    assert plain(deep) == [[[["<list>"]]]]


def test_errors_of_ours_as_a_field_show_their_sentence() -> None:
    assert plain(RemoteProtocolError("said too much")) == "said too much"


def test_an_event_writes_so_many_lines_and_then_says_how_many_it_left_out() -> None:
    now_s = 0.0
    limit = EventLimit(lambda: now_s)

    passed = [limit.filter(a_record("connection refused", peer=f"198.51.100.{one}")) for one in range(5_000)]
    assert passed == [True] * LINES_AT_ONCE + [False] * (5_000 - LINES_AT_ONCE)

    assert limit.filter(a_record("health"))  # another event has lines of its own
    now_s = 1 / LINES_PER_S
    late = a_record("connection refused")
    assert limit.filter(late)
    assert as_json(late)["left_out"] == 5_000 - LINES_AT_ONCE
    assert not limit.filter(a_record("connection refused"))


def test_an_event_that_was_quiet_has_all_its_lines_again_and_none_more() -> None:
    now_s = 0.0
    limit = EventLimit(lambda: now_s)
    for _ in range(LINES_AT_ONCE):
        assert limit.filter(a_record("connection refused"))
    now_s = 1e6

    assert sum(limit.filter(a_record("connection refused")) for _ in range(5_000)) == LINES_AT_ONCE


def test_lines_of_level_debug_have_no_limit_and_events_are_counted_within_bounds() -> None:
    limit = EventLimit(lambda: 0.0)
    record = a_record("frame")
    record.levelno = logging.DEBUG
    assert all(limit.filter(record) for _ in range(LINES_AT_ONCE + 1))

    for number in range(10_000):
        assert limit.filter(a_record(f"library text {number}"))
    assert len(limit._lines) <= EVENTS_MAX


def test_a_log_that_strangers_fill_stays_small() -> None:
    out = io.StringIO()
    configure_logs("info", "json", out)
    log = logging.getLogger("stagepost.test")
    for number in range(5_000):
        log.info("connection ended", extra={"peer": f"198.51.100.1:{number}"})

    assert LINES_AT_ONCE <= len(out.getvalue().splitlines()) <= 2 * LINES_AT_ONCE
