"""A SQLite file that may be damaged: opened as far as it goes, with everything kept that somebody could still want."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from stagepost.errors import StorageError
from stagepost.runtime.sqlite_file import DamagedFile, beside, is_damage, sync_folder
from stagepost.runtime.sqlite_log import damage_in
from stagepost.runtime.sqlite_rows import Row

COPIES_MAX = 1_000
GAP_LOOKUPS_MAX = 200_000

T = TypeVar("T")


def open_whole(
    path: Path,
    what: str,
    create: Callable[[], None],
    read: Callable[[], T],
    salvage: Callable[[str], str],
) -> tuple[T, list[str]]:
    """What `read` gives, if need be after `create` or `salvage`, and sentences about the damage that was met.

    `salvage` is told what is wrong and makes a readable file. `StorageError` if the surroundings are in the way.
    """
    try:
        if not path.exists() and not beside(path, "-wal").exists():
            create()
        damage = _look_at_log(path)
        try:
            # A file that is gone while its log is left is damage, and must not be taken for a new one.
            if not path.exists() or not path.stat().st_size:
                raise DamagedFile("the file is missing or empty")
            return read(), damage
        except (DamagedFile, sqlite3.Error) as error:
            if isinstance(error, sqlite3.Error) and not is_damage(error):
                raise
            damage.append(salvage(str(error)))
            return read(), damage
    except (sqlite3.Error, OSError) as error:
        raise StorageError(f"cannot open the {what} {path}: {error}") from error
    except DamagedFile as error:
        raise StorageError(f"cannot repair the {what} {path}: {error}") from error


def _look_at_log(path: Path) -> list[str]:
    """Before SQLite opens the file: it would drop what follows the damage, and the log with it."""
    log = beside(path, "-wal")
    fault = damage_in(log)
    if fault is None:
        return []
    kept = unused_name(path)
    shutil.copyfile(log, beside(kept, "-wal"))
    return [f"{fault}; a copy is kept as {kept.name}-wal"]


def unused_name(path: Path) -> Path:
    """A name beside the file for a damaged copy of it."""
    for number in range(1, COPIES_MAX + 1):
        old = beside(path, f".damaged-{number}")
        if not old.exists() and not beside(old, "-wal").exists():
            return old
    raise StorageError(
        f"there are {COPIES_MAX} damaged copies of {path} already", advice="look at them and remove them"
    )


def rename_damaged(path: Path) -> Path:
    old = unused_name(path)
    # The log belongs to the file, and the file's content may be in the log alone.
    for ending in ("-wal", ""):
        with suppress(FileNotFoundError):
            beside(path, ending).rename(beside(old, ending))
    beside(path, "-shm").unlink(missing_ok=True)
    sync_folder(path.parent)
    return old


def numbered_rows(connection: sqlite3.Connection, table: str, key: str) -> Iterator[Row]:
    """From the front and from the back as far as it goes; what lies between, one by one. Some rows come twice."""
    first = last = 0
    for row in until_damage(connection, f"SELECT * FROM {table} ORDER BY {key}"):
        # With a damaged description of the table a key can be anything.
        first = row[0] if isinstance(row[0], int) else first
        yield row
    for row in until_damage(connection, f"SELECT * FROM {table} ORDER BY {key} DESC"):
        last = row[0] if isinstance(row[0], int) else last
        yield row
    for number in range(first + 1, min(last, first + GAP_LOOKUPS_MAX)):
        yield from until_damage(connection, f"SELECT * FROM {table} WHERE {key} = {number:d}")


def named_rows(connection: sqlite3.Connection, table: str, key: str) -> Iterator[Row]:
    """From the front and from the back as far as it goes. Some rows come twice."""
    for order in ("ASC", "DESC"):
        yield from until_damage(connection, f"SELECT * FROM {table} ORDER BY {key} {order}")


def until_damage(connection: sqlite3.Connection, query: str) -> Iterator[Row]:
    try:
        yield from connection.execute(query)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
    except UnicodeDecodeError:
        # Damaged text, in a row or in SQLite's own words about the schema: nothing behind it can be trusted.
        return
