"""Rows are written with few calls: any number of them, each once, in order."""

from __future__ import annotations

import sqlite3

import pytest

from stagepost.runtime.tables import ROWS_AT_ONCE_MAX, Statement, Table

ROWS: Table[int, int] = Table("rows", int, int)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (0, []),
        (1, [1]),
        (3, [2, 1]),
        (ROWS_AT_ONCE_MAX - 1, [32, 16, 8, 4, 2, 1]),
        (ROWS_AT_ONCE_MAX, [ROWS_AT_ONCE_MAX]),
        (ROWS_AT_ONCE_MAX + 1, [ROWS_AT_ONCE_MAX, 1]),
        (2 * ROWS_AT_ONCE_MAX + 5, [ROWS_AT_ONCE_MAX, ROWS_AT_ONCE_MAX, 4, 1]),
    ],
)
def test_few_calls_take_all_rows_in_their_order(count: int, sizes: list[int]) -> None:
    statement = Statement("INSERT INTO rows VALUES ", "(?, ?)")
    calls = list(statement.calls([(number, -number) for number in range(count)]))
    assert [text.count("(?, ?)") for text, _ in calls] == sizes
    values = [value for _, some in calls for value in some]
    assert values == [value for number in range(count) for value in (number, -number)]


@pytest.mark.parametrize("count", [1, 7, ROWS_AT_ONCE_MAX, 3 * ROWS_AT_ONCE_MAX - 1])
def test_what_is_put_is_there_and_what_is_dropped_is_gone(count: int) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(ROWS.schema)

    def run(statement: Statement, rows: list[tuple[object, ...]]) -> None:
        for text, values in statement.calls(rows):
            connection.execute(text, values)

    run(ROWS.put, [ROWS.write(key, 2 * key) for key in range(count)])
    run(ROWS.put, [ROWS.write(key, 3 * key) for key in range(0, count, 2)])
    run(ROWS.drop, [(key,) for key in range(0, count, 3)])
    found = dict(map(ROWS.read, connection.execute("SELECT * FROM rows ORDER BY key")))
    connection.close()
    assert found == {key: (2 if key % 2 else 3) * key for key in range(count) if key % 3}
