"""Backups: a folder with copies of the files of a data folder, and a manifest with the hash of each of them.

A backup is made in `NAME.unfinished` and gets its name when everything is on the disk: a kill before that leaves a folder that
nobody takes for a backup, and that the next backup of that name replaces. A restore leaves a note in the data folder before its
first file and takes it away after its last one; no node starts beside that note, and the same restore goes on where it ended.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import quote

import msgspec

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.data_folder import (
    RESTORED_FILE,
    UNFINISHED_RESTORE,
    RestoredNote,
    require_private,
)
from stagepost.ground.files.owner_lock import OwnerLock
from stagepost.ground.files.small_files import FOLDER_MODE, Files, replace_durably, write_all
from stagepost.ground.storage.damage import damage_in
from stagepost.ground.storage.layout import BUSY_S, StoreLayout, check_layout, read_only
from stagepost.ground.storage.sqlite_file import beside, connect
from stagepost.ground.storage.tables import AnyTable, DamagedRow, UnknownRow

FORMAT = "stagepost backup"
VERSION = 1
MANIFEST_FILE = "manifest.json"
UNFINISHED = ".unfinished"
"""Ending of the name that a backup has while it is made."""
LOCK_FILE = "backup.lock"
RESTORE_LOCK = "restore.lock"
FILES_MAX = 100_000
"""Files, at most, that a manifest names."""
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
COPY_BYTES = 1024 * 1024
LOG_LOOKS_MAX = 5
NAMES_SHOWN_MAX = 5
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,254}")


class BackupFile(msgspec.Struct, frozen=True):
    """File of a backup. `path` is relative to the backup and to the data folder, with `/` between its parts."""

    path: str
    bytes: int
    sha256: str


class BackupMark(msgspec.Struct, frozen=True):
    """Bounds of a partition up to which a backup holds its records."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


class BackupManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a backup. `keys` has the paths of secret keys among `files`; `left_out` has the files of the data folder
    that the kind of folder does not declare, and the secret keys that nobody asked for."""

    format: str
    version: int
    release: str
    kind: str
    made_at_ms: int
    files: tuple[BackupFile, ...]
    topics: tuple[BackupMark, ...] = ()
    keys: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return sha256(msgspec.json.encode(self)).hexdigest()

    def encode(self) -> bytes:
        signed = {"manifest": self, "sha256": self.digest}
        return msgspec.json.format(msgspec.json.encode(signed), indent=1) + b"\n"


@dataclass(frozen=True)
class DeclaredStore:
    """SQLite store of a data folder, at `path` in it."""

    path: str
    tables: Sequence[AnyTable]
    layout: StoreLayout
    what: str


class BackupRefused(StorageError):
    """Backup that is damaged, of another version or unfinished, or folder that cannot take one. Nothing was restored."""


class BackupWriter:
    """Backup in the making: `add_store`, `add_file` and `add_bytes`, then `finish`; `close` in any case."""

    def __init__(self, out: Path, files: Files | None = None) -> None:
        self._out = out
        self._files = files or Files()
        self._added: list[BackupFile] = []
        self.folder = out.with_name(out.name + UNFINISHED)
        if os.path.lexists(out):
            raise ConfigError(
                f"{out} exists already; a backup never overwrites anything", advice="choose another --out"
            )
        with _disk(self.folder):
            out.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        require_private(self.folder, "folder of the backup", advice="choose another --out")
        self._lock = OwnerLock(self.folder / LOCK_FILE)
        with _disk(self.folder):
            # A backup of that name was killed; what it left is of no use.
            _empty(self.folder, keep=(LOCK_FILE,))

    def add_store(self, source: Path, store: DeclaredStore) -> None:
        """Copy a SQLite store as it is at one moment, also while its process writes. `StorageError` if it is damaged."""
        target = self._place(store.path)
        copy_store(source, target, store)
        self._note(store.path, target)

    def add_file(self, source: Path, path: str) -> None:
        """Copy a file that its owner replaces whole or appends lines to."""
        with _disk(source), _opened(source) as descriptor:
            self.add_bytes(_chunks(descriptor, None), path)

    def add_part(self, source: Path, path: str, bytes_max: int) -> None:
        """Copy the first `bytes_max` bytes of a file that must have as many."""
        with _disk(source), _opened(source) as descriptor:
            self.add_bytes(_chunks(descriptor, bytes_max), path)
        if self._added[-1].bytes < bytes_max:
            raise StorageError(
                f"{source} has {self._added[-1].bytes} bytes and should have {bytes_max}",
                advice="the file is damaged or was shortened; look at it before you make a backup",
            )

    def add_bytes(self, content: Iterable[bytes], path: str) -> None:
        target = self._place(path)
        with _disk(target):
            size, digest = _write(self._files, target, content)
        self._added.append(BackupFile(path, size, digest))

    def finish(
        self,
        *,
        release: str,
        kind: str,
        made_at_ms: int,
        topics: Sequence[BackupMark] = (),
        keys: Sequence[str] = (),
        left_out: Sequence[str] = (),
    ) -> BackupManifest:
        """Write the manifest, and give the folder its name once all of it is durable."""
        added = tuple(sorted(self._added, key=lambda one: one.path))
        manifest = BackupManifest(
            FORMAT, VERSION, release, kind, made_at_ms, added, tuple(topics), tuple(keys), tuple(left_out)
        )
        with _disk(self.folder):
            for folder in [path for path in self.folder.rglob("*") if path.is_dir()]:
                self._files.sync_folder(folder)
            replace_durably(self._files, self.folder / MANIFEST_FILE, manifest.encode())
            self._files.remove(self.folder / LOCK_FILE)
            self._files.sync_folder(self.folder)
            self._files.rename(self.folder, self._out)
            self._files.sync_folder(self._out.parent)
        return manifest

    def close(self) -> None:
        """Remove what an error left; a finished backup stays."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()

    def _place(self, path: str) -> Path:
        require_inner_path(path)
        if len(self._added) >= FILES_MAX:
            raise StorageError(f"the data folder has more than {FILES_MAX} files")
        target = self.folder / path
        with _disk(target):
            _make_folders(self.folder, target.parent)
        return target

    def _note(self, path: str, target: Path) -> None:
        with _disk(target), _opened(target) as descriptor:
            os.fsync(descriptor)
            size, digest = _measured(_chunks(descriptor, None))
        self._added.append(BackupFile(path, size, digest))


