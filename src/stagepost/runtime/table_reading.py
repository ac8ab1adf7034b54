"""Tables as somebody else sees them: read beside the process that writes them, without a lock and without a change."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from stagepost.errors import StorageError
from stagepost.runtime.sqlite_file import QUICK_CHECK_FAULTS_MAX, beside, is_damage
from stagepost.runtime.sqlite_log import damage_in
from stagepost.runtime.table_file import Found, read_found, schema_of
from stagepost.runtime.tables import AnyTable, empty

BUSY_S = 5.0


def read_beside(path: Path, tables: Sequence[AnyTable], what: str, *, is_in_use: bool) -> Found:
    """What one moment shows, damage included; `StorageError` if there is no such file or it may not be read."""
    if not path.exists():
        raise StorageError(f"there is no {what} in {path.parent}", found=str(path))
    nothing = Found(empty({table.name: table for table in tables}))
    try:
        found = _read(path, tables)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise StorageError(f"cannot read the {what} in {path.parent}: {error}") from error
        return Found(nothing.held, damage=[f"{path.name} cannot be read: {error}"])
    except UnicodeDecodeError:
        return Found(nothing.held, damage=[f"{path.name} cannot be read: its description is damaged"])
    # The log of somebody who writes at this moment changes under our hands.
    fault = None if is_in_use else damage_in(beside(path, "-wal"))
    if fault is not None:
        found.damage.insert(0, fault)
    return found


def _read(path: Path, tables: Sequence[AnyTable]) -> Found:
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=BUSY_S)) as connection:
        connection.text_factory = bytes
        connection.execute("BEGIN")
        faults = connection.execute(f"PRAGMA quick_check({QUICK_CHECK_FAULTS_MAX})").fetchall()
        names = {
            name.decode(errors="replace") for (name,) in connection.execute("SELECT name FROM sqlite_master")
        }
        missing = schema_of(tables).keys() - names
        if missing:
            held = empty({table.name: table for table in tables})
            return Found(held, damage=[f"{path.name} has no {', '.join(sorted(missing))}"])
        found = read_found(lambda query: iter(connection.execute(query)), tables)
        if faults != [(b"ok",)]:
            found.damage += [line.decode(errors="replace").replace("\n", " ") for (line,) in faults]
        return found
