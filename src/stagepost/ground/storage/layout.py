"""The layout of a store's file: its tables and its version, checked before anything is touched.

The header of every file carries an application id and a version. A file of an earlier version is migrated when its
store is opened, in one transaction that is durable before anybody uses the file: a kill at any step leaves either the
earlier version or the current one. A file of a later version, or of a layout that no release wrote, is refused by name
and stays as it is: an upgrade, another program or an operator made it so, and none of them meant it to be moved aside.
Only a file of a known layout can be damaged, and only such a file is salvaged.

Files of release 0.1 have neither number: both are 0, which is version 0. Release 0.1 does not look at the numbers. It
opens a file of version 1 because the tables are the same.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

from stagepost.errors import StorageError
from stagepost.ground.files.small_files import sync_folder
from stagepost.ground.storage.sqlite_file import Connect, SqliteFile, beside, is_damage
from stagepost.ground.storage.tables import Row

SQLITE_MAGIC = b"SQLite format 3\0"
APPLICATION_ID = int.from_bytes(b"STGP", "big")
"""SQLite's header field `application_id` of every store file from version 1 on."""
QUICK_CHECK_FAULTS_MAX = 20
BUSY_S = 5.0
"""Seconds, at most: the wait for another connection's lock."""
NAMES_SHOWN_MAX = 8

Rows: TypeAlias = Callable[..., Iterator[Row]]
"""Answer of a connection to a query with its values."""
_OTHER_RELEASE = (
    "start the release of Stagepost that wrote the file, or put back a copy that this release wrote"
)
_OTHER_OWNER = "choose another folder, or move the file out of this one"
_PUT_BACK = "put back a copy of the store, or move the file out of the folder to begin with an empty store"
_OPEN_ONCE = "start the program that owns the store once: it migrates the file"
_EARLIER_RELEASE = (
    "start the release of Stagepost that wrote the file once: it salvages the rows that can be read"
)


@dataclass(frozen=True)
class Migration:
    """Step of a file from version `source` to version `target`.

    `former` has the tables that the step changes, as version `source` declares them; None for a table that the step
    adds. The step runs `statements`, then `function`, inside the transaction of the whole migration. A function meets
    rows of any content, damaged ones too, and leaves those as they are: they are set aside when they are read.
    """

    source: int
    target: int
    statements: tuple[str, ...] = ()
    function: Callable[[SqliteFile], object] | None = None
    former: Mapping[str, str | None] = field(default_factory=dict)


NUMBERED = Migration(0, 1)
"""Step of every store of release 0.1: the file gets its numbers, the tables stay."""


@dataclass(frozen=True)
class Beginning:
    """Version with which a store begins anew: no step leads to it, and files of earlier versions are refused.

    `former` says in a refusal what such a file is, `advice` what its owner can do.
    """

    version: int
    former: str
    advice: str


@dataclass(frozen=True)
class StoreLayout:
    """Tables of a store's file, each with the statement that makes it, and the migrations that lead to them."""

    tables: Mapping[str, str]
    migrations: tuple[Migration, ...] = (NUMBERED,)
    begins: Beginning | None = None

    @property
    def version(self) -> int:
        if self.begins is not None and not self.migrations:
            return self.begins.version
        return self.migrations[-1].target

    def knows(self, version: int) -> bool:
        return version == self.version or any(step.source == version for step in self.migrations)

    def tables_of(self, version: int) -> dict[str, str]:
        """Return the tables of a file of an earlier version; those of the current one for any other version."""
        tables = dict(self.tables)
        if self.knows(version):
            for step in reversed([step for step in self.migrations if step.source >= version]):
                for name, statement in step.former.items():
                    tables.pop(name, None)
                    if statement is not None:
                        tables[name] = statement
        return tables


class CheckedFile(NamedTuple):
    """File of a known layout. `fault` is the damage inside the file, None for a whole one."""

    version: int
    fault: str | None


class StoreRefused(StorageError):
    """Store that cannot be opened without a change to a file that somebody may still want. Nothing was changed."""


class UnreadableLayout(StoreRefused):
    """File that does not say what is in it: no SQLite database, or one whose description of its tables is damaged."""


def refusal(
    what: str,
    path: Path,
    found: str,
    advice: str = _OTHER_RELEASE,
    kind: type[StoreRefused] = StoreRefused,
) -> StoreRefused:
    """Return the error about a file that is left as it is."""
    text = f"refused to open the {what} {path}: {found}; nothing was changed"
    return kind(text, advice=advice, found=found)


