"""Everything that a message store's file holds, row by row: what is damaged is moved aside, and said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from stagepost.dmq.mempool import Entry, file_key
from stagepost.dmq.node.message_store import StoredPool
from stagepost.dmq.node.stored_rows import (
    FACT_NAMES,
    HIGHEST_MS,
    MESSAGES_HELD,
    POOLS_HELD,
    PUT_FACT,
    read_fact,
    read_message,
    read_pool,
    write_fact,
    write_message,
)
from stagepost.errors import StorageError
from stagepost.ground.storage.rows import SET_ASIDE, DamagedRow, Row, content_of
from stagepost.ground.storage.sqlite_file import SqliteFile

T = TypeVar("T")


@dataclass(frozen=True)
class Content:
    messages: tuple[Entry, ...] = ()
    pools: tuple[StoredPool, ...] = ()
    highest_ms: int = 0
    index_max: int = 0
    damage: tuple[str, ...] = ()


def read_content(file: SqliteFile) -> Content:
    """What is good, and sentences about what is not. The file is in order afterwards."""
    reading = _Reading(file)
    entries = reading.table("messages", "place", read_message)
    pools = reading.table("pools", "pool_id", read_pool)
    facts = dict(reading.table("facts", "name", read_fact))
    messages = reading.without_repeats(entries)
    for name, found in ((MESSAGES_HELD, len(messages)), (POOLS_HELD, len(pools))):
        reading.compare(name, facts.get(name), found)
    if HIGHEST_MS not in facts:
        reading.damage.append(f"the note of {HIGHEST_MS} is missing")
    times = [facts.get(HIGHEST_MS, 0)]
    times += [entry.received_ms for entry in entries]
    times += [pool.last_valid_ms for pool in pools]
    content = Content(
        tuple(messages),
        tuple(pools),
        max(times),
        max((entry.index for entry in entries), default=0),
        tuple(reading.damage),
    )
    if reading.damage:
        reading.repair(content)
    return content


class _Reading:
    def __init__(self, file: SqliteFile) -> None:
        self.damage: list[str] = []
        self._file = file
        self._bad: list[tuple[str, str, str, Row]] = []

    def table(self, name: str, key: str, read: Callable[[Row], T]) -> list[T]:
        good: list[T] = []
        for row in self._file.rows(f"SELECT * FROM {name} ORDER BY {key}"):
            try:
                good.append(read(row))
            except DamagedRow as fault:
                self._set_aside(name, key, str(fault), row)
        return good

    def without_repeats(self, entries: list[Entry]) -> list[Entry]:
        first = {file_key(entry.message): entry for entry in reversed(entries)}
        if len(first) == len(entries):
            return entries
        for entry in entries:
            if first[file_key(entry.message)] is not entry:
                self._set_aside("messages", "place", "this message is stored twice", write_message(entry))
        return [entry for entry in entries if first[file_key(entry.message)] is entry]

    def compare(self, name: str, noted: int | None, found: int) -> None:
        set_aside = sum(origin == name.partition("_")[0] for origin, _, _, _ in self._bad)
        if noted is None:
            self.damage.append(f"the note of {name} is missing")
        elif noted > found + set_aside:
            self.damage.append(f"{noted - found - set_aside} rows are missing: {name} was {noted}")

    def _set_aside(self, name: str, key: str, fault: str, row: Row) -> None:
        self._bad.append((name, key, fault, row))
        self.damage.append(f"a row of {name} was set aside: {fault} ({key} {row[0]!r})")

    def repair(self, content: Content) -> None:
        file = self._file
        file.begin()
        file.run(
            SET_ASIDE,
            [(name, f"{key} {row[0]!r}: {fault}", content_of(row)) for name, key, fault, row in self._bad],
        )
        for name, key, _, row in self._bad:
            file.run(f"DELETE FROM {name} WHERE {key} = ?", [(row[0],)])
        facts = {
            HIGHEST_MS: content.highest_ms,
            MESSAGES_HELD: len(content.messages),
            POOLS_HELD: len(content.pools),
        }
        if facts.keys() != set(FACT_NAMES):
            raise StorageError(f"facts {sorted(facts)} would be written, the file has {sorted(FACT_NAMES)}")
        file.run("DELETE FROM facts", [()])
        file.run(PUT_FACT, [write_fact(name, number) for name, number in facts.items()])
        file.commit()
