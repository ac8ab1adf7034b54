"""Rows of all tables are written with one call where they fit into one: any number of them, in order, all or none."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from stagepost.errors import StorageError
from stagepost.ground.storage.table_file import (
    ROWS_AT_ONCE_MAX,
    SIZES,
    JoinedTables,
    PlacedRow,
    TableFile,
)
from stagepost.ground.storage.tables import Draft, Table
from tests.worlds.ground.failing_disk import Disk

NUMBERS: Table[int, int] = Table("numbers", int, int)
NAMES: Table[str, bytes] = Table("names", str, bytes)
HASHES: Table[bytes, str] = Table("hashes", bytes, str)
TABLES = (NUMBERS, NAMES, HASHES)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (0, []),
        (1, [1]),
        (5, [6]),
        (ROWS_AT_ONCE_MAX - 1, [ROWS_AT_ONCE_MAX]),
        (ROWS_AT_ONCE_MAX, [ROWS_AT_ONCE_MAX]),
        (ROWS_AT_ONCE_MAX + 1, [ROWS_AT_ONCE_MAX, 1]),
        (2 * ROWS_AT_ONCE_MAX + 7, [ROWS_AT_ONCE_MAX, ROWS_AT_ONCE_MAX, 8]),
    ],
)
def test_few_calls_take_all_rows_in_their_order_and_only_the_last_is_filled_up(
    count: int, sizes: list[int]
) -> None:
    rows: list[PlacedRow] = [(0, number, b"x", b"y") for number in range(count)]
    made = JoinedTables(TABLES).calls(rows)
    assert [text.count("(?, ") for text, _ in made] == sizes
    filled = rows + rows[-1:] * (sum(sizes) - count)
    for text, values in made:
        # A full call for one table names the table, the others name its place in each row.
        is_direct = text.startswith("REPLACE INTO numbers ")
        part, filled = filled[: text.count("(?, ")], filled[text.count("(?, ") :]
        assert is_direct == (len(set(part)) == ROWS_AT_ONCE_MAX)
        assert values == [value for row in part for value in row[is_direct:]]
    assert not filled


def test_sizes_are_few_and_none_wastes_more_than_a_third() -> None:
    assert SIZES[-1] == ROWS_AT_ONCE_MAX
    for count in range(1, ROWS_AT_ONCE_MAX + 1):
        size = next(size for size in SIZES if size >= count)
        assert size - count <= count / 2


@pytest.mark.parametrize("count", [1, 7, ROWS_AT_ONCE_MAX, 3 * ROWS_AT_ONCE_MAX - 1])
def test_what_is_put_is_there_and_what_is_dropped_is_gone_in_every_table(count: int) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    joined = JoinedTables(TABLES)
    for statement in (*(table.schema for table in TABLES), *joined.set_up()):
        connection.execute(statement)

    def run(rows: list[PlacedRow]) -> None:
        for text, values in joined.calls(rows):
            connection.execute(text, values)

    run(
        [
            *joined.rows(NUMBERS, {key: 2 * key for key in range(count)}),
            *joined.rows(NAMES, {f"n{key}": bytes([key % 256]) for key in range(count)}),
            *joined.rows(HASHES, {key.to_bytes(2, "big"): f"{key}" for key in range(count)}),
        ]
    )
    # Rows that come and rows that go, together and by themselves.
    run(list(joined.rows(NUMBERS, {key: 3 * key if key % 3 else None for key in range(0, count, 2)})))
    run(list(joined.rows(NUMBERS, dict.fromkeys(range(3, count, 6)))))
    run(list(joined.rows(NAMES, {f"n{key}": None for key in range(0, count, 2)})))
    run(list(joined.rows(HASHES, {b"\xff\xff\xff": None})))
    found = dict(map(NUMBERS.read, connection.execute("SELECT * FROM numbers ORDER BY key")))
    assert found == {key: (2 if key % 2 else 3) * key for key in range(count) if key % 3}
    names = dict(map(NAMES.read, connection.execute("SELECT * FROM names")))
    assert names == {f"n{key}": bytes([key % 256]) for key in range(count) if key % 2}
    hashes = dict(map(HASHES.read, connection.execute("SELECT * FROM hashes")))
    assert hashes == {key.to_bytes(2, "big"): f"{key}" for key in range(count)}
    connection.close()


def test_the_file_knows_nothing_of_what_the_connection_needs(tmp_path: Path) -> None:
    path = tmp_path / "tables"
    TableFile(path, TABLES, "tables").close()
    connection = sqlite3.connect(path)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type <> 'index'")}
    connection.close()
    assert names == {"numbers", "names", "hashes", "counts", "set_aside"}


@pytest.mark.parametrize("fails_after_effect", [False, True])
def test_a_draft_of_many_calls_is_written_whole_or_not_at_all_whichever_call_fails(
    tmp_path: Path, fails_after_effect: bool
) -> None:
    at, has_failed = 0, True
    while has_failed:
        at += 1
        path = tmp_path / f"{at}"
        disk = Disk()
        file = TableFile(path, TABLES, "tables", connect=disk.connect)
        first = Draft(file.held)
        first.put(NUMBERS, 0, 1)
        file.commit(first, is_synced=True)
        disk.fails_at, disk.fails_after_effect = disk.calls + at, fails_after_effect
        draft = Draft(file.held)
        for key in range(3 * ROWS_AT_ONCE_MAX):
            draft.put(NUMBERS, key, 7)
        try:
            file.commit(draft, is_synced=True)
            has_failed = False
        except StorageError:
            assert file.held["numbers"] == {0: 1}
        disk.fails_at = None
        # The next one looks at the file first: what a failure left there is undone.
        last = Draft(file.held)
        last.put(NAMES, "last", b"")
        file.commit(last, is_synced=True)
        held = file.held
        file.close()
        again = TableFile(path, TABLES, "tables")
        assert (again.held, again.damage) == (held, [])
        again.close()
    assert at > 4, "it was more than one call"
