"""Small files, read whole up to a limit and replaced whole or not at all; and the calls by which files reach
the disk.

All writing calls of a log go through `Files`, so that a test can make each of them fail.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from stagepost.errors import ConfigFaults, FileFault, StorageError

# Without O_NONBLOCK, opening a named pipe would wait for somebody to write to it.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def read_small_file(path: Path, bytes_max: int, what: str) -> tuple[bytes, os.stat_result]:
    """Return the content and the status of the same file; raise `ConfigFaults` if it cannot be read.

    `what` names the file's purpose in the error text. More than `bytes_max` bytes are an error.
    """
    try:
        descriptor = os.open(path, _READ_FLAGS)
    except OSError as error:
        raise _fault(path, f"expected {what}, found none ({_reason(error)})") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _fault(path, f"expected {what}, found something that is not a regular file")
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
    """Replace the file so that readers see the old content or the new, never a part.

    The new content is not made durable: use this for files that a restart writes anew.
    """
    temporary = path.with_name(f".{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        error.filename, error.filename2 = str(path), None  # people know the file by its name
        raise


def _reason(error: OSError) -> str:
    return (error.strerror or "unknown reason").lower()


def _fault(path: Path, text: str) -> ConfigFaults:
    return ConfigFaults({str(path): [FileFault("the file", text)]})


FILE_MODE = 0o600
FOLDER_MODE = 0o700


class Files:
    """Calls of the operating system, without any logic of their own."""

    def open(self, path: Path, *, is_new: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if is_new else 0)
        return os.open(path, flags, FILE_MODE)

    def close(self, file: int) -> None:
        os.close(file)

    def write(self, file: int, content: bytes | memoryview, position: int) -> int:
        """Write `content` at `position`; return the number of bytes written, which may be fewer than
        `len(content)`."""
        return os.pwrite(file, content, position)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def cut(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def sync_folder(self, path: Path) -> None:
        sync_folder(path)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable: a file name is part of the folder, and lasts only if the folder is synced."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make the content of a file durable."""
    _sync(path, os.O_RDONLY | os.O_CLOEXEC)


def _sync(path: str | os.PathLike[str], flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(files: Files, file: int, content: bytes, position: int) -> None:
    """Write all of `content` at `position`, with several calls if necessary.

    A disk that is nearly full takes a part first, and gives the reason with the next call.
    """
    rest = memoryview(content)
    while rest:
        written = files.write(file, rest, position)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest, position = rest[written:], position + written


def replace_durably(files: Files, path: Path, content: bytes) -> None:
    """Replace the file so that every reader, also after a power cut, finds the old content or the new."""
    fresh = path.with_name(f".{path.name}.new")
    files.remove(fresh)
    file = files.open(fresh, is_new=True)
    try:
        write_all(files, file, content, 0)
        files.sync(file)
    finally:
        files.close(file)
    files.rename(fresh, path)
    files.sync_folder(path.parent)


def make_folder(path: Path, what: str, files: Files) -> None:
    """Make the folder `path` if it is missing, durably: its files are lost if its name is lost."""
    try:
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)
        files.sync_folder(path.parent)
    except OSError as error:
        raise StorageError(
            f"the folder {path} of {what} cannot be made: {error.strerror}",
            advice="check the disk, the space left on it, and who may write there",
        ) from error
