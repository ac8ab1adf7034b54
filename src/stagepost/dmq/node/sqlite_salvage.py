"""When a message store cannot be read as a whole: keep the damaged file, and copy what is readable into a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from stagepost.dmq.mempool import Entry
from stagepost.dmq.node.message_store import StoredPool
from stagepost.dmq.node.stored_rows import (
    HIGHEST_MS,
    MESSAGES_HELD,
    POOLS_HELD,
    PUT_FACT,
    PUT_MESSAGE,
    PUT_POOL,
    SCHEMA,
    read_fact,
    read_message,
    read_pool,
    write_fact,
    write_message,
    write_pool,
)
from stagepost.ground.storage.damage import Remains, counted, replace_damaged
from stagepost.ground.storage.layout import read_only
from stagepost.ground.storage.rows import DamagedRow, Row
from stagepost.ground.storage.sqlite_file import Connect, connect, create

T = TypeVar("T")

_HELD = {"messages": MESSAGES_HELD, "pools": POOLS_HELD}
"""For each table the note of how many rows it has."""


def salvage(path: Path, why: str, connect: Connect = connect) -> str:
    """Put a new file with the readable rows in the place of a damaged one; return one sentence for the operator."""
    messages: dict[int, Entry] = {}
    pools: dict[bytes, StoredPool] = {}
    with read_only(path) as connection:
        remains = Remains(connection)
        for entry in _good(remains.numbered_rows("messages", "place"), read_message):
            messages.setdefault(entry.index, entry)
        for pool in _good(remains.named_rows("pools", "pool_id"), read_pool):
            pools[pool.pool_id] = pool
        facts = dict(_good(remains.named_rows("facts", "name"), read_fact))
    distinct = {entry.message.key: entry for entry in messages.values()}
    kept = {entry.index: entry for entry in distinct.values()}
    held = {table: facts[name] for table, name in _HELD.items() if name in facts}
    remains.refuse_loss(path, "message store", why, {"messages": len(kept), "pools": len(pools)}, held)
    new_facts = {HIGHEST_MS: facts.get(HIGHEST_MS, 0), MESSAGES_HELD: len(kept), POOLS_HELD: len(pools)}
    rows = [
        (PUT_MESSAGE, [write_message(kept[place]) for place in sorted(kept)]),
        (PUT_POOL, [write_pool(pool) for pool in pools.values()]),
        (PUT_FACT, [write_fact(name, number) for name, number in new_facts.items()]),
    ]
    old = replace_damaged(path, lambda fresh: create(fresh, connect, SCHEMA, rows))
    lost = "" if HIGHEST_MS in facts else f"; the note of {HIGHEST_MS} is lost"
    return (
        f"{path.name} could not be read ({why}); it is kept as {old.name}, and "
        f"{counted(len(kept), held.get('messages'), 'messages')} and "
        f"{counted(len(pools), held.get('pools'), 'pools')} were copied from it{lost}"
    )


def _good(rows: Iterator[Row], read: Callable[[Row], T]) -> Iterator[T]:
    for row in rows:
        with suppress(DamagedRow):
            yield read(row)
