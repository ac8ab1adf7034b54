"""The file `end` of a partition: from which offset, and up to which byte, the log is acknowledged.

It is written in place after every sync. A reader never looks behind it, so it sees nothing that is torn or that could still be lost;
and what is damaged before it was once whole. It is not synced itself: after a power cut it may be too low, never too high.
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
"""A mark may be read while it is being written; so often in a row it is not."""
_FIELDS = Struct("<8sQQQQ8x")
_DIGEST_BYTES = 16


class EndMark(NamedTuple):
    start_offset: int
    end_offset: int
    segment: int
    """The base offset of the segment that is written to."""
    position: int
    """Where that segment ends."""


def write_mark(mark: EndMark) -> bytes:
    fields = _FIELDS.pack(MAGIC, *mark)
    return fields + sha256(fields).digest()[:_DIGEST_BYTES]


def read_mark(folder: Path) -> EndMark | None:
    """None if there is none; `DamagedLog` if it is not what was written."""
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
