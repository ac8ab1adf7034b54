"""Own files of a tables folder: the names that its drivers make, the journal of folders that they write into, and the
refusal of a folder that holds anything else. Needs no Spark.

A driver enters the folder of a commit into the journal before the first file is written there. So whatever a driver that
was killed leaves behind is known by name, and nothing but files that the journal or the manifest once named is removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.local_paths import require_local_path
from stagepost.pipeline.tables.driver_lock import LOCK_FILE
from stagepost.pipeline.tables.manifest import MANIFEST_FILE, SETS_FOLDER, read_manifest, replace_durably

DATA_FOLDER = "data"
CHECKPOINT_FOLDER = "checkpoint"
KAFKA_NOTE_FILE = "kafka-source.json"
JOURNAL_FILE = "works.json"
WORKER_MARK_PREFIX = ".seen-by-"
JOURNAL_BYTES_MAX = 16 * 1024 * 1024
NAMES_SHOWN_MAX = 3

_FILES = (MANIFEST_FILE, LOCK_FILE, KAFKA_NOTE_FILE, JOURNAL_FILE)
_FOLDERS = (DATA_FOLDER, SETS_FOLDER, CHECKPOINT_FOLDER)
_TEMPORARY = re.compile(
    "|".join(re.escape(f".{name}.new") for name in _FILES)
    + "|"
    + re.escape(WORKER_MARK_PREFIX)
    + "[0-9a-f]{16}(-[0-9]+)?"
)
# Made by the file system itself: for a file that was removed while somebody reads it, and at the top of a volume.
_OF_FILE_SYSTEM = re.compile(r"\.nfs[0-9a-f]+|lost\+found")
_WORK = re.compile(r"[0-9]{8,}-[0-9a-f]{8}")
_SETS_COPY = re.compile(r"[0-9a-f]{64}\.(json|new)")
# Of our own steps, and of Spark's writer with its marks, checksums and attempts.
_WORK_FILE = re.compile(
    r"[a-z_]+/([0-9a-f]{16}\.parquet|part-[\w.-]+\.parquet|\.part-[\w.-]+\.crc|_SUCCESS|\._SUCCESS\.crc|_temporary/.+)"
)


class _Journal(msgspec.Struct, frozen=True):
    begun: dict[str, int]


def read_journal(folder: Path) -> dict[str, int]:
    """Return the folders under `data/` that drivers have written into lately, each with its time in Unix ms."""
    path = folder / JOURNAL_FILE
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(JOURNAL_BYTES_MAX), type=_Journal).begun
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageError(
            f"{path} cannot be read: {error}",
            advice="move it elsewhere; files that a driver left unfinished are then refused by name",
        ) from error


def write_journal(folder: Path, begun: Mapping[str, int]) -> None:
    """Replace the journal; it is durable when this returns."""
    replace_durably(folder / JOURNAL_FILE, msgspec.json.encode(_Journal(dict(begun))))


def unfinished_files(folder: Path, work: str, named: Collection[str]) -> Iterator[Path]:
    """Yield the files of one journaled folder that a driver made and `named`, the published names, does not have."""
    place = folder / DATA_FOLDER / work
    for name in _files_under(place):
        if _WORK_FILE.fullmatch(name) and f"{DATA_FOLDER}/{work}/{name}" not in named:
            yield place / name


def remove_empty_folders(place: Path) -> None:
    """Remove `place` and every folder in it, as far as they are empty."""
    for inner, _, _ in os.walk(place, topdown=False):
        try:
            os.rmdir(inner)
        except OSError:
            continue  # something is in it


def require_own_folder(folder: Path) -> None:
    """Raise `ConfigError` if `folder` holds anything that no driver of tables made there, or data without a manifest.

    Looks only: nothing is written, and a driver may be at work in the folder meanwhile. The files are listed before the
    journal and the manifest are read, because a driver names each file before it makes it.
    """
    require_local_path(folder)
    try:
        found = list(_found_in(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(
            f"cannot write tables into {folder}: {(error.strerror or str(error)).lower()}", advice="see --out"
        ) from error
    begun, manifest = read_journal(folder), read_manifest(folder)
    data = [name for name in found if _work_of(name) is not None]
    if manifest is None and data:
        raise ConfigError(
            f"{folder} holds {len(data)} files of tables, as {data[0]}, and no {MANIFEST_FILE} that says which of them count",
            advice=f"put {MANIFEST_FILE} back from a copy, or make new tables from the topics or the dump with another --out",
            found=len(data),
        )
    named = set() if manifest is None else set(manifest.published())
    strange = [name for name in found if not _is_own(name, named, begun) and os.path.lexists(folder / name)]
    if strange:
        shown = ", ".join(strange[:NAMES_SHOWN_MAX])
        more = f" and {len(strange) - NAMES_SHOWN_MAX} more" if len(strange) > NAMES_SHOWN_MAX else ""
        raise ConfigError(
            f"{folder} holds what no driver of these tables has made: {shown}{more}",
            advice="move it elsewhere, or choose an empty folder with --out; nothing was written or removed",
            found=strange[0],
        )


def _found_in(folder: Path) -> Iterator[str]:
    """Yield what has to be accounted for, by its name from `folder` on: unknown entries, and every file of data."""
    for entry in os.scandir(folder):
        name = entry.name
        if _OF_FILE_SYSTEM.fullmatch(name) or (entry.is_file() and _is_file_of_ours(name)):
            continue
        if not (entry.is_dir() and name in _FOLDERS):
            yield name
        elif name == SETS_FOLDER:
            yield from (f"{name}/{one}" for one in os.listdir(entry.path) if not _SETS_COPY.fullmatch(one))
        elif name == DATA_FOLDER:
            yield from (f"{name}/{one}" for one in _found_in_data(Path(entry.path)))


def _found_in_data(data: Path) -> Iterator[str]:
    for entry in os.scandir(data):
        if entry.is_dir() and _WORK.fullmatch(entry.name):
            yield from (f"{entry.name}/{name}" for name in _files_under(Path(entry.path)))
        elif not _OF_FILE_SYSTEM.fullmatch(entry.name):
            yield entry.name


def _files_under(place: Path) -> Iterator[str]:
    for inner, _, names in os.walk(place, onerror=_refuse_to_overlook):
        for name in names:
            if not _OF_FILE_SYSTEM.fullmatch(name):
                yield str((Path(inner) / name).relative_to(place))


def _refuse_to_overlook(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a driver has removed the folder meanwhile
        raise error


def _is_file_of_ours(name: str) -> bool:
    return name in _FILES or _TEMPORARY.fullmatch(name) is not None


def _is_own(name: str, named: Collection[str], begun: Collection[str]) -> bool:
    work = _work_of(name)
    if work is None:
        return False
    inside = name.removeprefix(f"{DATA_FOLDER}/{work}/")
    return name in named or (work in begun and _WORK_FILE.fullmatch(inside) is not None)


def _work_of(name: str) -> str | None:
    """Return the commit's folder that a file of data lies in; None for anything else."""
    parts = name.split("/", 2)
    is_of_work = len(parts) == 3 and parts[0] == DATA_FOLDER and _WORK.fullmatch(parts[1])
    return parts[1] if is_of_work else None
