"""The folder where a node keeps its state: it belongs to this user, to one process at a time, and names that
process."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any, Protocol, TypeVar

import msgspec

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.local_paths import require_local_path
from stagepost.ground.files.owner_lock import OwnerLock
from stagepost.ground.files.small_files import Files, replace_durably, replace_file
from stagepost.ground.wire.foreign_json import decode_foreign

FOLDER_MODE = 0o700
FILE_MODE = 0o600
LOCK_FILE = "node.lock"
MESSAGES_FILE = "messages.sqlite"
"""Messages of a DMQ node, in its data folder."""
NODE_FILE = "node.json"
NETWORK_FILE = "network.json"
UNFINISHED_RESTORE = "restore-unfinished"
"""File that lies in a data folder while a restore fills it."""
RESTORED_FILE = "restored.json"
RESTORED_BYTES_MAX = 4_096
OWNER_FILE = "owner.json"
OWNER_BYTES_MAX = 4_096


class VersionedNote(Protocol):
    """A note that says which version of its form it has."""

    @property
    def version(self) -> int: ...


N = TypeVar("N", bound=VersionedNote)


class RestoredNote(msgspec.Struct, frozen=True):
    """Content of restored.json, which a restore leaves for the node: when the backup was made, and when it was restored, in Unix milliseconds.
    `backup` is the hash of the manifest. Between the two times the node may have said what the folder does not know.
    `accepts_replays`: the operator lets a DMQ node accept messages that it may have accepted before."""

    kind: str
    backup: str
    made_at_ms: int
    restored_at_ms: int
    accepts_replays: bool = False
    version: int = 1


def restored_note(data: Path) -> RestoredNote | None:
    """Return the note of the restore that filled the folder; None if none did. A note that cannot be read is an error:
    without it a node would speak too early."""
    return read_note(
        data / RESTORED_FILE, RestoredNote, RESTORED_BYTES_MAX, "restore the folder again, into a new one"
    )


def read_note(path: Path, kind: type[N], bytes_max: int, advice: str) -> N | None:
    """Return the note in a small JSON file, None without such a file; raise `StorageError` with `advice` for a note that
    cannot be read or has another version."""
    try:
        with path.open("rb") as file:
            note = decode_foreign(file.read(bytes_max), kind)
        if note.version != 1:
            raise msgspec.ValidationError(
                f"it is of version {note.version}, and this release knows version 1"
            )
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}", advice=advice) from error
    return note


class OwnerNote(msgspec.Struct, frozen=True):
    """Content of owner.json: the public key, in hexadecimal digits, of the member whose node began in the folder."""

    public_key: str
    version: int = 1


def require_owner(data: Path, public_key: bytes) -> bool:
    """Return whether the folder has a note of its owner; raise `ConfigError` if that is another member."""
    note = read_note(data / OWNER_FILE, OwnerNote, OWNER_BYTES_MAX, "restore the folder from a backup")
    if note is not None and note.public_key != public_key.hex():
        raise ConfigError(
            f"data folder {data} is that of the member with key {note.public_key}, not {public_key.hex()}",
            advice="give the data folder of this member with --data; a new key needs a new folder",
        )
    return note is not None


def own_folder(data: Path, public_key: bytes) -> None:
    """Note whose folder it is, at its first start: with the folder of another member a validator would not know what
    it has signed."""
    if require_owner(data, public_key):
        return
    try:
        replace_durably(Files(), data / OWNER_FILE, msgspec.json.encode(OwnerNote(public_key.hex())) + b"\n")
    except OSError as error:
        raise StorageError(
            f"{data / OWNER_FILE} cannot be written: {error.strerror}",
            advice="check the disk and the space left on it",
        ) from error


class DataFolder:
    """Folder that this process owns from `open` to `close`.

    `describe` writes a note from which other commands of this user learn where to reach the node.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: OwnerLock | None = None

    def open(self) -> None:
        """Make the folder if it is missing, and lock it.

        Raise `ConfigError` if other users could change the folder, and `StorageError` if another process
        holds it.
        """
        make_private(self.path, "data folder", advice="choose another folder with --data")
        self._lock = OwnerLock(self.path / LOCK_FILE)
        # A node that was killed leaves its note behind. Others would connect to its port, which may belong to
        # another program now.
        (self.path / NODE_FILE).unlink(missing_ok=True)

    def describe(self, facts: Mapping[str, Any]) -> None:
        try:
            replace_file(self.path / NODE_FILE, json.dumps(facts).encode() + b"\n", FILE_MODE)
        except OSError as error:
            raise StorageError(
                f"could not write {self.path / NODE_FILE}: {error.strerror}",
                advice="check the space left on the disk",
            ) from error

    def close(self) -> None:
        """Remove the note and release the lock; further calls do nothing. The lock file stays: without it two
        processes could take the folder at once."""
        if self._lock is None:
            return
        (self.path / NODE_FILE).unlink(missing_ok=True)
        self._lock.release()
        self._lock = None


def make_private(path: Path, what: str, *, advice: str) -> None:
    """Make the folder if it is missing; raise `ConfigError` if it belongs to another user or others could
    change it, and `StorageError` if a restore into it has not finished."""
    require_local_path(path, what)
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise ConfigError(f"{what} {path} cannot be used: {reason}", advice=advice) from error
    require_private(path, what, advice=advice)
    if (path / UNFINISHED_RESTORE).exists():
        raise StorageError(
            f"{what} {path} holds a restore that has not finished",
            advice="run the same `stagepost restore` again: it goes on where it ended",
        )


def require_private(path: Path, what: str, *, advice: str) -> None:
    """Raise `ConfigError` if the folder belongs to another user or others could change it."""
    try:
        status = path.stat()
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise ConfigError(f"{what} {path} cannot be used: {reason}", advice=advice) from error
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"{what} {path} belongs to user {status.st_uid}, not to user {os.geteuid()}",
            advice=advice,
            found=status.st_uid,
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"{what} {path} has mode {mode:04o}: other users could change what is kept there",
            advice=f"chmod 700 {quote(str(path))}",
            found=mode,
        )
