"""Damage in SQLite's write-ahead log, which SQLite itself takes for the end of the log and passes over in silence.

The log holds what was committed since the last checkpoint, page by page. Each frame carries a running checksum. Where
one does not fit, but a later frame fits the one before it, something was written behind the damage: those
transactions are lost, and somebody must be told. Damage to the very last transaction looks like a crash before its
end, and cannot be told from it.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from struct import Struct

from stagepost.errors import StorageError

LOG_BYTES_MAX = 256 * 1_024 * 1_024
HEADER = Struct(">8I")  # magic, version, page size, checkpoint number, two salts, two checksums
FRAME = Struct(">6I")  # page, size of the file after a commit, two salts, two checksums
MAGIC = 0x377F0682  # the lowest bit says in which byte order checksums are computed

_WORD = 0xFFFFFFFF
_CHECKED_BYTES_OF_FRAME = 8
_CHECKED_BYTES_OF_HEADER = 24


def damage_in(log: Path) -> str | None:
    """One sentence, or None if the log is whole up to its end."""
    try:
        if log.stat().st_size > LOG_BYTES_MAX:
            raise StorageError(f"{log} has more than {LOG_BYTES_MAX} bytes")
        content = log.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) <= HEADER.size:
        return None
    magic, _, page_bytes, _, *salts, first, second = HEADER.unpack_from(content)
    is_big = bool(magic & 1)
    begin = _checksum(content[:_CHECKED_BYTES_OF_HEADER], (0, 0), is_big)
    if magic & ~1 != MAGIC or begin != (first, second):
        return f"{log.name} has a damaged header: messages that were accepted last may be missing"
    size = FRAME.size + page_bytes
    count = (len(content) - HEADER.size) // size
    running: tuple[int, int] = begin
    broken_at: int | None = None
    for number in range(count):
        start = HEADER.size + number * size
        _, _, *frame_salts, first, second = FRAME.unpack_from(content, start)
        # Frames with other salts are left over from before the last checkpoint.
        fits = frame_salts == salts and (first, second) == _checksum(
            content[start : start + _CHECKED_BYTES_OF_FRAME] + content[start + FRAME.size : start + size],
            running,
            is_big,
        )
        if fits and broken_at is not None:
            return (
                f"{log.name} is damaged in frame {broken_at + 1} of {count}: messages that were accepted last "
                "may be missing"
            )
        if not fits and broken_at is None:
            broken_at = number
        running = (first, second)
    return None


def _checksum(data: bytes, start: tuple[int, int], is_big: bool) -> tuple[int, int]:
    words = array("I", data)
    if is_big != _NATIVE_IS_BIG:
        words.byteswap()
    first, second = start
    pairs = iter(words)
    for one, two in zip(pairs, pairs, strict=True):
        first = (first + one + second) & _WORD
        second = (second + two + first) & _WORD
    return first, second


_NATIVE_IS_BIG = array("I", b"\0\0\0\1")[0] == 1
