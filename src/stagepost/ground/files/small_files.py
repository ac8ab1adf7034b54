"""Small files that people or the node itself write: read whole up to a limit, replaced whole or not at all."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from stagepost.errors import ConfigFaults, Fault

# Without O_NONBLOCK, opening a named pipe would wait for somebody to write to it.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def read_small_file(path: Path, bytes_max: int, what: str) -> tuple[bytes, os.stat_result]:
    """The content and the status of one and the same file; `ConfigFaults` if it cannot be had."""
    try:
        descriptor = os.open(path, _READ_FLAGS)
    except OSError as error:
        raise _fault(path, f"expected {what}, found none ({_reason(error)})") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _fault(path, f"expected {what}, found something that is no regular file")
        content = b""
        while len(content) <= bytes_max:
            part = os.read(descriptor, bytes_max + 1 - len(content))
            if not part:
                return content, status
            content += part
    except OSError as error:
        raise _fault(path, f"expected {what}, found none ({_reason(error)})") from error
    finally:
        os.close(descriptor)
    raise _fault(path, f"expected {what} of at most {bytes_max} bytes, found more")


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Readers see the old content or the new, never a part. Not made durable: for what a restart writes anew."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def _reason(error: OSError) -> str:
    return (error.strerror or "unknown reason").lower()


def _fault(path: Path, text: str) -> ConfigFaults:
    return ConfigFaults({str(path): [Fault("the file", text)]})
