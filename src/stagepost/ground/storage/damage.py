"""A SQLite file that may be damaged: opened as far as it goes, with everything kept that somebody could still want.

Damage in SQLite's write-ahead log, which SQLite itself takes for the end of the log and passes over in silence.

The log holds what was committed since the last checkpoint, page by page. Each frame carries a running checksum. Where
one does not fit, but a later frame fits the one before it, something was written behind the damage: those
transactions are lost, and somebody must be told. Damage to the very last transaction looks like a crash before its
end, and cannot be told from it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import TypeVar

from stagepost.errors import StorageError
from stagepost.ground.files.small_files import sync_folder
from stagepost.ground.storage.layout import (
    StoreLayout,
    StoreRefused,
    check_layout,
    link,
    migrate,
    refusal,
    refuse_former_damage,
)
from stagepost.ground.storage.sqlite_file import Connect, DamagedFile, beside, is_damage
from stagepost.ground.storage.tables import Row, UnknownRow

LOG_BYTES_MAX = 256 * 1_024 * 1_024
HEADER = Struct(">8I")  # magic, version, page size, checkpoint number, two salts, two checksums
FRAME = Struct(">6I")  # page, size of the file after a commit, two salts, two checksums
MAGIC = 0x377F0682  # the lowest bit says in which byte order checksums are computed

_WORD = 0xFFFFFFFF
_CHECKED_BYTES_OF_FRAME = 8
_CHECKED_BYTES_OF_HEADER = 24


def damage_in(log: Path) -> str | None:
    """Return one sentence about damage in the log; None if the log is whole up to its end."""
    try:
        if log.stat().st_size > LOG_BYTES_MAX:
            raise StorageError(f"{log} has more than {LOG_BYTES_MAX} bytes")
        content = log.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) <= HEADER.size:
        return None
    magic, _, page_bytes, _, *salts, first, second = HEADER.unpack_from(content)
    is_big = bool(magic & 1)
    begin = _checksum(content[:_CHECKED_BYTES_OF_HEADER], (0, 0), is_big)
    if magic & ~1 != MAGIC or begin != (first, second):
        return f"{log.name} has a damaged header: messages that were accepted last may be missing"
    size = FRAME.size + page_bytes
    count = (len(content) - HEADER.size) // size
    running: tuple[int, int] = begin
    broken_at: int | None = None
    for number in range(count):
        start = HEADER.size + number * size
        _, _, *frame_salts, first, second = FRAME.unpack_from(content, start)
        # Frames with other salts are left over from before the last checkpoint.
        fits = frame_salts == salts and (first, second) == _checksum(
            content[start : start + _CHECKED_BYTES_OF_FRAME] + content[start + FRAME.size : start + size],
            running,
            is_big,
        )
        if fits and broken_at is not None:
            return (
                f"{log.name} is damaged in frame {broken_at + 1} of {count}: messages that were accepted last "
                "may be missing"
            )
        if not fits and broken_at is None:
            broken_at = number
        running = (first, second)
    return None


def _checksum(data: bytes, start: tuple[int, int], is_big: bool) -> tuple[int, int]:
    words = array("I", data)
    if is_big != _NATIVE_IS_BIG:
        words.byteswap()
    first, second = start
    pairs = iter(words)
    for one, two in zip(pairs, pairs, strict=True):
        first = (first + one + second) & _WORD
        second = (second + two + first) & _WORD
    return first, second


_NATIVE_IS_BIG = array("I", b"\0\0\0\1")[0] == 1


COPIES_MAX = 1_000
GAP_LOOKUPS_MAX = 200_000
DAMAGED = ".damaged-"
"""The ending, with a number behind it, of the name that a damaged file is kept under."""
SALVAGED = ".salvaged"
"""The ending of the name of a new file that is whole and waits for the place of the damaged one."""

T = TypeVar("T")


def open_whole(
    path: Path,
    what: str,
    layout: StoreLayout,
    connect: Connect,
    create: Callable[[], None],
    read: Callable[[], T],
    salvage: Callable[[str], str],
) -> tuple[T, list[str]]:
    """Return what `read` gives, if need be after `create`, a migration or `salvage`, and sentences about the damage.

    `salvage` is told what is wrong and makes a readable file. `StoreRefused` if the file is not one of `layout`, or if
    the file is gone and something of it is left; `StorageError` if the surroundings are in the way.
    """
    try:
        damage = _finish_replacement(path)
        if not os.path.lexists(path):
            _refuse_remains(path, what)
            create()
        version, fault = check_layout(path, layout, what)
        log_fault = damage_in(beside(path, "-wal"))
        if fault is None:
            damage += _keep_log(path, log_fault)
            try:
                if version != layout.version:
                    migrate(path, layout, what, connect)
                    version = layout.version
                return read(), damage
            except (DamagedFile, sqlite3.Error) as error:
                if isinstance(error, sqlite3.Error) and not is_damage(error):
                    raise
                fault = str(error)
        elif log_fault is not None:
            damage.append(log_fault)
        refuse_former_damage(version, fault, path, layout, what)
        damage.append(salvage(fault))
        return read(), damage
    except UnknownRow as error:
        raise refusal(what, path, error.text) from error
    except (sqlite3.Error, OSError) as error:
        raise StorageError(f"cannot open the {what} {path}: {error}") from error
    except DamagedFile as error:
        raise StorageError(f"cannot repair the {what} {path}: {error}") from error


def set_aside(path: Path) -> list[Path]:
    """Return the damaged files that were kept when what could be read of them became the file at `path`."""
    if not path.parent.is_dir():
        return []
    begin = path.name + DAMAGED
    found = (one for one in path.parent.iterdir() if one.name.startswith(begin))
    return sorted(found, key=lambda one: (len(one.name), one.name))


def _refuse_remains(path: Path, what: str) -> None:
    """Raise `StoreRefused` if the file is gone, and its log or a damaged copy of it is left: a store was here."""
    left = [beside(path, "-wal")] if beside(path, "-wal").exists() else []
    left += set_aside(path)
    if left:
        names = ", ".join(one.name for one in left)
        raise StoreRefused(
            f"refused to create an empty {what} {path}: the file is missing, and {names} lies in its folder; "
            "nothing was changed",
            advice=f"rename the remaining file back to {path.name}, to have it opened or salvaged, or move "
            "it out of the folder to begin with an empty store",
            found=names,
        )


def _keep_log(path: Path, fault: str | None) -> list[str]:
    """Copy a damaged log before SQLite opens the file: SQLite would drop what follows the damage, and the log with it."""
    if fault is None:
        return []
    kept = unused_name(path)
    shutil.copyfile(beside(path, "-wal"), beside(kept, "-wal"))
    return [f"{fault}; a copy is kept as {kept.name}-wal"]


def unused_name(path: Path) -> Path:
    """Return a name beside the file for a damaged copy of it."""
    for number in range(1, COPIES_MAX + 1):
        old = beside(path, f"{DAMAGED}{number}")
        if not old.exists() and not beside(old, "-wal").exists():
            return old
    raise StorageError(
        f"there are {COPIES_MAX} damaged copies of {path} already", advice="look at them and remove them"
    )


def replace_damaged(path: Path, create: Callable[[Path], None]) -> Path:
    """Put a whole new file in the place of a damaged one, and return the name that the damaged one has from now on.

    `create` makes the new file under the name that it is given. Until that file is durable the old one stays as it is.
    A crash afterwards leaves a new file that the next start puts in its place.
    """
    fresh = beside(path, SALVAGED)
    _remove(fresh)
    create(fresh)
    old = unused_name(path)
    # The log belongs to the file, and the file's content may be in the log alone.
    for ending in ("", "-wal"):
        if beside(path, ending).exists():
            link(beside(path, ending), beside(old, ending))
    sync_folder(path.parent)
    _put_in_place(path, fresh)
    return old


def _put_in_place(path: Path, fresh: Path) -> None:
    # A log must meet neither the old file without it nor the new one: so the file goes first, and the log second.
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
    _remove(path)
    sync_folder(path.parent)
    fresh.rename(path)
    sync_folder(path.parent)


def _finish_replacement(path: Path) -> list[str]:
    """Put a salvaged file in its place if a crash kept the start before this one from it; return a sentence if so."""
    fresh = beside(path, SALVAGED)
    if not fresh.exists():
        return []
    if os.path.lexists(path):
        # The file that was salvaged is still there, and is salvaged once more.
        _remove(fresh)
        return []
    _put_in_place(path, fresh)
    return [
        f"{path.name} could not be read by an earlier start; that start kept it aside and salvaged its rows"
    ]


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        beside(path, ending).unlink(missing_ok=True)


class Remains:
    """The rows of a damaged file, as far as they can be read."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._broken: set[str] = set()

    def numbered_rows(self, table: str, key: str) -> Iterator[Row]:
        """Give rows from the front and from the back as far as it goes; between them, one by one. Some come twice."""
        first = last = 0
        for row in self._until_damage(table, f"ORDER BY {key}"):
            # A damaged key can be anything.
            first = row[0] if isinstance(row[0], int) else first
            yield row
        for row in self._until_damage(table, f"ORDER BY {key} DESC"):
            last = row[0] if isinstance(row[0], int) else last
            yield row
        for number in range(first + 1, min(last, first + GAP_LOOKUPS_MAX)):
            yield from self._until_damage(table, f"WHERE {key} = {number:d}")

    def named_rows(self, table: str, key: str) -> Iterator[Row]:
        """Give rows from the front and from the back as far as it goes. Some come twice."""
        for order in ("ASC", "DESC"):
            yield from self._until_damage(table, f"ORDER BY {key} {order}")

    def refuse_loss(
        self, path: Path, what: str, why: str, copied: Mapping[str, int], noted: Mapping[str, int]
    ) -> None:
        """Raise `StoreRefused` if a table has rows and none of them can be read: a store would begin without them.

        `copied` has the tables whose loss nothing makes up for, `noted` how many rows the file says they have.
        """
        lost = [
            table for table, count in copied.items() if not count and noted.get(table, table in self._broken)
        ]
        if lost:
            raise StoreRefused(
                f"refused to salvage the {what} {path}: no row of {', '.join(lost)} can be read ({why}); "
                "nothing was changed",
                advice="put back a copy of the store, or recover the file with SQLite's own tools; to begin with "
                "an empty store, move the file out of the folder",
                found=lost,
            )

    def _until_damage(self, table: str, rest: str) -> Iterator[Row]:
        try:
            yield from self._connection.execute(f"SELECT * FROM {table} {rest}")
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            self._broken.add(table)
        except UnicodeDecodeError:
            # Damaged text in SQLite's own words: nothing behind it can be trusted.
            self._broken.add(table)


def counted(copied: int, noted: int | None, what: str) -> str:
    """Return "9 of 12 messages": what was copied of what the file says it has."""
    return f"{copied} of {'an unknown number of' if noted is None else noted} {what}"