def create(
    path: Path, connect: Connect, layout: StoreLayout, first: Sequence[tuple[str, Sequence[Row]]]
) -> None:
    """Make a new file with all tables, durable before it gets its name: a file without them is never a new one.

    `first` has statements, each with the rows that it puts in before anybody sees the file.
    """
    fresh = beside(path, ".new")
    for ending in ("", "-wal", "-shm", "-journal"):
        beside(fresh, ending).unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = connect(str(fresh))
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in (*layout.tables.values(), *_numbers(layout.version)):
            connection.execute(statement)
        for statement, rows in first:
            connection.executemany(statement, rows)
        connection.execute("COMMIT")
    finally:
        connection.close()
    fresh.rename(path)
    sync_folder(path.parent)


def _numbers(version: int) -> tuple[str, str]:
    return f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {version}"


def check_layout(path: Path, layout: StoreLayout, what: str) -> CheckedFile:
    """Return the version of a file of a known layout, and the damage inside; `StoreRefused` for any other file.

    Neither the file nor its log changes.
    """
    if not path.is_file():
        found = "a directory lies there" if path.is_dir() else "it is not a regular file"
        raise refusal(what, path, found, _OTHER_OWNER)
    with path.open("rb") as file:
        begin = file.read(len(SQLITE_MAGIC))
    if begin != SQLITE_MAGIC:
        found = f"it is not a SQLite database, it begins with {begin!r}" if begin else "it is empty"
        raise refusal(what, path, found, _PUT_BACK, UnreadableLayout)
    with read_only(path) as connection:
        version = refuse_other_layout(connection, path, layout, what)
        return CheckedFile(version, _damage_in(connection))


def refuse_other_layout(connection: sqlite3.Connection, path: Path, layout: StoreLayout, what: str) -> int:
    """Return the version of the file; `StoreRefused`, with every difference, unless it has exactly the tables of that."""
    try:
        version, differences, advice = _compared(_rows_of(connection), layout)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.Error) and not is_damage(error):
            raise
        # SQLite quotes what it found, and Python cannot read every quotation.
        reason = "it is not text" if isinstance(error, UnicodeDecodeError) else str(error)
        text = f"its description of the tables cannot be read ({reason})"
        raise refusal(what, path, text, _PUT_BACK, UnreadableLayout) from error
    if differences:
        raise refusal(what, path, "; ".join(differences), advice)
    return version


def refuse_unmigrated(version: int, path: Path, layout: StoreLayout, what: str) -> None:
    """Raise `StoreRefused` if the rows of the file cannot be read before a migration, which a mere reader must not do."""
    if layout.tables_of(version) != layout.tables:
        raise refusal(what, path, f"it is of version {version}, not {layout.version}", _OPEN_ONCE)


def refuse_former_damage(version: int, fault: str, path: Path, layout: StoreLayout, what: str) -> None:
    """Raise `StoreRefused` if a damaged file has former tables: only the release that wrote them can salvage them."""
    if layout.tables_of(version) != layout.tables:
        found = f"it is of version {version}, not {layout.version}, and damaged ({fault})"
        raise refusal(what, path, found, _EARLIER_RELEASE)


def migrate(path: Path, layout: StoreLayout, what: str, connect: Connect) -> None:
    """Bring a file that `check_layout` let through to the current version; return when that is durable.

    All steps are one transaction, and a file of the current version stays as it is: a call may be repeated after a kill.
    """
    file = SqliteFile(path, connect)
    try:
        file.begin()
        ((version,),) = file.rows("PRAGMA user_version")
        for step in layout.migrations:
            if step.source == version:
                for statement in step.statements:
                    file.call(statement, ())
                if step.function is not None:
                    step.function(file)
                version = step.target
        for statement in _numbers(version):
            file.call(statement, ())
        _, differences, _ = _compared(file.rows, layout)
        if differences:
            raise StorageError(
                f"cannot migrate the {what} {path} to version {layout.version}: {'; '.join(differences)}; "
                "nothing was changed"
            )
        file.commit()
    finally:
        # An open transaction goes with its connection.
        file.close()


def _rows_of(connection: sqlite3.Connection) -> Rows:
    return lambda query, *values: iter(connection.execute(query, values))


def _compared(rows: Rows, layout: StoreLayout) -> tuple[int, list[str], str]:
    """Return the version of the file, every difference from the layout of that version, and advice about them."""
    ((version,),), ((number,),) = rows("PRAGMA user_version"), rows("PRAGMA application_id")
    found, tables = _declarations(rows), layout.tables_of(version)
    differences = []
    is_former = layout.begins is not None and version < layout.begins.version
    if layout.begins is not None and is_former:
        differences.append(f"it is of version {version}: {layout.begins.former}")
    elif not layout.knows(version):
        differences.append(f"it is of version {version}, and this release knows version {layout.version}")
    wanted = APPLICATION_ID if version else 0
    if number != wanted:
        differences.append(f"its application_id is {number}, not {wanted}")
    if found and not found.keys() & tables.keys():
        return (
            version,
            [*differences, f"it holds {_listed(found)}, as another program's database does"],
            _OTHER_OWNER,
        )
    if layout.begins is not None and is_former:
        return version, differences, layout.begins.advice
    return version, [*differences, *_differences(rows, found, tables)], _OTHER_RELEASE


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection that sees the file and its log, and can change neither of them. Text comes as bytes.

    Without a log the file is read as it lies. With one SQLite wants to put an index beside the log: so both get a
    second name in a folder of their own, which goes afterwards.
    """
    path = path.resolve()
    folder = beside(path, ".look")
    # A process that was killed while it looked left it.
    shutil.rmtree(folder, ignore_errors=True)
    if not _size(beside(path, "-wal")):
        with closing(_connect(path, "mode=ro&immutable=1")) as connection:
            yield connection
        return
    folder.mkdir(mode=0o700)
    try:
        for ending in ("", "-wal"):
            link(beside(path, ending), folder / f"file{ending}")
        with closing(_connect(folder / "file", "mode=ro")) as connection:
            yield connection
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def link(path: Path, other: Path) -> None:
    """Give a file a second name, or a durable copy under it where the file system has no second names."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)
        with other.open("rb") as copy:
            os.fsync(copy.fileno())


def _connect(path: Path, how: str) -> sqlite3.Connection:
    address = f"file:{quote(str(path))}?{how}"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=BUSY_S)
    connection.text_factory = bytes
    return connection


def _damage_in(connection: sqlite3.Connection) -> str | None:
    try:
        report = connection.execute(f"PRAGMA quick_check({QUICK_CHECK_FAULTS_MAX})").fetchall()
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return str(error)
    except UnicodeDecodeError:
        return "SQLite's report about the file is not text"
    if report == [(b"ok",)]:
        return None
    return "; ".join(line.decode(errors="replace") for (line,) in report).replace("\n", " ")


def _declarations(rows: Rows) -> dict[str, str]:
    """Return the statement that made each table, index, view and trigger."""
    return {
        _text(name): _text(statement or b"")
        for name, statement in rows("SELECT name, sql FROM sqlite_master")
        if not name.startswith(b"sqlite_autoindex")
    }


def _differences(rows: Rows, found: Mapping[str, str], tables: Mapping[str, str]) -> Iterator[str]:
    missing, unknown = tables.keys() - found.keys(), found.keys() - tables.keys()
    if missing:
        yield f"it lacks {_listed(missing)}"
    if unknown:
        yield f"it holds {_listed(unknown)}, which this release does not know"
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.text_factory = bytes
        for name, statement in tables.items():
            if found.get(name, statement) != statement:
                empty.execute(statement)
                there, wanted = _columns(rows, name), _columns(_rows_of(empty), name)
                yield from _changed_columns(name, there, wanted) or [
                    f"table {name} is declared as {found[name]}"
                ]


def _changed_columns(table: str, there: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    lines = [f"table {table} has the unknown column {name}" for name in there if name not in wanted]
    lines += [f"table {table} lacks the column {name}" for name in wanted if name not in there]
    lines += [
        f"column {name} of table {table} is {there[name]}, not {wanted[name]}"
        for name in wanted
        if there.get(name, wanted[name]) != wanted[name]
    ]
    return lines


def _columns(rows: Rows, table: str) -> dict[str, str]:
    query = 'SELECT name, type, "notnull", pk FROM pragma_table_info(?)'
    return {
        _text(name): (_text(kind) or "untyped")
        + (" NOT NULL" if is_required else "")
        + (" PRIMARY KEY" if place else "")
        for name, kind, is_required, place in rows(query, table)
    }


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _listed(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = [f"{len(shown) - NAMES_SHOWN_MAX} more"] if len(shown) > NAMES_SHOWN_MAX else []
    return f"the table{'s' if len(shown) > 1 else ''} {', '.join([*shown[:NAMES_SHOWN_MAX], *more])}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
