"""Durations and times as people type and read them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.ground.files.durations import clock_text, format_duration, parse_duration, parse_moment


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("5s", 5),
        ("10m", 600),
        ("2h", 7_200),
        ("1d", 86_400),
        ("1.5s", 1.5),
        ("29m50s", 1_790),
        ("1d2h3m4s5ms", 93_784.005),
        ("3650d", 3_650 * 86_400),
    ],
)
def test_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", "5 s", "5S", "-5s", "0s", "5s5s", "5s10m", "5x", "5m!", "3651d", "1e3s", "٣s", "5ss"],
)
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a valid duration|out of range"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.25, "250 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (2.4, "2 s"),
        (59.4, "59 s"),
        (59.6, "1m"),
        (60, "1m"),
        (72, "1m 12s"),
        (1_790, "29m 50s"),
        (3_599, "59m 59s"),
        (3_600, "1 h 0 m"),
        (86_399, "23 h 59 m"),
        (273_600, "3 d 4 h"),
        (-5, "-5 s"),
    ],
)
def test_duration_is_shown_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0.001, 3e8))
def test_every_length_has_a_short_text(seconds: float) -> None:
    assert 3 <= len(format_duration(seconds)) <= 12 or format_duration(seconds).endswith(("m", "s"))


def test_moment_is_iso_or_ago() -> None:
    now = 1_800_000_000.0

    assert parse_moment("10m", now) == parse_moment("-10m", now) == now - 600
    assert parse_moment("2027-01-15T08:00:00Z", now) == now
    assert parse_moment("2027-01-15T10:00:00+02:00", now) == now
    assert parse_moment("2027-01-15T08:00:00", now) == datetime(2027, 1, 15, 8).timestamp()
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_moment("yesterday", now)


def test_clock_is_utc() -> None:
    assert clock_text(datetime(2026, 11, 15, 23, 59, 58, tzinfo=UTC).timestamp()) == "23:59:58"