def copy_store(source: Path, target: Path, store: DeclaredStore) -> None:
    """Copy a SQLite file with its log into one file, by SQLite's backup interface; check every row that came out."""
    what, fault = store.what, _log_damage(source)
    if fault is None:
        try:
            os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            address = f"file:{quote(str(source.absolute()))}?mode=ro"
            with (
                closing(sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)) as reading,
                closing(connect(str(target))) as writing,
            ):
                # All pages in one step are the content of one moment; the writer goes on beside it.
                reading.backup(writing)
                writing.execute("PRAGMA journal_mode = DELETE")
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"the {what} {source} cannot be copied: {error}",
                advice="check the disk, the space left on it, and who may read the file",
            ) from error
        version, fault = check_layout(target, store.layout, what)
        if fault is None and store.layout.tables_of(version) == store.layout.tables:
            fault = _row_damage(target, store.tables)
    if fault is not None:
        raise StorageError(
            f"the {what} {source} is damaged, and a backup of it would be, too: {fault}",
            advice="start the node once: it salvages what can be read; then make the backup",
        )


def _row_damage(path: Path, tables: Iterable[AnyTable]) -> str | None:
    with read_only(path) as connection:
        for table in tables:
            for row in connection.execute(f"SELECT * FROM {table.name}"):
                try:
                    table.read(row)
                except DamagedRow as error:
                    return f"a row of {table.name}: {error}"
                except UnknownRow as error:
                    return error.text
    return None


def _log_damage(source: Path) -> str | None:
    """Return the damage in the log of a store that nobody writes at this moment; SQLite passes over it in silence."""
    log = beside(source, "-wal")
    for _ in range(LOG_LOOKS_MAX):
        before = _signature(log)
        fault = damage_in(log)
        if fault is None or _signature(log) == before:
            return fault
    return None  # a process writes: it looked at its log when it started


