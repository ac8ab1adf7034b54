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
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from stagepost.errors import StorageError
from stagepost.ground.storage.damage import Remains, counted, damage_in, open_whole, replace_damaged
from stagepost.ground.storage.layout import (
    BUSY_S,
    NUMBERED,
    QUICK_CHECK_FAULTS_MAX,
    Beginning,
    StoreLayout,
    UnreadableLayout,
    check_layout,
    create,
    read_only,
    refuse_other_layout,
    refuse_unmigrated,
)
from stagepost.ground.storage.sqlite_file import (
    Connect,
    DamagedFile,
    SqliteFile,
    beside,
    connect,
    is_damage,
)
from stagepost.ground.storage.tables import (
    SET_ASIDE,
    AnyTable,
    DamagedRow,
    Draft,
    Held,
    Row,
    RowTable,
    Table,
    content_of,
    empty,
)

ROWS_AT_ONCE_MAX = 64
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, ROWS_AT_ONCE_MAX)
"""Rows in a call: few sizes, so that the statements of all of them stay prepared."""

PlacedRow: TypeAlias = tuple[Any, ...]
"""Number of a table, and the columns of a row, None in those that the table lacks; with a key alone the row goes."""


class JoinedTables:
    def __init__(self, tables: Sequence[AnyTable]) -> None:
        self._tables = tuple(tables)
        self._places = {table.name: place for place, table in enumerate(tables)}
        self._width = max(table.width for table in tables)
        self._texts = {
            size: f"INSERT INTO joined_tables VALUES {_marks(self._width + 1, size)}" for size in SIZES
        }

    def set_up(self) -> Iterator[str]:
        """Give the statements that a connection runs once."""
        yield "PRAGMA temp_store = MEMORY"
        columns = "".join(f", x'' AS c{number}" for number in range(self._width))
        yield f"CREATE TEMP VIEW joined_tables AS SELECT 0 AS place{columns}"
        for place, table in enumerate(self._tables):
            values = ", ".join(f"NEW.c{number}" for number in range(table.width))
            yield (
                f"CREATE TEMP TRIGGER put_{table.name} INSTEAD OF INSERT ON joined_tables "
                f"WHEN NEW.place = {place} AND NEW.c1 IS NOT NULL "
                f"BEGIN REPLACE INTO {table.name} VALUES ({values}); END"
            )
            yield (
                f"CREATE TEMP TRIGGER drop_{table.name} INSTEAD OF INSERT ON joined_tables "
                f"WHEN NEW.place = {place} AND NEW.c1 IS NULL "
                f"BEGIN DELETE FROM {table.name} WHERE {table.key_column} = NEW.c0; END"
            )

    def rows(self, table: AnyTable, changed: Mapping[Any, Any]) -> Iterator[PlacedRow]:
        """Give the rows for `changed`: by key, the value that the table shall have, or None for no value."""
        place = self._places[table.name]
        gone, filler = (None,) * (self._width - 1), (None,) * (self._width - table.width)
        for key, value in changed.items():
            yield (place, key, *gone) if value is None else (place, *table.write(key, value), *filler)

    def calls(self, rows: Sequence[PlacedRow]) -> list[tuple[str, list[Any]]]:
        """Return the statements to run, in order, each with its values. More than one of them need a transaction."""
        made: list[tuple[str, list[Any]]] = []
        for start in range(0, len(rows), ROWS_AT_ONCE_MAX):
            part = rows[start : start + ROWS_AT_ONCE_MAX]
            place = part[0][0]
            if len(part) == ROWS_AT_ONCE_MAX and all(row[0] == place and row[2] is not None for row in part):
                # As many rows of one table as a call takes: without the triggers they cost half.
                table = self._tables[place]
                text = f"REPLACE INTO {table.name} VALUES {_marks(table.width, ROWS_AT_ONCE_MAX)}"
                made.append((text, [value for row in part for value in row[1 : table.width + 1]]))
                continue
            size = next(size for size in SIZES if size >= len(part))
            values = list(chain.from_iterable(part))
            # To be put where it is, or to go once more, does nothing to a row.
            values += part[-1] * (size - len(part))
            made.append((self._texts[size], values))
        return made


