"""Tables as somebody else sees them: read beside the process that writes them, without a lock and without a change."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from stat import S_ISREG
from urllib.parse import quote

from stagepost.errors import StorageError
from stagepost.ground.storage.layout import BUSY_S, QUICK_CHECK_FAULTS_MAX, refuse_other_layout
from stagepost.ground.storage.sqlite_file import beside, is_damage
from stagepost.ground.storage.sqlite_log import damage_in
from stagepost.ground.storage.table_file import Found, read_found, schema_of
from stagepost.ground.storage.tables import AnyTable

DAMAGED_ADVICE = "keep a copy of the file; the next program that opens it to write moves it aside and copies what can be read"
SURROUNDINGS_ADVICE = "check who may read the file, whether another program keeps it locked, and the disk"


def read_beside(path: Path, tables: Sequence[AnyTable], what: str, *, is_in_use: bool) -> Found:
    """Return what one moment shows, with damaged rows in `damage`; `StorageError` if the file as a whole cannot be read.

    A file that nobody can read is an error and never an empty one: how many rows it has is unknown.
    """
    try:
        _require_file(path, what)
        found = _read(path, tables, what)
        # The log of somebody who writes at this moment changes under our hands.
        fault = None if is_in_use else damage_in(beside(path, "-wal"))
    except sqlite3.Error as error:
        advice = DAMAGED_ADVICE if is_damage(error) else SURROUNDINGS_ADVICE
        raise StorageError(f"cannot read the {what} in {path.parent}: {error}", advice=advice) from error
    except _Unreadable as error:
        raise StorageError(
            f"cannot read the {what} in {path.parent}: {error}", advice=DAMAGED_ADVICE
        ) from error
    except UnicodeDecodeError as error:
        text = f"cannot read the {what} in {path.parent}: the description of its tables is damaged"
        raise StorageError(text, advice=DAMAGED_ADVICE) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(
            f"cannot read the {what} in {path.parent}: {reason}", advice=SURROUNDINGS_ADVICE
        ) from error
    if fault is not None:
        found.damage.insert(0, fault)
    return found


class _Unreadable(Exception):
    """The file is not what the tables are kept in; `str` says why."""


def _require_file(path: Path, what: str) -> None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if beside(path, "-wal").exists():
            raise _Unreadable(f"{path.name} is missing, and its log is left") from None
        raise StorageError(
            f"there is no {what} in {path.parent}", advice="check the name of the folder", found=str(path)
        ) from None
    if not S_ISREG(status.st_mode):
        raise _Unreadable(f"{path.name} is not a file")
    if not status.st_size:
        raise _Unreadable(f"{path.name} is empty")


def _read(path: Path, tables: Sequence[AnyTable], what: str) -> Found:
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=BUSY_S)) as connection:
        connection.text_factory = bytes
        connection.execute("BEGIN")
        refuse_other_layout(connection, path, schema_of(tables), f"{what} in")
        faults = connection.execute(f"PRAGMA quick_check({QUICK_CHECK_FAULTS_MAX})").fetchall()
        found = read_found(lambda query: iter(connection.execute(query)), tables)
        if faults != [(b"ok",)]:
            found.damage += [line.decode(errors="replace").replace("\n", " ") for (line,) in faults]
        return found
