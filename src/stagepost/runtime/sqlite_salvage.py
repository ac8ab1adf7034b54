"""When a message store cannot be read as a whole: keep the damaged file, and copy what is readable into a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from stagepost.dmq.mempool import Entry
from stagepost.runtime.message_store import StoredPool
from stagepost.runtime.sqlite_damage import named_rows, numbered_rows, rename_damaged, until_damage
from stagepost.runtime.sqlite_file import Connect, SqliteFile, connect, create
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

T = TypeVar("T")


def salvage(path: Path, why: str, connect: Connect = connect) -> str:
    """Rename the file and make a new one from its readable rows; returns one sentence for the operator."""
    old = rename_damaged(path)
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


def _readable(old: Path, connect: Connect) -> tuple[dict[int, Entry], list[StoredPool], int]:
    messages: dict[int, Entry] = {}
    pools: dict[bytes, StoredPool] = {}
    highest_ms = 0
    if not old.exists():
        return messages, [], highest_ms
    connection = connect(str(old))
    try:
        connection.text_factory = bytes
        for entry in _good(numbered_rows(connection, "messages", "place"), read_message):
            messages.setdefault(entry.index, entry)
        for pool in _good(named_rows(connection, "pools", "pool_id"), read_pool):
            pools[pool.pool_id] = pool
        for name, number in _good(until_damage(connection, "SELECT * FROM facts"), read_fact):
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