def _marks(width: int, size: int) -> str:
    return ", ".join([f"({', '.join('?' * width)})"] * size)


class Notes(NamedTuple):
    """Table of numbers by name: how many rows each other table has, and numbers of the store's own, called `names`.

    Rows that vanish without a trace are noticed by their number.
    """

    table: RowTable[str, int]
    names: tuple[str, ...] = ()


COUNTS = Notes(Table("counts", str, int))
"""Notes of a store that has no numbers of its own."""
_SET_ASIDE_SCHEMA = (
    "CREATE TABLE set_aside (origin TEXT NOT NULL, reason TEXT NOT NULL, content BLOB NOT NULL)"
)


class BadRow(NamedTuple):
    """Row that is set aside, because of `fault`."""

    table: AnyTable
    row: Row
    fault: str


@dataclass
class Found:
    """Rows of a file, those that are damaged, and a sentence about each damage."""

    held: Held
    bad: list[BadRow] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def set_aside(self, table: AnyTable, row: Row, fault: str) -> None:
        self.bad.append(BadRow(table, row, fault))
        self.damage.append(f"a row of {table.name} was set aside: {fault} ({table.key_column} {row[0]!r})")


def layout_of(
    tables: Sequence[AnyTable], notes: Notes = COUNTS, begins: Beginning | None = None
) -> StoreLayout:
    schemas = {table.name: table.schema for table in (*tables, notes.table)}
    migrations = (NUMBERED,) if begins is None else ()
    return StoreLayout(schemas | {"set_aside": _SET_ASIDE_SCHEMA}, migrations, begins)


def read_found(
    rows: Callable[[str], Iterator[Row]], tables: Sequence[AnyTable], notes: Notes = COUNTS
) -> Found:
    """Read every row and look at its checksum; `rows` answers a query."""
    found = Found(empty({table.name: table for table in tables}))
    numbers: dict[str, int] = dict(_good_rows(rows, notes.table, found))
    found.held[notes.table.name] = {name: numbers.get(name, 0) for name in notes.names}
    found.damage += [f"the note of {name} is missing" for name in notes.names if name not in numbers]
    for table in tables:
        before = len(found.bad)
        pairs = list(_good_rows(rows, table, found))
        if table.identity is not None:
            pairs = _without_repeats(pairs, table, table.identity, found)
        number = len(pairs) + len(found.bad) - before
        if table.age is not None:
            age = table.age
            pairs.sort(key=lambda pair: age(pair[1]))
        found.held[table.name] = dict(pairs)
        if numbers.get(table.count_name) != number:
            noted = numbers.get(table.count_name, "an unknown number")
            found.damage.append(f"rows of {table.name} are missing: {number} are there, {noted} were written")
    return found


def _good_rows(
    rows: Callable[[str], Iterator[Row]], table: AnyTable, found: Found
) -> Iterator[tuple[Any, Any]]:
    for row in rows(_all_rows(table)):
        try:
            yield table.read(row)
        except DamagedRow as fault:
            found.set_aside(table, row, str(fault))


def _all_rows(table: AnyTable) -> str:
    return f"SELECT * FROM {table.name} ORDER BY {table.key_column}"


def _without_repeats(
    pairs: list[tuple[Any, Any]], table: AnyTable, identity: Callable[[Any], object], found: Found
) -> list[tuple[Any, Any]]:
    first = {identity(value): key for key, value in reversed(pairs)}
    if len(first) == len(pairs):
        return pairs
    for key, value in pairs:
        if first[identity(value)] != key:
            found.set_aside(table, table.write(key, value), "it is stored twice")
    return [(key, value) for key, value in pairs if first[identity(value)] == key]