def _signature(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


# Reading a backup


def read_manifest(backup: Path) -> BackupManifest:
    """Return the manifest of a finished backup; `BackupRefused` for anything else."""
    if not backup.is_dir():
        raise refused(backup, "it is not a folder", "give the folder that `stagepost backup` made")
    try:
        with _opened(backup / MANIFEST_FILE) as descriptor:
            content = b"".join(_chunks(descriptor, MANIFEST_BYTES_MAX + 1))
    except FileNotFoundError:
        raise refused(backup, f"it has no {MANIFEST_FILE}, so it was not finished") from None
    except OSError as error:
        raise refused(backup, f"{MANIFEST_FILE} cannot be read: {error.strerror}") from error
    if len(content) > MANIFEST_BYTES_MAX:
        raise refused(backup, f"{MANIFEST_FILE} has more than {MANIFEST_BYTES_MAX} bytes")
    try:
        outer = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        head = msgspec.json.decode(outer["manifest"], type=_Head)
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise refused(backup, f"{MANIFEST_FILE} is damaged: {error}") from error
    if head.format != FORMAT:
        raise refused(backup, f"{MANIFEST_FILE} is of {head.format!r}, not of {FORMAT!r}")
    if head.version != VERSION:
        raise refused(
            backup,
            f"it is of version {head.version}, and this release knows version {VERSION}",
            "restore it with the release of Stagepost that made it",
        )
    try:
        manifest = msgspec.json.decode(outer["manifest"], type=BackupManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refused(backup, f"{MANIFEST_FILE} is damaged: {error}") from error
    if manifest.encode() != content:
        raise refused(backup, f"{MANIFEST_FILE} is damaged: it does not agree with its hash")
    return manifest


class _Head(msgspec.Struct, frozen=True):
    format: str
    version: int


def check_backup(backup: Path, manifest: BackupManifest, is_declared: Callable[[str], bool]) -> None:
    """Read every file of the backup; `BackupRefused` names what is damaged, missing, or not a file of such a folder."""
    paths = [file.path for file in manifest.files]
    for path in paths:
        require_inner_path(path, lambda text: refused(backup, text))
        if not is_declared(path):
            raise refused(backup, f"it holds {path}, which is not a file of a {manifest.kind}")
    if len(set(paths)) != len(paths):
        raise refused(backup, "its manifest names a file twice")
    strange = sorted(_files_in(backup) - {*paths, MANIFEST_FILE})
    if strange:
        raise refused(backup, f"it holds files that its manifest does not name: {_listed(strange)}")
    for file in manifest.files:
        _require_same(backup, file)


def _require_same(backup: Path, file: BackupFile) -> None:
    try:
        with _opened(backup / file.path) as descriptor:
            size, digest = _measured(_chunks(descriptor, file.bytes + 1))
    except FileNotFoundError:
        raise refused(backup, f"{file.path} is missing") from None
    except OSError as error:
        raise refused(backup, f"{file.path} cannot be read: {error.strerror}") from error
    if (size, digest) != (file.bytes, file.sha256):
        raise refused(backup, f"{file.path} is damaged: it does not agree with the manifest")


def _files_in(backup: Path) -> set[str]:
    """Return the paths of all files; `BackupRefused` for a link, or anything else that is neither file nor folder."""
    found: set[str] = set()
    for folder, folders, names in os.walk(backup):
        for name in (*folders, *names):
            path = Path(folder) / name
            mode = path.lstat().st_mode
            inner = path.relative_to(backup).as_posix()
            if stat.S_ISREG(mode):
                found.add(inner)
            elif not stat.S_ISDIR(mode):
                raise refused(backup, f"{inner} is a link or not a regular file")
    return found


# Restoring


def restore_files(
    backup: Path,
    manifest: BackupManifest,
    data: Path,
    now_ms: int,
    files: Files | None = None,
    *,
    accepts_replays: bool = False,
) -> RestoredNote:
    """Put the files of a checked backup into `data`, a folder that is missing, empty, or was left by the same restore."""
    files = files or Files()
    with _disk(data):
        data.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    require_private(data, "data folder", advice="choose another folder with --data")
    with _disk(data):
        _require_empty(data, manifest)
        lock = OwnerLock(data / RESTORE_LOCK)
        try:
            _require_empty(data, manifest)
            replace_durably(files, data / UNFINISHED_RESTORE, f"{manifest.digest}\n".encode())
            for file in manifest.files:
                _restore_file(files, backup, file, data)
            for folder in sorted({(data / file.path).parent for file in manifest.files}):
                files.sync_folder(folder)
            # The clock of this machine may be behind: nothing in the backup is from the future.
            note = RestoredNote(
                manifest.kind,
                manifest.digest,
                manifest.made_at_ms,
                max(now_ms, manifest.made_at_ms),
                accepts_replays,
            )
            replace_durably(files, data / RESTORED_FILE, msgspec.json.encode(note) + b"\n")
            files.remove(data / RESTORE_LOCK)
            files.remove(data / UNFINISHED_RESTORE)
            files.sync_folder(data)
            return note
        finally:
            lock.release()


def _require_empty(data: Path, manifest: BackupManifest) -> None:
    """Raise `BackupRefused` if the folder holds anything but what an unfinished restore of the same backup left."""
    # A kill while the note was written leaves its temporary name, and nothing else.
    found = set(os.listdir(data)) - {RESTORE_LOCK, f".{UNFINISHED_RESTORE}.new"}
    if not found:
        return
    try:
        note = (data / UNFINISHED_RESTORE).read_text().strip()
    except FileNotFoundError:
        raise BackupRefused(
            f"refused to restore into {data}: it is not empty, it holds {_listed(sorted(found))}; nothing was changed",
            advice="stop the node of that folder, if one runs there, and give a folder that does not exist yet",
        ) from None
    if note != manifest.digest:
        raise BackupRefused(
            f"refused to restore into {data}: a restore of another backup did not finish there; nothing was changed",
            advice="finish that restore, or give a folder that does not exist yet",
        )
    allowed = {file.path for file in manifest.files} | {RESTORED_FILE, UNFINISHED_RESTORE, RESTORE_LOCK}
    strange = sorted(
        path for path in _files_in(data) - allowed if not PurePosixPath(path).name.startswith(".")
    )
    if strange:
        raise BackupRefused(
            f"refused to restore into {data}: {_listed(strange)} appeared there since the restore was stopped",
            advice="give a folder that does not exist yet",
        )


def _restore_file(files: Files, backup: Path, file: BackupFile, data: Path) -> None:
    """Write one file under another name first, so that a file that has its name is whole and on the disk."""
    target = data / file.path
    _make_folders(data, target.parent)
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    if os.path.lexists(target):
        _require_same(data, file)  # by an earlier attempt
        return
    with _opened(backup / file.path) as descriptor:
        size, digest = _write(files, fresh, _chunks(descriptor, file.bytes + 1))
    if (size, digest) != (file.bytes, file.sha256):
        fresh.unlink()
        raise refused(backup, f"{file.path} changed while it was restored")
    try:
        os.link(fresh, target)  # unlike a rename, a link replaces nothing
    except PermissionError:
        files.rename(fresh, target)  # a file system without second names
        return
    except FileExistsError:
        raise StorageError(
            f"{target} appeared while it was restored", advice="stop the program that writes into that folder"
        ) from None
    fresh.unlink()


# Details


def require_inner_path(
    path: str, error: Callable[[str], StorageError] = lambda text: StorageError(text)
) -> None:
    """Raise unless `path` is relative, made of plain names, and stays inside of its folder."""
    parts = path.split("/")
    if len(path) > 1_024 or not all(_PART.fullmatch(part) and part != ".." for part in parts):
        raise error(f"{path[:200]!r} is not the path of a file inside of a data folder")


def refused(backup: Path, found: str, advice: str = "take another backup") -> BackupRefused:
    return BackupRefused(
        f"refused to restore {backup}: {found}; nothing was restored", advice=advice, found=found
    )


class _disk:  # used as a statement
    """Turn errors of the operating system into a `StorageError` that names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> Literal[False]:
        if isinstance(error, OSError):
            reason = (error.strerror or str(error)).lower()
            name = error.filename or self._path
            raise StorageError(
                f"{name} cannot be read or written: {reason}",
                advice="check the disk, the space left on it, and who may use the folder",
                reason=reason,
            ) from error
        return False


class _opened:  # used as a statement
    """Open a regular file for reading, and never a link to one."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        self._descriptor = os.open(path, flags)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise OSError(0, "it is not a regular file", str(path))

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        os.close(self._descriptor)


def _chunks(descriptor: int, bytes_max: int | None) -> Iterator[bytes]:
    position = 0
    while bytes_max is None or position < bytes_max:
        wanted = COPY_BYTES if bytes_max is None else min(COPY_BYTES, bytes_max - position)
        chunk = os.pread(descriptor, wanted, position)
        if not chunk:
            return
        position += len(chunk)
        yield chunk


def _measured(content: Iterable[bytes]) -> tuple[int, str]:
    digest, size = sha256(), 0
    for chunk in content:
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _write(files: Files, target: Path, content: Iterable[bytes]) -> tuple[int, str]:
    """Write a new file and sync it; return its size and hash."""
    descriptor = files.open(target, is_new=True)
    digest, size = sha256(), 0
    try:
        for chunk in content:
            write_all(files, descriptor, chunk, size)
            digest.update(chunk)
            size += len(chunk)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    return size, digest.hexdigest()


def _make_folders(top: Path, folder: Path) -> None:
    """Make `folder` and all folders between it and `top`, each for this user alone."""
    for one in (*reversed(folder.relative_to(top).parents), folder.relative_to(top)):
        (top / one).mkdir(mode=FOLDER_MODE, exist_ok=True)


def _empty(folder: Path, keep: Collection[str]) -> None:
    for name in os.listdir(folder):
        if name in keep:
            continue
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            with suppress(FileNotFoundError):
                path.unlink()


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown
