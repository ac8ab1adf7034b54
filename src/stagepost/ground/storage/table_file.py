"""Tables on disk: one SQLite file, and the same rows in memory, which are the truth while the process lives.

After any error the connection is thrown away. Before the next write the file is opened anew, checked, and made equal to
what is held: what a failed write may have left is removed, and what it may have destroyed is written again.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagepost.errors import StorageError
from stagepost.ground.storage.damage import Remains, counted, open_whole, replace_damaged
from stagepost.ground.storage.joined_tables import JoinedTables, PlacedRow, calls
from stagepost.ground.storage.layout import UnreadableLayout, check_layout, read_only
from stagepost.ground.storage.rows import SET_ASIDE, DamagedRow, Row, content_of
from stagepost.ground.storage.sqlite_file import Connect, DamagedFile, SqliteFile, connect, create, is_damage
from stagepost.ground.storage.tables import AnyTable, Draft, Held, Table, empty

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


def schema_of(tables: Sequence[AnyTable]) -> dict[str, str]:
    return {table.name: table.schema for table in (*tables, COUNTS)} | {"set_aside": _SET_ASIDE_SCHEMA}


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
        self._schema = schema_of(tables)
        self._joined = JoinedTables((*tables, COUNTS))
        self._is_syncing = True
        self.commit_s = 0.0
        """Spent in transactions, mostly in fsync."""
        found, damage = open_whole(
            path,
            f"{what} in",
            self._schema,
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
        create(path, self._connect, self._schema, first)

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
            fault = check_layout(self._path, self._schema, f"{self._what} in")
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
