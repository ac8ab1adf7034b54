"""Key and certificate files on disk: who may read them, how they are replaced, how a KES key is evolved.

A secret file must belong to us and be closed to group and others. New content is durable before the old is
gone, so a crash at any step leaves one usable key.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from stagepost.crypto import kes
from stagepost.dmq import text_envelope
from stagepost.dmq.text_envelope import Content, ContentT
from stagepost.errors import ErrorCode, KeyFileError, SigningError, StorageError

# The largest envelope we write has about 1 400 bytes.
KEY_FILE_BYTES_MAX = 16_384
SECRET_MODE = 0o600
PUBLIC_MODE = 0o644

_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
# Without O_NONBLOCK, opening a named pipe would wait for somebody to write to it.
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def load(path: Path) -> Content:
    """What the file holds, whichever kind it is; secret kinds only if nobody else can reach them."""
    text, status = _read(path)
    content = text_envelope.decode(text, source=str(path))
    if isinstance(content, text_envelope.SECRET_KINDS):
        _require_private(path, status)
    return content


def load_as(expected: type[ContentT], path: Path) -> ContentT:
    """What the file holds, which must be of the expected kind."""
    text, status = _read(path)
    content = text_envelope.decode_as(expected, text, source=str(path))
    if isinstance(content, text_envelope.SECRET_KINDS):
        _require_private(path, status)
    return content


def save(path: Path, content: Content, *, replace: bool = False) -> None:
    """Write the file durably. An existing one is refused unless `replace` is given."""
    text = text_envelope.encode(content)
    mode = SECRET_MODE if isinstance(content, text_envelope.SECRET_KINDS) else PUBLIC_MODE
    # A link is followed, so that what it names is replaced and no old key stays behind.
    target = Path(os.path.realpath(path)) if replace else path
    with _translated(path, "write"), _locked_folder(target) as folder:
        _put(folder, target.name, text, mode, replace=replace)


def evolve(path: Path, to_period: int | None = None) -> kes.SigningKey:
    """Move the KES key in the file on to `to_period` (default: the next), and return it.

    The evolved key is on disk before the old one is removed and overwritten. A key already there is left
    alone. Costs up to some ten milliseconds: keep it off an event loop.
    """
    target = Path(os.path.realpath(path))
    with _translated(path, "evolve"), _locked_folder(target) as folder:
        _remove_leftover(folder, target.name)
        old = _open_to_overwrite(folder, target.name)
        try:
            key, replaced = _evolved(old, path, to_period)
            if replaced:
                _put(folder, target.name, text_envelope.encode(key), SECRET_MODE, replace=True)
                # Nothing names the old file any more, so a crash from here on cannot lose a key.
                _overwrite(old)
        finally:
            os.close(old)
    return key


def _evolved(old: int, path: Path, to_period: int | None) -> tuple[kes.SigningKey, bool]:
    """The key in the open file, moved on in memory, and whether that changed it."""
    text, status = _read_open(old, path)
    key = text_envelope.decode_as(kes.SigningKey, text, source=str(path))
    _require_private(path, status)
    if status.st_nlink > 1:
        raise KeyFileError(
            f"{path} has {status.st_nlink} names (hard links); the old key would live on under the others",
            advice="remove the other names, then evolve again",
            found=status.st_nlink,
        )
    goal = key.period + 1 if to_period is None else to_period
    if goal < key.period:
        raise SigningError(
            f"{path} is at KES period {key.period} and cannot go back to {goal}",
            advice="a KES key only moves forward; make a new key and certificate to start again",
            found=goal,
            limit=key.period,
        )
    last = key.period + key.periods_left
    if goal > last:
        raise kes.KesExhausted(
            f"{path} is at KES period {key.period} of 0 to {last}; there is no period {goal}",
            advice="make a new KES key and a new operational certificate",
            found=goal,
            limit=last,
        )
    steps = goal - key.period
    for _ in range(steps):
        key.evolve()
    return key, steps > 0


def _read(path: Path) -> tuple[bytes, os.stat_result]:
    with _translated(path, "read"):
        descriptor = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
        try:
            return _read_open(descriptor, path)
        finally:
            os.close(descriptor)


def _read_open(descriptor: int, path: Path) -> tuple[bytes, os.stat_result]:
    """The content and the status of one and the same file, even if its name is given to another meanwhile."""
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
    # One byte more than allowed is asked for; a file that grows while being read ends as bad JSON.
    while len(text) <= KEY_FILE_BYTES_MAX:
        part = os.read(descriptor, KEY_FILE_BYTES_MAX + 1 - len(text))
        if not part:
            break
        text += part
    return text, status


def _require_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise KeyFileError(
            f"{path} holds a secret key and belongs to user {status.st_uid}, not to user {os.geteuid()}",
            code=ErrorCode.KEY_PERMISSIONS,
            advice=f"run as the owner, or: chown {os.geteuid()} {quote(str(path))}",
            found=status.st_uid,
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OPEN_TO_OTHERS:
        raise KeyFileError(
            f"{path} holds a secret key and is open to group or others (mode {mode:04o})",
            code=ErrorCode.KEY_PERMISSIONS,
            advice=f"chmod 600 {quote(str(path))}",
            found=mode,
        )


@contextmanager
def _locked_folder(target: Path) -> Iterator[int]:
    """The folder of `target`, open, and ours alone among those who write keys.

    The folder is locked rather than the file, because the file is replaced by another.
    """
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


def _put(folder: int, name: str, text: bytes, mode: int, *, replace: bool) -> None:
    """Make `name` hold `text`, all of it or not at all, and durably."""
    temporary = _temporary_name(name)
    _remove_leftover(folder, name)
    try:
        _write_durably(folder, temporary, text, mode)
        if replace:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            # Unlike a rename, this fails if the name is taken.
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
    os.fsync(folder)


def _temporary_name(name: str) -> str:
    return f".{name}.new"


def _remove_leftover(folder: int, name: str) -> None:
    """What a crash left of an earlier write; the lock says that nobody is still writing it."""
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


def _open_to_overwrite(folder: int, name: str) -> int:
    """Open for reading, and for writing where the mode allows it (a key of mode 0400 is read only)."""
    flags = _OPEN_FLAGS | os.O_NOFOLLOW
    try:
        return os.open(name, os.O_RDWR | flags, dir_fd=folder)
    except PermissionError:
        return os.open(name, os.O_RDONLY | flags, dir_fd=folder)


def _overwrite(descriptor: int) -> None:
    """Zeros over a key that is no longer named. Best effort: disks may keep old blocks all the same."""
    with suppress(OSError):
        os.lseek(descriptor, 0, os.SEEK_SET)
        _write_all(descriptor, bytes(os.fstat(descriptor).st_size))
        os.fsync(descriptor)


@contextmanager
def _translated(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise KeyFileError(
            f"{path} exists already and is not overwritten",
            advice="choose another folder, or move the old keys away",
        ) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "unknown reason"
        raise StorageError(
            f"could not {verb} {path}: {reason}",
            advice=(
                "check the path, its permissions and the space left on the disk"
                # The last step, making the new name durable, may be the one that failed.
                + ("; see with `stagepost keys show` which period the key is at" if verb == "evolve" else "")
            ),
        ) from error
