"""The audit file: one line for each action of a person or program, with who, when and what.

The line is written before the action begins; an action that cannot be recorded is refused. Messages themselves are recorded by
outboxes and topics, not here.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

from stagepost.errors import StorageError

AUDIT_FILE = "audit.jsonl"
EARLIER_FILE = "audit.1.jsonl"
AUDIT_FILE_MODE = 0o600
AUDIT_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of the file; then it becomes the earlier one, and the former earlier one is gone."""
FIELD_CHARACTERS_MAX = 512


def user_name() -> str:
    """Return the name under which the user of this process is recorded."""
    return f"user {os.getuid()}"


def record_action(folder: Path, what: str, *, through: str, who: str, now: float | None = None) -> None:
    """Append the line of one action to the audit file in `folder`. Raise `StorageError` if that is impossible: then the
    caller must not act."""
    at = time.time() if now is None else now
    line = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
        "who": who[:FIELD_CHARACTERS_MAX],
        "through": through,
        "what": what[:FIELD_CHARACTERS_MAX],
    }
    path = folder / AUDIT_FILE
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, AUDIT_FILE_MODE)
        try:
            # One write for each line, so that lines of several processes never mix.
            content = _line_end(descriptor) + json.dumps(line).encode() + b"\n"
            if os.write(descriptor, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            is_full = os.fstat(descriptor).st_size >= AUDIT_BYTES_MAX
        finally:
            os.close(descriptor)
        if is_full:
            path.replace(folder / EARLIER_FILE)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written, so the action was not begun: {(error.strerror or str(error)).lower()}",
            advice="check the folder and its disk; every action is recorded there before it begins",
        ) from error


def _line_end(descriptor: int) -> bytes:
    """Return the line break that the last line lacks, if a disk took only the beginning of that line."""
    size = os.fstat(descriptor).st_size
    return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
