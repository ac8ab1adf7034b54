"""The rows of the message store: how a value is written, with a checksum each, and how damage shows on reading."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from stagepost.dmq.mempool import Entry
from stagepost.dmq.message import NETWORK_SIZES, DmqMessage, MessageLayout, read_usual_shape
from stagepost.dmq.node.message_store import StoredPool
from stagepost.errors import DecodeError
from stagepost.ground.identifiers import POOL_ID_BYTES, PoolId
from stagepost.ground.storage.rows import DamagedRow, Row, UnknownRow, checksum_of

# Numbers of a certificate have 64 bits without a sign, and SQLite's have a sign: so they are bytes.
SCHEMA: dict[str, str] = {
    "messages": "CREATE TABLE messages (place INTEGER PRIMARY KEY, layout INTEGER NOT NULL, "
    "received_ms INTEGER NOT NULL, source TEXT NOT NULL, raw BLOB NOT NULL, checksum BLOB NOT NULL)",
    "pools": "CREATE TABLE pools (pool_id BLOB PRIMARY KEY, issue_number BLOB NOT NULL, "
    "last_valid_ms INTEGER NOT NULL, checksum BLOB NOT NULL) WITHOUT ROWID",
    "facts": "CREATE TABLE facts (name TEXT PRIMARY KEY, number INTEGER NOT NULL, checksum BLOB NOT NULL) "
    "WITHOUT ROWID",
    "set_aside": "CREATE TABLE set_aside (origin TEXT NOT NULL, reason TEXT NOT NULL, content BLOB NOT NULL)",
}
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
