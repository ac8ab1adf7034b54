"""System start: the moment of a network's first slot, from a calendar date to picoseconds and back."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from stagepost.ground.wire.cbor import CborReader

PICOSECONDS = 10**12
"""Picoseconds in a second."""
DAY_PS = 86_400 * PICOSECONDS
YEAR_MIN = 1970
YEAR_MAX = 9999
INTEGER_BYTES_MAX = 64
"""Bytes of a big integer in a date. Dates need none; genuine test data hold some of 30 bytes, which are refused as dates."""

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,12}))?(?:Z|\+00:00)", re.ASCII)


def read_system_start(reader: CborReader, what: str) -> int:
    """Return picoseconds since 1970 from `[year, day of year, picoseconds of day]`."""
    start = reader.offset
    reader.array(3, what)
    year = reader.integer(INTEGER_BYTES_MAX, f"{what}: year")
    day = reader.integer(INTEGER_BYTES_MAX, f"{what}: day of year")
    picoseconds = reader.integer(INTEGER_BYTES_MAX, f"{what}: picoseconds of day")
    if not YEAR_MIN <= year <= YEAR_MAX:
        raise reader.invalid(f"{what} is not a possible date: its year is {_shown(year)}", at=start)
    days = (date(year, 12, 31) - date(year, 1, 1)).days + 1
    if not 1 <= day <= days:
        raise reader.invalid(f"{what} is not a possible date: day {_shown(day)} of {year}", at=start)
    if not 0 <= picoseconds < DAY_PS:
        raise reader.invalid(f"{what} is not a possible date: the time of day is not within a day", at=start)
    return (date(year, 1, 1).toordinal() - _EPOCH_DAY + day - 1) * DAY_PS + picoseconds


def parse_system_start(text: str) -> int | None:
    """Return picoseconds since 1970 from a text such as 2022-06-01T00:00:00Z; None if it is not such a text."""
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    if year < YEAR_MIN or hour > 23 or minute > 59 or second > 59:
        return None
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    fraction = int((found[7] or "").ljust(12, "0"))
    return days * DAY_PS + (hour * 3600 + minute * 60 + second) * PICOSECONDS + fraction


def moment_text(unix_s: float) -> str:
    """Return a moment as people write it, to the second: 2025-12-15 21:44:51 UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(unix_s))
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _shown(number: int) -> str:
    return str(number) if abs(number) < 10**9 else "far too large"
