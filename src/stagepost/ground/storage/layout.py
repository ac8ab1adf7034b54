"""The layout of a store's file, looked at before anything is touched.

A file whose layout is not the one that this release writes is refused by name and stays as it is: an upgrade, another
program or an operator made it so, and none of them meant it to be moved aside. Only a file of the known layout can be
damaged, and only such a file is salvaged.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from stagepost.errors import StorageError
from stagepost.ground.storage.sqlite_file import beside, is_damage

SQLITE_MAGIC = b"SQLite format 3\0"
QUICK_CHECK_FAULTS_MAX = 20
BUSY_S = 5.0
NAMES_SHOWN_MAX = 8

_VERSIONS = ("user_version", "application_id")
"""Numbers in the header of a file. Both are 0 in every file that this release writes."""
_OTHER_RELEASE = (
    "start the release of Stagepost that wrote the file, or put back a copy that this release wrote"
)
_OTHER_OWNER = "choose another folder, or move the file out of this one"
_PUT_BACK = "put back a copy of the store, or move the file out of the folder to begin with an empty store"


class StoreRefused(StorageError):
    """A store that cannot be opened without a change to a file that somebody may still want. Nothing was changed."""


class UnreadableLayout(StoreRefused):
    """A file that does not say what is in it: no SQLite database, or one whose description of its tables is damaged."""


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


def check_layout(path: Path, schema: Mapping[str, str], what: str) -> str | None:
    """Return the damage inside a file of the known layout, None for a whole file; `StoreRefused` for any other file.

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
        refuse_other_layout(connection, path, schema, what)
        return _damage_in(connection)


def refuse_other_layout(
    connection: sqlite3.Connection, path: Path, schema: Mapping[str, str], what: str
) -> None:
    """Raise `StoreRefused`, with every difference, unless the file has exactly the tables of `schema`."""
    try:
        versions = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _VERSIONS}
        found = _declarations(connection)
        differences = [f"its {name} is {number}, not 0" for name, number in versions.items() if number]
        if found and not found.keys() & schema.keys():
            differences.append(f"it holds {_listed(found)}, as another program's database does")
            advice = _OTHER_OWNER
        else:
            differences += _differences(connection, found, schema)
            advice = _OTHER_RELEASE
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.Error) and not is_damage(error):
            raise
        # SQLite quotes what it found, and Python cannot read every quotation.
        reason = "it is not text" if isinstance(error, UnicodeDecodeError) else str(error)
        text = f"its description of the tables cannot be read ({reason})"
        raise refusal(what, path, text, _PUT_BACK, UnreadableLayout) from error
    if differences:
        raise refusal(what, path, "; ".join(differences), advice)


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


def _declarations(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the statement that made each table, index, view and trigger."""
    return {
        _text(name): _text(statement or b"")
        for name, statement in connection.execute("SELECT name, sql FROM sqlite_master")
        if not name.startswith(b"sqlite_autoindex")
    }


def _differences(
    connection: sqlite3.Connection, found: Mapping[str, str], schema: Mapping[str, str]
) -> Iterator[str]:
    missing, unknown = schema.keys() - found.keys(), found.keys() - schema.keys()
    if missing:
        yield f"it lacks {_listed(missing)}"
    if unknown:
        yield f"it holds {_listed(unknown)}, which this release does not know"
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.text_factory = bytes
        for name, statement in schema.items():
            if found.get(name, statement) != statement:
                empty.execute(statement)
                there, wanted = _columns(connection, name), _columns(empty, name)
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


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    rows = connection.execute('SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (table,))
    return {
        _text(name): (_text(kind) or "untyped")
        + (" NOT NULL" if is_required else "")
        + (" PRIMARY KEY" if place else "")
        for name, kind, is_required, place in rows
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
