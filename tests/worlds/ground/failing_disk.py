"""A disk under SQLite that fails on order, and tells what was asked of it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from typing import Any


class Disk:
    """Makes the Nth call on any connection fail: before it has an effect, or after it had one."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails_at: int | None = None
        self.fails_again_after: int | None = None
        """Number of calls from the first failure to a second one."""
        self.failures = 0
        self.fails_after_effect = False
        self.error: Exception = sqlite3.OperationalError("disk I/O error")
        self.statements: list[str] = []

    def connect(self, path: str) -> sqlite3.Connection:
        disk = self

        class Failing(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                disk.statements.append(arguments[0])
                return disk.call(lambda: super(Failing, self).execute(*arguments))

            def executemany(self, *arguments: Any) -> sqlite3.Cursor:
                disk.statements.append(arguments[0])
                return disk.call(lambda: super(Failing, self).executemany(*arguments))

        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Failing)

    def commits(self) -> list[str]:
        """How well each transaction is synced: those that were ended, and single statements that are one by themselves."""
        levels: list[str] = []
        level, is_open = "FULL", False
        for statement in self.statements:
            if statement.startswith("PRAGMA synchronous = "):
                level = statement.removeprefix("PRAGMA synchronous = ")
            elif statement.startswith("BEGIN"):
                is_open = True
            elif statement == "ROLLBACK":
                is_open = False
            elif statement == "COMMIT" or (statement.startswith("INSERT INTO joined_tables") and not is_open):
                is_open = False
                levels.append(level)
        return levels

    def call(self, act: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        self.calls += 1
        if self.calls != self.fails_at:
            return act()
        self.failures += 1
        again, self.fails_again_after = self.fails_again_after, None
        self.fails_at = None if again is None else self.calls + again
        if self.fails_after_effect:
            act()
        raise self.error


def errors() -> list[Exception]:
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    broken = sqlite3.OperationalError("disk I/O error")
    broken.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    return [full, broken, OSError(errno.EIO, os.strerror(errno.EIO))]
