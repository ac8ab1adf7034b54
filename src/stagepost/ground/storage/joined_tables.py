"""All tables of a file as one, for writing: rows of any of them go in, and out of them, with a single call.

Each call lets go of Python's lock several times, and a thread that wants it back waits for a busy loop each time: a
transaction of eight calls took 40 ms beside one, and the same in one call takes six. So there is a view that stands for
every table, with triggers that put each row where it belongs. Both are temporary: the file knows nothing of them.
A single statement is a transaction by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from stagepost.ground.storage.tables import AnyTable

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