class TableFile:
    """Tables in one file; `StorageError` from the constructor if the file cannot be had. Used by one thread at a time.

    `what` names the file in errors, with the word before its path: "outbox in".
    """

    def __init__(
        self,
        path: Path,
        tables: Sequence[AnyTable],
        what: str,
        *,
        notes: Notes = COUNTS,
        connect: Connect = connect,
        begins: Beginning | None = None,
    ) -> None:
        self._path = path
        self._tables = tuple(tables)
        self._notes = notes
        self._by_name: dict[str, AnyTable] = {table.name: table for table in (*tables, notes.table)}
        self._what = what
        self._connect = connect
        self._layout = layout_of(tables, notes, begins)
        self._joined = JoinedTables((*tables, notes.table))
        self._is_syncing = True
        self.commit_s = 0.0
        """Seconds spent in transactions, mostly in fsync."""
        new = empty(self._by_name) | {notes.table.name: dict.fromkeys(notes.names, 0)}
        found, damage = open_whole(
            path,
            what,
            self._layout,
            connect,
            create=lambda: self._create(path, new),
            read=self._open_first,
            salvage=self._salvage,
        )
        self.held = found.held
        self.damage: list[str] = damage + found.damage

    def _create(self, path: Path, held: Held) -> None:
        """Make a new file that has all of these rows from its first moment."""
        tables = [
            *((table, held[table.name]) for table in self._tables),
            (self._notes.table, self._noted(held)),
        ]
        first = [
            (
                f"INSERT INTO {table.name} VALUES {_marks(table.width, 1)}",
                [table.write(*pair) for pair in rows.items()],
            )
            for table, rows in tables
        ]
        create(path, self._connect, self._layout, first)

    def _noted(self, held: Held) -> dict[str, int]:
        """Return all numbers that the file notes when it holds `held`."""
        counts = {table.count_name: len(held[table.name]) for table in self._tables}
        return counts | held[self._notes.table.name]

    def _open(self) -> SqliteFile:
        self._is_syncing = True
        return SqliteFile(self._path, self._connect, self._joined.set_up())

    def _open_first(self) -> Found:
        self._file: SqliteFile | None = self._open()
        try:
            found = read_found(self._file.rows, self._tables, self._notes)
            if found.damage:
                self._repair(self._file, found.bad, {}, found.held)
            return found
        except BaseException:
            self._file.close()
            raise

    def _repair(self, file: SqliteFile, bad: Sequence[BadRow], changes: Held, held: Held) -> None:
        """Set `bad` rows aside, make `changes` to the others, and write all notes of `held` anew."""
        file.begin()
        reasons = [
            (table.name, f"{table.key_column} {row[0]!r}: {fault}", content_of(row))
            for table, row, fault in bad
        ]
        file.run(SET_ASIDE, reasons)
        for table, row, _ in bad:
            file.run(table.drop_damaged, [(row[0],)])
        file.run(f"DELETE FROM {self._notes.table.name}", [()])
        rows: list[PlacedRow] = []
        for name, changed in changes.items():
            rows += self._joined.rows(self._by_name[name], changed)
        rows += self._joined.rows(self._notes.table, self._noted(held))
        for text, values in self._joined.calls(rows):
            file.call(text, values)
        file.commit()

    def _make_equal(self, file: SqliteFile) -> None:
        """Write what the file lacks of `held`, remove what is too much, and set damaged rows aside.

        Rows are read one at a time: a second copy of everything may not fit into memory.
        """
        found, changes = Found({}), empty(self._by_name)
        for table in self._tables:
            held, changed, there = self.held[table.name], changes[table.name], set()
            for key, value in _good_rows(file.rows, table, found):
                if key not in held:
                    changed[key] = None
                elif held[key] == value:
                    there.add(key)
            changed.update((key, value) for key, value in held.items() if key not in there)
        self._repair(file, found.bad, changes, self.held)

    def _salvage(self, why: str) -> str:
        """Put a new file with the readable rows in the place of a damaged one; return one sentence for the operator."""
        held = empty(self._by_name)
        notes = self._notes.table
        with read_only(self._path) as connection:
            remains = Remains(connection)
            noted: dict[str, int] = dict(_good(remains.named_rows(notes.name, notes.key_column), notes))
            for table in self._tables:
                read = remains.numbered_rows if table.key is int else remains.named_rows
                held[table.name].update(_good(read(table.name, table.key_column), table))
        held[notes.name] = {name: noted.get(name, 0) for name in self._notes.names}
        counts = {table.name: noted[table.count_name] for table in self._tables if table.count_name in noted}
        needed = {table.name: len(held[table.name]) for table in self._tables if not table.is_replaceable}
        remains.refuse_loss(self._path, self._what, why, needed, counts)
        old = replace_damaged(self._path, lambda fresh: self._create(fresh, held))
        copied = ", ".join(
            counted(len(held[table.name]), counts.get(table.name), f"rows of {table.name}")
            for table in self._tables
        )
        lost = "".join(f"; the note of {name} is lost" for name in self._notes.names if name not in noted)
        return f"{self._path.name} could not be read ({why}); it is kept as {old.name}; copied from it: {copied}{lost}"

    @property
    def is_suspect(self) -> bool:
        """True after an error, until the next commit has made the file equal to the rows that are held."""
        return self._file is None

    def commit(self, draft: Draft, *, is_synced: bool) -> None:
        """Write the draft; return when it is in the file, and with `is_synced` on the disk. `StorageError`: it is not."""
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
                f"the {self._what} {self._path} cannot be written: {error}",
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
        counted = [table for table in self._tables if table.name in draft.changes] or self._tables
        counts = {table.count_name: draft.count(table) for table in counted}
        rows += self._joined.rows(self._notes.table, counts)
        began_s = time.monotonic()
        file.write(self._joined.calls(rows))
        self.commit_s += time.monotonic() - began_s

    def _reopened(self) -> SqliteFile:
        try:
            if not self._path.exists():
                raise DamagedFile("the file is gone")
            version, fault = check_layout(self._path, self._layout, self._what)
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
            self._make_equal(file)
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


