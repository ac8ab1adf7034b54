"""When a message store cannot be read as a whole: keep the damaged file, and copy what is readable into a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from stagepost.dmq.mempool import Entry
from stagepost.errors import StorageError
from stagepost.runtime.message_store import StoredPool
from stagepost.runtime.sqlite_file import Connect, SqliteFile, beside, connect, create, is_damage, sync_folder
from stagepost.runtime.sqlite_rows import (
    HIGHEST_MS,
    MESSAGES_HELD,
    POOLS_HELD,
    PUT_FACT,
    PUT_MESSAGE,
    PUT_POOL,
    DamagedRow,
    Row,
    read_fact,
    read_message,
    read_pool,
    write_fact,
    write_message,
    write_pool,
)

COPIES_MAX = 1_000
GAP_LOOKUPS_MAX = 200_000

T = TypeVar("T")


def salvage(path: Path, why: str, connect: Connect = connect) -> str:
    """Rename the file and make a new one from its readable rows; returns one sentence for the operator."""
    old = _rename(path)
    messages, pools, highest_ms = _readable(old, connect)
    create(path, connect)
    file = SqliteFile(path, connect)
    try:
        file.begin()
        file.run(PUT_MESSAGE, [write_message(messages[place]) for place in sorted(messages)])
        file.run(PUT_POOL, [write_pool(pool) for pool in pools])
        facts = {HIGHEST_MS: highest_ms, MESSAGES_HELD: len(messages), POOLS_HELD: len(pools)}
        file.run(PUT_FACT, [write_fact(name, number) for name, number in facts.items()])
        file.commit()
        file.empty_log()
    finally:
        file.close()
    return (
        f"{path.name} could not be read ({why}); it is kept as {old.name}, and {len(messages)} messages and "
        f"{len(pools)} pools were copied from it"
    )


def unused_name(path: Path) -> Path:
    """A name beside the file for a damaged copy of it."""
    for number in range(1, COPIES_MAX + 1):
        old = beside(path, f".damaged-{number}")
        if not old.exists() and not beside(old, "-wal").exists():
            return old
    raise StorageError(
        f"there are {COPIES_MAX} damaged copies of {path} already", advice="look at them and remove them"
    )


def _rename(path: Path) -> Path:
    old = unused_name(path)
    # The log belongs to the file, and the file's content may be in the log alone.
    for ending in ("-wal", ""):
        with suppress(FileNotFoundError):
            beside(path, ending).rename(beside(old, ending))
    beside(path, "-shm").unlink(missing_ok=True)
    sync_folder(path.parent)
    return old


def _readable(old: Path, connect: Connect) -> tuple[dict[int, Entry], list[StoredPool], int]:
    messages: dict[int, Entry] = {}
    pools: dict[bytes, StoredPool] = {}
    highest_ms = 0
    if not old.exists():
        return messages, [], highest_ms
    connection = connect(str(old))
    try:
        connection.text_factory = bytes
        for entry in _good(_message_rows(connection), read_message):
            messages.setdefault(entry.index, entry)
        for order in ("ASC", "DESC"):
            rows = _until_damage(connection, f"SELECT * FROM pools ORDER BY pool_id {order}")
            for pool in _good(rows, read_pool):
                pools[pool.pool_id] = pool
        for name, number in _good(_until_damage(connection, "SELECT * FROM facts"), read_fact):
            if name == HIGHEST_MS:
                highest_ms = number
    finally:
        with suppress(sqlite3.Error):
            connection.close()
    distinct = {entry.message.key: entry for entry in messages.values()}
    kept = {entry.index: entry for entry in distinct.values()}
    return kept, list(pools.values()), highest_ms


def _good(rows: Iterator[Row], read: Callable[[Row], T]) -> Iterator[T]:
    for row in rows:
        with suppress(DamagedRow):
            yield read(row)


def _message_rows(connection: sqlite3.Connection) -> Iterator[Row]:
    """From the front and from the back as far as it goes; what lies between, one by one."""
    first = last = 0
    for row in _until_damage(connection, "SELECT * FROM messages ORDER BY place"):
        first = row[0]
        yield row
    for row in _until_damage(connection, "SELECT * FROM messages ORDER BY place DESC"):
        last = row[0]
        yield row
    for place in range(first + 1, min(last, first + GAP_LOOKUPS_MAX)):
        yield from _until_damage(connection, f"SELECT * FROM messages WHERE place = {place:d}")


def _until_damage(connection: sqlite3.Connection, query: str) -> Iterator[Row]:
    try:
        yield from connection.execute(query)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
    except UnicodeDecodeError:
        # Damaged text, in a row or in SQLite's own words about the schema: nothing behind it can be trusted.
        return
