"""The tables of a folder, for pages: one reader as long as nothing is committed, each query with a time limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stagepost.errors import ConfigError, ErrorCode, StagepostError, StorageError
from stagepost.ground.files.owner_lock import is_held
from stagepost.pipeline.tables.delta import LOG_FOLDER
from stagepost.pipeline.tables.manifest import COMMITS, FORMER_MANIFEST_FILE, Manifest, read_manifest
from stagepost.pipeline.tables.own_files import LOCK_FILE
from stagepost.pipeline.tables.reader import TABLES, Reader
from stagepost.web.access.settings import TABLES_FOLDER
from stagepost.web.outcomes import Nothing, Unreadable, attempt

if TYPE_CHECKING:
    import duckdb

FIRST_COMMIT = f"{0:020d}.json"
"""Name of the commit that makes an empty table."""

T = TypeVar("T")


class TableQueries:
    """Any thread may ask. A query that takes too long is interrupted and says so."""

    def __init__(self, folder: Path, query_timeout_s: float) -> None:
        self.folder = folder
        self._timeout_s = query_timeout_s
        self._lock = threading.Lock()
        self._seen: int | None = None
        self._reader: Reader | None = None

    def state(self) -> Manifest | Nothing | Unreadable:
        """Return the manifest if there are tables to ask."""
        if (self.folder / FORMER_MANIFEST_FILE).is_file():
            return attempt(lambda: _open(self.folder).manifest)  # which says how they are taken over
        found = attempt(lambda: _are_begun(self.folder))
        if found is True:
            return attempt(lambda: self._opened().manifest)
        if isinstance(found, Unreadable):
            return found
        named = "" if self.folder.name == TABLES_FOLDER else f" --tables {self.folder}"
        return Nothing(
            "no tables yet",
            f"make them with `stagepost pipeline run --once --data {self.folder.parent}{named}`",
        )

    def ask(self, question: Callable[[Asking], T]) -> T | Nothing | Unreadable:
        state = self.state()
        if not isinstance(state, Manifest):
            return state
        return attempt(lambda: self._answer(question))

    def _answer(self, question: Callable[[Asking], T]) -> T:
        with self.asking() as asking:
            return question(asking)

    @contextmanager
    def asking(self, timeout_s: float | None = None) -> Iterator[Asking]:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        reader = self._opened()
        cursor = reader.cursor()
        timer = threading.Timer(limit_s, cursor.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield Asking(cursor)
        except StagepostError:
            raise
        except Exception as error:
            if "interrupt" in str(error).lower():
                raise StagepostError(
                    f"the tables did not answer within {limit_s:g} s",
                    code=ErrorCode.PROTOCOL_TIMEOUT,
                    advice="use a narrower filter, or raise web.query_timeout_s",
                ) from error
            raise reader.damage(str(error)) or StorageError(
                f"the tables in {self.folder} could not be read: {str(error).splitlines()[0]}",
                advice="make them anew with `stagepost pipeline backfill`",
            ) from error
        finally:
            timer.cancel()
            cursor.close()

    def _opened(self) -> Reader:
        # A commit adds a file to this folder.
        seen = (self.folder / COMMITS / LOG_FOLDER).stat().st_mtime_ns
        with self._lock:
            if self._reader is None or seen != self._seen:
                # The one before may still be asked something: it goes when nobody holds it any longer.
                self._reader = _open(self.folder)
                self._seen = seen
            return self._reader


def _are_begun(folder: Path) -> bool:
    """Return whether the tables have a first commit. `StorageError` if they had one, and it is gone."""
    commits = folder / COMMITS / LOG_FOLDER
    # A folder that nobody may list is an error here, not an empty one.
    if commits.exists() and (os.listdir(commits) != [FIRST_COMMIT] or read_manifest(folder) is not None):
        return True
    # The first batch writes the other tables before the commit that makes them count.
    has_rows = any(path.name != FIRST_COMMIT for path in folder.glob(f"*/{LOG_FOLDER}/*.json"))
    if has_rows and not is_held(folder / LOCK_FILE):
        raise StorageError(
            f"the tables in {folder} have no commit to {COMMITS}",
            advice="make them anew with `stagepost pipeline backfill`",
        )
    return False


def _open(folder: Path) -> Reader:
    try:
        return Reader(folder)
    except StagepostError:
        raise
    except ModuleNotFoundError as error:
        raise StorageError(
            f"the tables cannot be read: the package {error.name} is not installed",
            advice="install the extra: pip install '.[web]'",
        ) from error
    except Exception as error:
        raise StorageError(
            f"the tables in {folder} could not be read: {str(error).splitlines()[0]}",
            advice="make them anew with `stagepost pipeline backfill`",
        ) from error


class Asking:
    """A cursor of one question."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        found = self._cursor.execute(query, list(parameters))
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def batches(self, query: str, parameters: Sequence[Any], rows: int) -> Iterator[list[dict[str, Any]]]:
        found = self._cursor.execute(query, list(parameters))
        names = [column[0] for column in found.description or ()]
        while batch := found.fetchmany(rows):
            yield [dict(zip(names, row, strict=True)) for row in batch]

    def copy(self, query: str, parameters: Sequence[Any], out: Path, form: str) -> None:
        """Into one file."""
        path = str(out).replace("'", "''")
        self._cursor.execute(f"COPY ({query}) TO '{path}' ({form})", list(parameters))

    def has(self, table: str) -> bool:
        if table not in TABLES:
            raise ConfigError(f"there is no table {table}", advice=f"ask for one of {', '.join(TABLES)}")
        found = self._cursor.execute("SELECT 1 FROM duckdb_views() WHERE view_name = ?", [table])
        return found.fetchone() is not None
