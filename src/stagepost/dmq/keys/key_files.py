"""Key and certificate files on disk: which of them may be read, and how a new one is written.

This module never changes an existing file: it opens files for reading alone, and writes to a new name.
Operators' programs read the same files (cardano-node at its start, mithril-signer at every signature) and
count on them.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from stagepost.dmq import key_texts as text_envelope
from stagepost.dmq.key_texts import Content, ContentT
from stagepost.errors import ErrorCode, KeyFileError, StorageError
from stagepost.ground.crypto import kes

# Bytes. The largest envelope we write has about 1 400.
KEY_FILE_BYTES_MAX = 16_384
SECRET_MODE = 0o600
PUBLIC_MODE = 0o644

_OPEN_TO_GROUP = stat.S_IRWXG
_OPEN_TO_OTHERS = stat.S_IRWXO
_KES_KINDS = (kes.SigningKey, text_envelope.EvolvedSigningKey)
# Without O_NONBLOCK, opening a named pipe would wait for somebody to write to it.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

log = logging.getLogger(__name__)


def load(path: Path) -> Content:
    """Return the content of the file, whichever kind it is; secret kinds only if no other user can reach the file."""
    text, status = _read(path)
    content = text_envelope.decode(text, source=str(path))
    _require_private(path, status, content)
    return content


def load_as(expected: type[ContentT], path: Path) -> ContentT:
    """Return the content of the file, which must be of the expected kind."""
    text, status = _read(path)
    content = text_envelope.decode_as(expected, text, source=str(path))
    _require_private(path, status, content)
    return content


def save(path: Path, content: Content) -> None:
    """Write a new file durably, all of it or nothing. An existing file is refused."""
    text = text_envelope.encode(content)
    mode = SECRET_MODE if isinstance(content, text_envelope.SECRET_KINDS) else PUBLIC_MODE
    with _translated(path, "write"), _locked_folder(path) as folder:
        _put(folder, path.name, text, mode)


def _read(path: Path) -> tuple[bytes, os.stat_result]:
    with _translated(path, "read"):
        descriptor = os.open(path, _READ_FLAGS)
        try:
            return _read_open(descriptor, path)
        finally:
            os.close(descriptor)


def _read_open(descriptor: int, path: Path) -> tuple[bytes, os.stat_result]:
    """Return the content and the status of the same file, even if its name is given to another meanwhile."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(
            f"{path} is not a regular file", advice="give the path of a key or certificate file"
        )
    if status.st_size > KEY_FILE_BYTES_MAX:
        raise KeyFileError(
            f"{path} has {status.st_size} bytes; a key or certificate file has at most {KEY_FILE_BYTES_MAX}",
            advice="give the path of a key or certificate file",
            limit=KEY_FILE_BYTES_MAX,
            found=status.st_size,
        )
    text = b""
    # Ask for one byte more than allowed; a file that grows while it is read ends as bad JSON.
    while len(text) <= KEY_FILE_BYTES_MAX:
        part = os.read(descriptor, KEY_FILE_BYTES_MAX + 1 - len(text))
        if not part:
            break
        text += part
    return text, status


def _require_private(path: Path, status: os.stat_result, content: Content) -> None:
    """Refuse a secret that others can read. A group may share a KES key, with a warning, but not a cold key."""
    if not isinstance(content, text_envelope.SECRET_KINDS):
        return
    if status.st_uid != os.geteuid():
        raise KeyFileError(
            f"{path} holds a secret key and belongs to user {status.st_uid}, not to user {os.geteuid()}",
            code=ErrorCode.KEY_PERMISSIONS,
            advice=f"run as the owner, or: chown {os.geteuid()} {quote(str(path))}",
            found=status.st_uid,
        )
    mode = stat.S_IMODE(status.st_mode)
    may_share = isinstance(content, _KES_KINDS)
    if mode & _OPEN_TO_OTHERS or (mode & _OPEN_TO_GROUP and not may_share):
        raise KeyFileError(
            f"{path} holds a secret key and is open to {'others' if may_share else 'group or others'} "
            f"(mode {mode:04o})",
            code=ErrorCode.KEY_PERMISSIONS,
            advice=f"chmod 600 {quote(str(path))}",
            found=mode,
        )
    if mode & _OPEN_TO_GROUP:
        log.warning(
            f"{path} holds a secret key and is open to its group (mode {mode:04o}); "
            f"if the group does not need it: chmod 600 {quote(str(path))}"
        )


@contextmanager
def _locked_folder(target: Path) -> Iterator[int]:
    """Open the folder of `target`, and lock it against other writers of keys."""
    folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(
                f"another process is writing keys in {target.parent}",
                advice="wait until it has finished, then look with `stagepost keys show` before trying again",
            ) from None
        yield folder
    finally:
        os.close(folder)


def _put(folder: int, name: str, text: bytes, mode: int) -> None:
    """Make the new file `name` hold `text`, all of it or not at all, and durably."""
    temporary = _temporary_name(name)
    _remove_leftover(folder, name)
    try:
        _write_durably(folder, temporary, text, mode)
        # Unlike a rename, a link fails if the name is taken.
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
    os.fsync(folder)


def _temporary_name(name: str) -> str:
    return f".{name}.new"


def _remove_leftover(folder: int, name: str) -> None:
    """Remove the rest of an earlier write that crashed; the lock shows that nobody is still writing it."""
    with suppress(FileNotFoundError):
        os.unlink(_temporary_name(name), dir_fd=folder)


def _write_durably(folder: int, name: str, text: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(name, flags, mode, dir_fd=folder)
    try:
        _write_all(descriptor, text)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]


@contextmanager
def _translated(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise KeyFileError(
            f"{path} exists already and is not overwritten",
            advice="choose another name or folder",
        ) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "unknown reason"
        if isinstance(error, FileNotFoundError) and verb == "read":
            advice = "give a folder or file with keys; `stagepost keys new` makes a folder"
        else:
            advice = "check the path, its permissions and the space left on the disk"
        raise StorageError(f"could not {verb} {path}: {reason}", advice=advice) from error
