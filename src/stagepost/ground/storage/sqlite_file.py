"""A SQLite file: made whole before it gets its name, and written in transactions."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from stagepost.errors import StorageError
from stagepost.ground.storage.tables import Row

Connect: TypeAlias = Callable[[str], sqlite3.Connection]

CACHED_STATEMENTS = 128
"""Every table's, in every size that they are run in."""

# What the surroundings do to a file, as opposed to what is wrong inside it.
_ENVIRONMENT = {
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
}
_INSIDE_THOUGH_IO = {sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}
_PRIMARY_CODE = 0xFF


class DamagedFile(Exception):
    """The file opens, if at all, as something else than what was written; never leaves the store."""


def connect(path: str) -> sqlite3.Connection:
    """Transactions are ours to begin; the connection is handed from the opening thread to the writing one."""
    return sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=CACHED_STATEMENTS
    )


def is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None or code in _INSIDE_THOUGH_IO:
        return True
    return code & _PRIMARY_CODE not in _ENVIRONMENT


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


class SqliteFile:
    """An open file. Errors are SQLite's own; the store decides what they mean. `set_up`: what the connection runs first.

    Opening may already change the file: `check_layout` comes before.
    """

    def __init__(self, path: Path, connect: Connect = connect, set_up: Iterable[str] = ()) -> None:
        self._path = path
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        self._connection = connect(str(path))
        try:
            self._connection.text_factory = bytes
            self._connection.execute("PRAGMA synchronous = FULL")
            mode = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != (b"wal",):
                raise DamagedFile(f"the file cannot be put into WAL mode, it stays in {mode!r}")
            self._check_writable()
            for statement in set_up:
                self._connection.execute(statement)
        except UnicodeDecodeError as error:
            # SQLite quotes what it found, and Python cannot read the quotation.
            self.close()
            raise DamagedFile("the file's own description of its tables is damaged") from error
        except BaseException:
            self.close()
            raise

    def _check_writable(self) -> None:
        # One damaged byte of the header makes a file that can be read and never again be written.
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("PRAGMA user_version = 0")
        self._connection.execute("ROLLBACK")

    def rows(self, query: str, *values: object) -> Iterator[Row]:
        yield from self._connection.execute(query, values)

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def run(self, statement: str, rows: Iterable[Row]) -> int:
        """Run the statement for each row; return how many rows of the file changed."""
        return self._connection.executemany(statement, rows).rowcount

    def call(self, statement: str, values: Sequence[object]) -> None:
        """Run the statement once, with all of the values."""
        self._connection.execute(statement, values)

    def write(self, statements: Sequence[tuple[str, Sequence[object]]]) -> None:
        """Run all statements as one transaction; return when the transaction is durable."""
        is_one_by_itself = len(statements) == 1
        if not is_one_by_itself:
            self.begin()
        for text, values in statements:
            self.call(text, values)
        if not is_one_by_itself:
            self.commit()

    def commit(self) -> None:
        """End the transaction; return when it is durable."""
        self._connection.execute("COMMIT")

    def sync_commits(self, is_on: bool) -> None:
        """Let commits wait for the disk, or not. Without the wait a power cut costs the newest commits, never the file."""
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_on else 'NORMAL'}")

    def empty_log(self) -> None:
        """Move everything from the write-ahead log into the file itself, and cut the log off."""
        busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StorageError(f"another program reads {self._path}, so its log cannot be emptied")

    def close(self) -> None:
        # A failing disk fails here once more; what was committed is safe, and what was not does not count.
        with suppress(sqlite3.Error):
            self._connection.close()
