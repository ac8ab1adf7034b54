"""Durations and points in time as people write and read them: `250ms`, `5s`, `10m`, `-10m`, ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
DURATION_MAX_S = 10 * 365 * 86_400.0


def parse_duration(text: str) -> float:
    """Return seconds. Parts may be joined (`29m50s`), largest first; raise `ValueError` for any other text."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(
            f"{text!r} is not a valid duration; write a number and a unit, as in 250ms, 5s, 10m, 2h or 1d"
        )
    units = [_UNITS_S[unit] for _, unit in parts]
    if units != sorted(set(units), reverse=True):
        raise ValueError(
            f"{text!r} is not a valid duration; write each unit once, the largest first, as in 29m50s"
        )
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if not 0 < seconds <= DURATION_MAX_S:
        raise ValueError(f"{text!r} is out of range; a duration is greater than 0 and at most ten years")
    return seconds


def parse_moment(text: str, now_unix_s: float) -> float:
    """Return Unix seconds for ISO 8601, or for a duration before `now_unix_s` (`10m` and `-10m` mean the
    same)."""
    try:
        return now_unix_s - parse_duration(text.removeprefix("-"))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a valid time; write ISO 8601, or how long ago, as in 10m"
        ) from None
    # A time without a zone means the local time of the reader.
    return moment.timestamp()


def format_date(unix_s: float) -> str:
    """Return the date and the hour, as in `2026-11-21 12:00 UTC`."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_duration(seconds: float) -> str:
    """Return the two largest units: `250 ms`, `2 s`, `29m 50s`, `4 h 12 m`, `3 d 4 h`."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60}m {whole % 60}s" if whole % 60 else f"{whole // 60}m"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def clock_text(unix_s: float) -> str:
    """Return the time of day in UTC, the zone of all our screens."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%H:%M:%S")


def format_milliseconds(milliseconds: float) -> str:
    """Return a length of time as text: `44 ms`, `1.23 s`, `4m 2s`."""
    if abs(milliseconds) < 1_000:
        return f"{milliseconds:.0f} ms"
    if abs(milliseconds) < 10_000:
        return f"{milliseconds / 1_000:.2f} s"
    return format_duration(milliseconds / 1_000)
