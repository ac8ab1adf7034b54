"""The rows of the message store: how a value is written, with a checksum each, and how damage shows on reading.

Everything that a message store's file holds, row by row: what is damaged is moved aside, and said.

What a store still has to write: kept until a transaction took all of it, however many failed before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import TypeVar

from stagepost.dmq.mempool import Entry, file_key
from stagepost.dmq.message import NETWORK_SIZES, DmqMessage, MessageLayout, read_usual_shape
from stagepost.dmq.node.message_store import StoredPool, pool_of
from stagepost.errors import DecodeError, StorageError
from stagepost.ground.identifiers import POOL_ID_BYTES, PoolId
from stagepost.ground.storage.layout import Layout
from stagepost.ground.storage.rows import SET_ASIDE, DamagedRow, Row, UnknownRow, checksum_of, content_of
from stagepost.ground.storage.sqlite_file import SqliteFile

# Numbers of a certificate have 64 bits without a sign, and SQLite's have a sign: so they are bytes.
LAYOUT = Layout(
    {
        "messages": "CREATE TABLE messages (place INTEGER PRIMARY KEY, layout INTEGER NOT NULL, "
        "received_ms INTEGER NOT NULL, source TEXT NOT NULL, raw BLOB NOT NULL, checksum BLOB NOT NULL)",
        "pools": "CREATE TABLE pools (pool_id BLOB PRIMARY KEY, issue_number BLOB NOT NULL, "
        "last_valid_ms INTEGER NOT NULL, checksum BLOB NOT NULL) WITHOUT ROWID",
        "facts": "CREATE TABLE facts (name TEXT PRIMARY KEY, number INTEGER NOT NULL, checksum BLOB NOT NULL) "
        "WITHOUT ROWID",
        "set_aside": "CREATE TABLE set_aside (origin TEXT NOT NULL, reason TEXT NOT NULL, content BLOB NOT NULL)",
    }
)
PUT_MESSAGE = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)"
PUT_POOL = "REPLACE INTO pools VALUES (?, ?, ?, ?)"
PUT_FACT = "REPLACE INTO facts VALUES (?, ?, ?)"

HIGHEST_MS = "highest_ms"
MESSAGES_HELD = "messages_held"
POOLS_HELD = "pools_held"
FACT_NAMES = (HIGHEST_MS, MESSAGES_HELD, POOLS_HELD)
COUNTER_BYTES = 8
LAYOUTS = {layout.value: layout for layout in MessageLayout}

_MESSAGE_HEAD = Struct(">QBQI")
_NUMBER = Struct(">q")


def write_message(entry: Entry) -> Row:
    message = entry.message
    layout = message.layout.value
    source = entry.source.encode()
    head = _MESSAGE_HEAD.pack(entry.index, layout, entry.received_ms, len(source))
    checksum = checksum_of(head, source, message.raw)
    return entry.index, layout, entry.received_ms, entry.source, message.raw, checksum


def read_message(row: Row) -> Entry:
    """Text columns come as bytes: damaged text need not be text any more."""
    # A million of these are read at a start: a type that is wrong shows in use, and is not asked for before.
    place, layout, received_ms, source, raw, checksum = row
    try:
        if checksum != checksum_of(_MESSAGE_HEAD.pack(place, layout, received_ms, len(source)), source, raw):
            raise DamagedRow("the checksum does not fit")
    except (TypeError, StructError) as error:
        raise DamagedRow("a column has the wrong type") from error
    if layout not in LAYOUTS:
        raise UnknownRow(f"message {place} has the unknown layout {layout}")
    try:
        message = read_usual_shape(raw, 0, len(raw), NETWORK_SIZES)
        if message is None or len(message.raw) != len(raw):
            message = DmqMessage.decode(raw, profile="seed")
        return Entry(place, message, received_ms, source.decode())
    except (DecodeError, UnicodeDecodeError) as error:
        raise UnknownRow(f"message {place} is whole, but cannot be decoded: {error}") from error


def write_pool(pool: StoredPool) -> Row:
    issue_number = pool.issue_number.to_bytes(COUNTER_BYTES, "big")
    checksum = checksum_of(pool.pool_id, issue_number, _NUMBER.pack(pool.last_valid_ms))
    return pool.pool_id, issue_number, pool.last_valid_ms, checksum


def read_pool(row: Row) -> StoredPool:
    match row:
        case (bytes(pool_id), bytes(issue_number), int(last_valid_ms), bytes(checksum)):
            pass
        case _:
            raise DamagedRow("a column has the wrong type")
    if len(pool_id) != POOL_ID_BYTES or len(issue_number) != COUNTER_BYTES:
        raise DamagedRow("a column has the wrong length")
    if checksum != checksum_of(pool_id, issue_number, _NUMBER.pack(last_valid_ms)):
        raise DamagedRow("the checksum does not fit")
    return StoredPool(PoolId(pool_id), int.from_bytes(issue_number, "big"), last_valid_ms)


def write_fact(name: str, number: int) -> Row:
    return name, number, checksum_of(name.encode(), _NUMBER.pack(number))


FIRST_FACTS = [(PUT_FACT, [write_fact(name, 0) for name in FACT_NAMES])]
"""The rows of a new store."""


def read_fact(row: Row) -> tuple[str, int]:
    match row:
        case (bytes(name), int(number), bytes(checksum)):
            pass
        case _:
            raise DamagedRow("a column has the wrong type")
    if checksum != checksum_of(name, _NUMBER.pack(number)):
        raise DamagedRow("the checksum does not fit")
    return name.decode(), number


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


class Changes:
    """Messages to forget, what their pools have settled, and the time at which that was seen."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self._pools: dict[bytes, StoredPool] = {}
        self._seen_ms = 0
        self._reset_ms: int | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.places or self._seen_ms or self._reset_ms is not None)

    def forget(self, records: Sequence[Entry], unix_ms: int) -> None:
        for record in records:
            self.places.append(record.index)
            settled = _not_after(pool_of(record), unix_ms)
            self._pools[settled.pool_id] = settled.merged(self._pools.get(settled.pool_id))
        self._seen_ms = max(self._seen_ms, unix_ms)

    def reset_time(self, unix_ms: int) -> None:
        self._reset_ms = self._seen_ms = unix_ms

    def followed_by(self, later: Changes) -> Changes:
        """These, which could not be written, and what came after them."""
        joined = Changes()
        joined.places = self.places + later.places
        joined._pools = dict(self._pools)
        for pool_id, pool in later._pools.items():
            joined._pools[pool_id] = pool.merged(joined._pools.get(pool_id))
        joined._reset_ms = self._reset_ms if later._reset_ms is None else later._reset_ms
        joined._seen_ms = max(self._seen_ms if later._reset_ms is None else 0, later._seen_ms)
        return joined

    def pools_after(self, held: Mapping[bytes, StoredPool]) -> list[StoredPool]:
        """The pools whose memory changes, as it then is."""
        before = held
        after: dict[bytes, StoredPool] = {}
        if self._reset_ms is not None:
            before = {pool_id: _not_after(pool, self._reset_ms) for pool_id, pool in held.items()}
            after = dict(before)
        for pool_id, pool in self._pools.items():
            after[pool_id] = pool.merged(before.get(pool_id))
        return [pool for pool_id, pool in after.items() if pool != held.get(pool_id)]

    def time_after(self, highest_ms: int) -> int:
        return max(self._seen_ms, highest_ms if self._reset_ms is None else self._reset_ms)


def _not_after(pool: StoredPool, unix_ms: int) -> StoredPool:
    """Times beyond the present came from a clock that was wrong."""
    if pool.last_valid_ms <= unix_ms:
        return pool
    return StoredPool(pool.pool_id, pool.issue_number, unix_ms)