def _good(rows: Iterator[Row], table: AnyTable) -> Iterator[tuple[Any, Any]]:
    for row in rows:
        with suppress(DamagedRow):
            yield table.read(row)


DAMAGED_ADVICE = "keep a copy of the file; the next program that opens it to write moves it aside and copies what can be read"
SURROUNDINGS_ADVICE = "check who may read the file, whether another program keeps it locked, and the disk"


def read_beside(
    path: Path,
    tables: Sequence[AnyTable],
    what: str,
    *,
    is_in_use: bool,
    begins: Beginning | None = None,
) -> Found:
    """Return what one moment shows, with damaged rows in `damage`; `StorageError` if the file as a whole cannot be read.

    A file that nobody can read is an error and never an empty one: how many rows it has is unknown.
    """
    try:
        _require_file(path, what)
        found = _read(path, tables, what, begins)
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
            raise _Unreadable(f"{path.name} is missing, but its log is there") from None
        raise StorageError(
            f"there is no {what} in {path.parent}", advice="check the name of the folder", found=str(path)
        ) from None
    if not S_ISREG(status.st_mode):
        raise _Unreadable(f"{path.name} is not a file")
    if not status.st_size:
        raise _Unreadable(f"{path.name} is empty")


def _read(path: Path, tables: Sequence[AnyTable], what: str, begins: Beginning | None) -> Found:
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=BUSY_S)) as connection:
        connection.text_factory = bytes
        connection.execute("BEGIN")
        layout = layout_of(tables, begins=begins)
        version = refuse_other_layout(connection, path, layout, f"{what} in")
        refuse_unmigrated(version, path, layout, f"{what} in")
        faults = connection.execute(f"PRAGMA quick_check({QUICK_CHECK_FAULTS_MAX})").fetchall()
        found = read_found(lambda query: iter(connection.execute(query)), tables)
        if faults != [(b"ok",)]:
            found.damage += [line.decode(errors="replace").replace("\n", " ") for (line,) in faults]
        return found
