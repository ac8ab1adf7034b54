"""Own files of a folder of tables: the names that its drivers and the `deltalake` package make there, the refusal of a
folder that holds anything else, and the removal of what a killed driver had written and not published. Needs no Spark.

The name of a file that a driver writes begins with the generation of the commit that it is written for. So whatever a driver
that was killed leaves behind is known by name; of all other files only those are removed that the log of a table once named.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.audit import AUDIT_FILE, EARLIER_FILE
from stagepost.ground.files.owner_lock import LockConflict, OwnerLock
from stagepost.ground.files.small_files import sync_folder
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.pipeline.tables.delta import CHECKPOINT_END, DAY, LAST_CHECKPOINT_FILE, LOG_FOLDER
from stagepost.pipeline.tables.manifest import (
    COMMITS,
    RECORDS,
    SETS_FOLDER,
    STATE,
    TRUST_FOLDER,
    Manifest,
    refuse_former,
)
from stagepost.pipeline.tables.reader import TABLES
from stagepost.pipeline.tables.safe_storage import PROBE, require_safe_options
from stagepost.pipeline.tables.store import TableStore, said

CHECKPOINT_FOLDER = "checkpoint"
LOCK_FILE = "driver.lock"
KAFKA_NOTE_FILE = "kafka-source.json"
WORKER_MARK_PREFIX = ".seen-by-"
NAMES_SHOWN_MAX = 3

TABLE_FOLDERS = (*TABLES, RECORDS, STATE, COMMITS)
_FILES = (LOCK_FILE, KAFKA_NOTE_FILE, AUDIT_FILE, EARLIER_FILE)
_TEMPORARY = re.compile(
    "|".join(re.escape(f".{name}.new") for name in _FILES)
    + "|"
    + re.escape(WORKER_MARK_PREFIX)
    + "[0-9a-f]{16}(-[0-9]+)?"
)
# Made by the file system itself: for a file that was removed while somebody reads it, and at the top of a volume.
_OF_FILE_SYSTEM = re.compile(r"\.nfs[0-9a-f]+|lost\+found")
_COPIES = {
    SETS_FOLDER: re.compile(r"[0-9a-f]{64}\.(json|new)"),
    TRUST_FOLDER: re.compile(r"[0-9a-f]{64}\.(json|tl|new)"),
}
_PROBE = re.compile(re.escape(PROBE) + "[0-9a-f]+")
_FOLDERS = (*TABLE_FOLDERS, *_COPIES, CHECKPOINT_FOLDER)
_DAY_FOLDER = re.compile(rf"{DAY}=[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}")
_ENTRY = re.compile(r"[0-9]{20}\.json")
_OUR_FILE = re.compile(r"([0-9]+)-[0-9a-f]{16}\.parquet")
# Of the package, when it merges, updates and compacts.
_PACKAGE_FILE = re.compile(r"part-[0-9]{5}-[0-9a-f-]{36}-c[0-9]{3}(\.[a-z0-9]+)?\.parquet")


class DriverLock:
    """Lock of a tables folder, so that one driver at a time writes there. It is held from construction to `release`, or until the process ends."""

    def __init__(self, folder: Path) -> None:
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = OwnerLock(folder / LOCK_FILE, holder)
        except LockConflict as error:
            raise StorageError(
                f"the tables in {folder} are being written by {error.found or 'a process that left no name'}",
                advice="wait for it or stop it; one driver writes a tables folder at a time",
                found=error.found,
            ) from error
        except (OSError, StorageError) as error:
            reason = error if isinstance(error, OSError) else error.__cause__
            raise StorageError(
                f"cannot write tables into {folder}: {getattr(reason, 'strerror', None)}", advice="see --out"
            ) from error

    def release(self) -> None:
        self._lock.release()


def require_own_place(where: TableStore) -> None:
    """Raise `ConfigError` if tables must not be written here: a folder with anything that is not ours, object storage
    with options by which commits are not safe, or tables of the former format.
    """
    require_safe_options(where, os.environ)
    require_own_folder(where)


def require_own_folder(where: TableStore) -> None:
    """Raise `ConfigError` if a folder or prefix holds anything that no driver of tables made there, or tables without `commits`.

    Looks only: nothing is written, and a driver may be at work there meanwhile. Below a prefix of object storage only the first
    names are looked at: no file is removed there that the log of a table has not named.
    """
    try:
        refuse_former(where)
        if where.is_local:
            strange = list(_strange_in(where.folder))
            left = [name for name in TABLE_FOLDERS if (where.folder / name / LOG_FOLDER).is_dir()]
        else:
            below = _names_below(where)
            strange = sorted(one for one in below if not (one in _FOLDERS or _PROBE.fullmatch(one)))
            left = [name for name in TABLE_FOLDERS if name in below]
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(
            f"cannot write tables into {where}: {(error.strerror or said(error)).lower()}", advice="see --out"
        ) from error
    if left and COMMITS not in left:
        raise ConfigError(
            f"{where} holds {len(left)} tables, as {left[0]}, and no table {COMMITS} that says what of them counts",
            advice=f"put {COMMITS} back from a copy, or make new tables from the topics or the dump in another folder",
            found=len(left),
        )
    if strange:
        shown = ", ".join(strange[:NAMES_SHOWN_MAX])
        more = f" and {len(strange) - NAMES_SHOWN_MAX} more" if len(strange) > NAMES_SHOWN_MAX else ""
        raise ConfigError(
            f"{where} holds what no driver of these tables has made: {shown}{more}",
            advice="move it elsewhere, or name an empty folder or a new one for the tables; nothing was written or removed",
            found=strange[0],
        )


def _names_below(where: TableStore) -> set[str]:
    """Return the first names below a prefix of object storage."""
    from pyarrow.fs import FileSelector

    found = where.file_system("").get_file_info(FileSelector("", allow_not_found=True))
    return {info.base_name for info in found}


def remove_unfinished(where: TableStore, manifest: Manifest) -> None:
    """Remove the files that drivers wrote for commits that were never published."""
    if not where.is_local:
        return
    for name in TABLE_FOLDERS:
        for file in _files_of_days(where.folder / name):
            found = _OUR_FILE.fullmatch(file.name)
            if found is not None and int(found[1]) > manifest.generation:
                file.unlink(missing_ok=True)


def remove_torn(where: TableStore, name: str, published: int = -1) -> None:
    """Remove from a table's log on a local disk what a power cut left half-written: the last entry if it is newer than the version
    that is `published`, and the last checkpoint if the entries that it stands for are there.

    Entries are durable before they are published, so nothing counts that a torn one says.
    """
    if not where.is_local:
        return
    log = where.folder / name / LOG_FOLDER
    entries = {int(one.stem): one for one in log.glob("*.json") if _ENTRY.fullmatch(one.name)}
    last = max(entries, default=-1)
    if last > published and _is_torn(entries[last].read_bytes()):
        entries[last].unlink()
        sync_folder(log)
    checkpoints = sorted(log.glob(f"[0-9]*{CHECKPOINT_END}"))
    if checkpoints and _is_torn_checkpoint(checkpoints[-1]):
        former, torn = ([-1, *(int(one.name.split(".")[0]) for one in checkpoints)])[-2:]
        if entries.keys() >= set(range(former + 1, torn + 1)):
            (log / LAST_CHECKPOINT_FILE).unlink(missing_ok=True)
            checkpoints[-1].unlink()
            sync_folder(log)


def _is_torn_checkpoint(path: Path) -> bool:
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        pq.ParquetFile(path).read()
    except (OSError, ArrowException):
        return True
    return False


def _is_torn(entry: bytes) -> bool:
    try:
        for line in entry.splitlines():
            decode_foreign(line, dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return True
    return False


def _files_of_days(table: Path) -> Iterator[Path]:
    if table.is_dir():
        for day in table.iterdir():
            if _DAY_FOLDER.fullmatch(day.name):
                yield from day.iterdir()


def _strange_in(folder: Path) -> Iterator[str]:
    """Yield what no driver made, by its name from `folder` on, in the order of names."""
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        name = entry.name
        if _OF_FILE_SYSTEM.fullmatch(name) or (entry.is_file() and _is_file_of_ours(name)):
            continue
        if not entry.is_dir() or name not in _FOLDERS:
            yield name
        elif name in _COPIES:
            yield from (f"{name}/{one}" for one in os.listdir(entry.path) if not _COPIES[name].fullmatch(one))
        elif name in TABLE_FOLDERS:
            yield from (f"{name}/{one}" for one in _strange_in_table(Path(entry.path)))


def _strange_in_table(table: Path) -> Iterator[str]:
    for entry in sorted(os.scandir(table), key=lambda one: one.name):
        if entry.is_dir() and _DAY_FOLDER.fullmatch(entry.name):
            for file in sorted(os.listdir(entry.path)):
                is_ours = _OUR_FILE.fullmatch(file) or _PACKAGE_FILE.fullmatch(file)
                if not is_ours and not _OF_FILE_SYSTEM.fullmatch(file):
                    yield f"{entry.name}/{file}"
        elif entry.name != LOG_FOLDER and not _OF_FILE_SYSTEM.fullmatch(entry.name):
            yield entry.name


def _is_file_of_ours(name: str) -> bool:
    return name in _FILES or _TEMPORARY.fullmatch(name) is not None
