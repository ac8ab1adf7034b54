"""Tables on disk: one SQLite file, and the same rows in memory, which are the truth while the process lives.

After any error the connection is thrown away. Before the next write the file is opened anew, checked, and made equal to
what is held: what a failed write may have left is removed, and what it may have destroyed is written again.

All tables of a file as one, for writing: rows of any of them go in, and out of them, with a single call.

Each call lets go of Python's lock several times, and a thread that wants it back waits for a busy loop each time: a
transaction of eight calls took 40 ms beside one, and the same in one call takes six. So there is a view that stands for
every table, with triggers that put each row where it belongs. Both are temporary: the file knows nothing of them.
A single statement is a transaction by itself.

Tables as somebody else sees them: read beside the process that writes them, without a lock and without a change.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeAlias
from urllib.parse import quote

from stagepost.errors import StorageError
from stagepost.ground.storage.damage import Remains, counted, damage_in, open_whole, replace_damaged
from stagepost.ground.storage.layout import (
    BUSY_S,
    QUICK_CHECK_FAULTS_MAX,
    Layout,
    UnreadableLayout,
    check_layout,
    create,
    read_only,
    refuse_other_layout,
    refuse_unmigrated,
)
from stagepost.ground.storage.rows import SET_ASIDE, DamagedRow, Row, content_of
from stagepost.ground.storage.sqlite_file import (
    Connect,
    DamagedFile,
    SqliteFile,
    beside,
    connect,
    is_damage,
)
from stagepost.ground.storage.tables import AnyTable, Draft, Held, Table, empty

ROWS_AT_ONCE_MAX = 64
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, ROWS_AT_ONCE_MAX)
"""How many rows a call takes: few sizes, so that all of them stay prepared."""

PlacedRow: TypeAlias = tuple[int, Any, Any, Any]
"""The number of a table, the key, the content and its checksum; without the two, the row of that key goes."""

_VIEW = "CREATE TEMP VIEW joined_tables AS SELECT 0 AS place, 0 AS key, x'' AS content, x'' AS checksum"
_TEXTS = {size: f"INSERT INTO joined_tables VALUES {', '.join(['(?, ?, ?, ?)'] * size)}" for size in SIZES}


class JoinedTables:
    def __init__(self, tables: Sequence[AnyTable]) -> None:
        self._tables = tuple(tables)
        self._places = {table.name: place for place, table in enumerate(tables)}

    def set_up(self) -> Iterator[str]:
        """What a connection runs once."""
        yield "PRAGMA temp_store = MEMORY"
        yield _VIEW
        for place, table in enumerate(self._tables):
            yield (
                f"CREATE TEMP TRIGGER put_{table.name} INSTEAD OF INSERT ON joined_tables "
                f"WHEN NEW.place = {place} AND NEW.content IS NOT NULL "
                f"BEGIN REPLACE INTO {table.name} VALUES (NEW.key, NEW.content, NEW.checksum); END"
            )
            yield (
                f"CREATE TEMP TRIGGER drop_{table.name} INSTEAD OF INSERT ON joined_tables "
                f"WHEN NEW.place = {place} AND NEW.content IS NULL "
                f"BEGIN DELETE FROM {table.name} WHERE key = NEW.key; END"
            )

    def rows(self, table: AnyTable, changed: Mapping[Any, Any]) -> Iterator[PlacedRow]:
        """By key, the value that the table shall have; None: none."""
        place = self._places[table.name]
        for key, value in changed.items():
            yield (place, key, None, None) if value is None else (place, *table.write(key, value))


def calls(rows: Sequence[PlacedRow]) -> list[tuple[str, list[Any]]]:
    """The statements to run, in order, each with its values. Where there are more than one they need a transaction."""
    made: list[tuple[str, list[Any]]] = []
    for start in range(0, len(rows), ROWS_AT_ONCE_MAX):
        part = rows[start : start + ROWS_AT_ONCE_MAX]
        size = next(size for size in SIZES if size >= len(part))
        values = [value for row in part for value in row]
        # To be put where it is, or to go once more, does nothing to a row.
        values += part[-1] * (size - len(part))
        made.append((_TEXTS[size], values))
    return made


COUNTS = Table("counts", str, int)
"""How many rows each table has: rows that vanish without a trace are noticed."""
_SET_ASIDE_SCHEMA = (
    "CREATE TABLE set_aside (origin TEXT NOT NULL, reason TEXT NOT NULL, content BLOB NOT NULL)"
)


@dataclass
class Found:
    """What a file holds, and what of it is damaged."""

    held: Held
    bad: list[tuple[AnyTable, Row]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)


def layout_of(tables: Sequence[AnyTable]) -> Layout:
    return Layout(
        {table.name: table.schema for table in (*tables, COUNTS)} | {"set_aside": _SET_ASIDE_SCHEMA}
    )


def read_found(rows: Callable[[str], Iterator[Row]], tables: Sequence[AnyTable]) -> Found:
    """Every row, with its checksum looked at; `rows` answers a query."""
    found = Found(empty({table.name: table for table in tables}))
    counts: dict[str, int] = dict(_good_rows(rows, COUNTS, found))
    for table in tables:
        before = len(found.bad)
        pairs = list(_good_rows(rows, table, found))
        number = len(pairs) + len(found.bad) - before
        if table.age is not None:
            age = table.age
            pairs.sort(key=lambda pair: age(pair[1]))
        found.held[table.name] = dict(pairs)
        if counts.get(table.name) != number:
            noted = counts.get(table.name, "an unknown number")
            found.damage.append(f"rows of {table.name} are missing: {number} are there, {noted} were written")
    return found


def _good_rows(
    rows: Callable[[str], Iterator[Row]], table: AnyTable, found: Found
) -> Iterator[tuple[Any, Any]]:
    for row in rows(f"SELECT * FROM {table.name} ORDER BY key"):
        try:
            yield table.read(row)
        except DamagedRow as fault:
            found.bad.append((table, row))
            found.damage.append(f"a row of {table.name} was set aside: {fault} (key {row[0]!r})")


class TableFile:
    """`StorageError` from the constructor if the file cannot be had. Used by one thread at a time."""

    def __init__(
        self, path: Path, tables: Sequence[AnyTable], what: str, *, connect: Connect = connect
    ) -> None:
        self._path = path
        self._tables = tuple(tables)
        self._by_name = {table.name: table for table in tables}
        self._what = what
        self._connect = connect
        self._layout = layout_of(tables)
        self._joined = JoinedTables((*tables, COUNTS))
        self._is_syncing = True
        self.commit_s = 0.0
        """Spent in transactions, mostly in fsync."""
        found, damage = open_whole(
            path,
            f"{what} in",
            self._layout,
            connect,
            create=lambda: self._create(path, empty(self._by_name)),
            read=self._open_first,
            salvage=self._salvage,
        )
        self.held = found.held
        self.damage: list[str] = damage + found.damage

    def _create(self, path: Path, held: Held) -> None:
        """Make a new file that has all of these rows from its first moment."""
        tables = [*((table, held[table.name]) for table in self._tables), (COUNTS, _counts(held))]
        first = [
            (f"INSERT INTO {table.name} VALUES (?, ?, ?)", [table.write(*pair) for pair in rows.items()])
            for table, rows in tables
        ]
        create(path, self._connect, self._layout, first)

    def _open(self) -> SqliteFile:
        self._is_syncing = True
        return SqliteFile(self._path, self._connect, self._joined.set_up())

    def _open_first(self) -> Found:
        self._file: SqliteFile | None = self._open()
        try:
            found = read_found(self._file.rows, self._tables)
            if found.damage:
                self._make_equal(self._file, found, found.held)
            return found
        except BaseException:
            self._file.close()
            raise

    def _make_equal(self, file: SqliteFile, found: Found, wanted: Held) -> None:
        """Bad rows go aside, rows that are too many go away, rows that are not there are written."""
        file.begin()
        notes = [(table.name, f"key {row[0]!r}", content_of(row)) for table, row in found.bad]
        file.run(SET_ASIDE, notes)
        for table, row in found.bad:
            file.run(table.drop_damaged, [(row[0],)])
        file.run("DELETE FROM counts", [()])
        rows: list[PlacedRow] = []
        for table in self._tables:
            there, held = found.held[table.name], wanted[table.name]
            too_many = {key: None for key in there if key not in held}
            missing = {key: value for key, value in held.items() if there.get(key) != value}
            rows += self._joined.rows(table, too_many | missing)
        rows += self._joined.rows(COUNTS, _counts(wanted))
        for text, values in calls(rows):
            file.call(text, values)
        file.commit()

    def _salvage(self, why: str) -> str:
        """Put a new file with the readable rows in the place of a damaged one; return one sentence for the operator."""
        held = empty(self._by_name)
        with read_only(self._path) as connection:
            remains = Remains(connection)
            noted: dict[str, int] = dict(_good(remains.named_rows(COUNTS.name, "key"), COUNTS))
            for table in self._tables:
                read = remains.numbered_rows if table.key is int else remains.named_rows
                held[table.name].update(_good(read(table.name, "key"), table))
        needed = {table.name: len(held[table.name]) for table in self._tables if not table.is_replaceable}
        remains.refuse_loss(self._path, f"{self._what} in", why, needed, noted)
        old = replace_damaged(self._path, lambda fresh: self._create(fresh, held))
        copied = ", ".join(
            counted(len(rows), noted.get(name), f"rows of {name}") for name, rows in held.items()
        )
        return (
            f"{self._path.name} could not be read ({why}); it is kept as {old.name}; copied from it: {copied}"
        )

    @property
    def is_suspect(self) -> bool:
        """After an error, until the next commit has looked at the file and made it equal to what is held."""
        return self._file is None

    def commit(self, draft: Draft, *, is_synced: bool) -> None:
        """Returns when the draft is in the file, and with `is_synced` on the disk; `StorageError`, and it is not."""
        try:
            if self._file is None:
                self._file = self._reopened()
            self._write(self._file, draft, is_synced)
        except (sqlite3.Error, OSError, DamagedFile, StorageError) as error:
            if self._file is not None:
                self._file.close()
                self._file = None
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"the {self._what} in {self._path} cannot be written: {error}",
                advice="check the disk and the space left on it",
            ) from error
        draft.settle()

    def _write(self, file: SqliteFile, draft: Draft, is_synced: bool) -> None:
        if is_synced is not self._is_syncing:
            file.sync_commits(is_synced)
            self._is_syncing = is_synced
        rows: list[PlacedRow] = []
        for name, changed in draft.changes.items():
            rows += self._joined.rows(self._by_name[name], changed)
        # An empty draft writes the counts all the same: there must be something that a sync can wait for.
        counted = [self._by_name[name] for name in draft.changes] or self._tables
        rows += self._joined.rows(COUNTS, {table.name: draft.count(table) for table in counted})
        began_s = time.monotonic()
        file.write(calls(rows))
        self.commit_s += time.monotonic() - began_s

    def _reopened(self) -> SqliteFile:
        try:
            if not self._path.exists():
                raise DamagedFile("the file is gone")
            version, fault = check_layout(self._path, self._layout, f"{self._what} in")
            if version != self._layout.version:
                fault = f"it is of version {version}, not {self._layout.version}"
            if fault is not None:
                raise DamagedFile(fault)
            file = self._open()
        except (DamagedFile, UnreadableLayout, sqlite3.Error) as error:
            if isinstance(error, sqlite3.Error) and not is_damage(error):
                raise
            # Everything is in memory: whatever became of the file, a new one has it all.
            replace_damaged(self._path, lambda fresh: self._create(fresh, self.held))
            file = self._open()
        try:
            self._make_equal(file, read_found(file.rows, self._tables), self.held)
            # Nothing may rely on what lies in a log whose fsync has failed.
            file.empty_log()
        except BaseException:
            file.close()
            raise
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _counts(held: Held) -> dict[str, int]:
    return {name: len(rows) for name, rows in held.items()}


def _good(rows: Iterator[Row], table: AnyTable) -> Iterator[tuple[Any, Any]]:
    for row in rows:
        with suppress(DamagedRow):
            yield table.read(row)


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
        layout = layout_of(tables)
        version = refuse_other_layout(connection, path, layout, f"{what} in")
        refuse_unmigrated(version, path, layout, f"{what} in")
        faults = connection.execute(f"PRAGMA quick_check({QUICK_CHECK_FAULTS_MAX})").fetchall()
        found = read_found(lambda query: iter(connection.execute(query)), tables)
        if faults != [(b"ok",)]:
            found.damage += [line.decode(errors="replace").replace("\n", " ") for (line,) in faults]
        return found
