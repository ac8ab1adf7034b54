"""The file `end` of a partition: the offset from which, and the byte up to which, the log is acknowledged.

The writer writes it in place after every sync. A reader never looks beyond it, so it sees no torn block and
none that could still be lost; and damaged bytes before it were once whole. The mark itself is not synced:
after a power cut it may be too low, never too high.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from stagepost.topics.topic import DamagedLog

NAME = "end"
MARK_BYTES = 64
MAGIC = b"STPENDMK"
READ_ATTEMPTS = 100
"""Attempts to read a mark, which may be in the middle of a write; not so many times in a row."""
_FIELDS = Struct("<8sQQQQ8x")
_DIGEST_BYTES = 16


class EndMark(NamedTuple):
    start_offset: int
    end_offset: int
    segment: int
    """Base offset of the segment being written."""
    position: int
    """Byte at which that segment ends."""


def write_mark(mark: EndMark) -> bytes:
    fields = _FIELDS.pack(MAGIC, *mark)
    return fields + sha256(fields).digest()[:_DIGEST_BYTES]


def read_mark(folder: Path) -> EndMark | None:
    """Return the mark; None if there is none. Raise `DamagedLog` if it does not agree with its digest."""
    path = folder / NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        for _ in range(READ_ATTEMPTS):
            content = os.pread(file, MARK_BYTES + 1, 0)
            fields = content[: _FIELDS.size]
            if (
                len(content) == MARK_BYTES
                and sha256(fields).digest()[:_DIGEST_BYTES] == content[_FIELDS.size :]
            ):
                magic, *mark = _FIELDS.unpack(fields)
                if magic == MAGIC:
                    return EndMark(*mark)
    finally:
        os.close(file)
    raise DamagedLog(
        path, 0, "the mark does not agree with its digest; a writer makes it anew when it opens the topic"
    )
