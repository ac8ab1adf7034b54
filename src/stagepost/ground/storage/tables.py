"""Rows that are held in memory and kept elsewhere: tables of values by key, and drafts that happen whole or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from struct import Struct
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from stagepost.errors import StorageError

Key: TypeAlias = int | bytes | str
Held: TypeAlias = dict[str, dict[Any, Any]]
"""Values by key for each table, the oldest first."""

K = TypeVar("K", bound=Key)
V = TypeVar("V")

_COLUMN_TYPES = {int: "INTEGER", bytes: "BLOB", str: "TEXT"}
_NUMBER = Struct(">q")
_LENGTH = Struct(">I")
_encode = msgspec.msgpack.Encoder().encode


class RowTable(ABC, Generic[K, V]):
    """Rows of one kind in a table of a file; `columns` declares them, the first one as the key.

    `age` returns the value that rows are sorted by when they are read; without `age` they are sorted by key.
    `identity` returns what no two rows may have in common: the later one is set aside. `is_replaceable`: the store
    makes up for the loss of all rows by itself, and says so. `count_name` is the name under which the file notes how
    many rows the table has.
    """

    def __init__(
        self,
        name: str,
        key: type[K],
        columns: str,
        *,
        age: Callable[[V], Any] | None = None,
        identity: Callable[[V], object] | None = None,
        is_replaceable: bool = False,
        count_name: str | None = None,
    ) -> None:
        self.name = name
        self.key = key
        self.age = age
        self.identity = identity
        self.is_replaceable = is_replaceable
        self.count_name = count_name or name
        self.schema = f"CREATE TABLE {name} ({columns}){'' if key is int else ' WITHOUT ROWID'}"
        self.key_column = columns.partition(" ")[0]
        self.width = columns.count(",") + 1
        # Text is read as bytes, and a damaged key may have any type: it must be met all the same.
        column = self.key_column
        self.drop_damaged = f"DELETE FROM {name} WHERE {column} IS ?1 OR CAST({column} AS BLOB) = ?1"

    @abstractmethod
    def write(self, key: K, value: V) -> Row:
        """Return the row; its second column is never None."""

    @abstractmethod
    def read(self, row: Row) -> tuple[K, V]:
        """Return key and value; `DamagedRow` if the checksum does not fit, `UnknownRow` if another release wrote it.

        Text comes as bytes: damaged text need not be text any more.
        """


class Table(RowTable[K, V]):
    """Rows with the value as MessagePack, and a checksum over the table's name, key and value."""

    def __init__(
        self,
        name: str,
        key: type[K],
        value: type[V],
        age: Callable[[V], Any] | None = None,
        *,
        is_replaceable: bool = False,
    ) -> None:
        columns = f"key {_COLUMN_TYPES[key]} PRIMARY KEY, content BLOB NOT NULL, checksum BLOB NOT NULL"
        super().__init__(name, key, columns, age=age, is_replaceable=is_replaceable)
        self._begin = name.encode() + b"\0"
        self._decoder = msgspec.msgpack.Decoder(value)

    def write(self, key: Key, value: V) -> Row:
        content = _encode(value)
        return key, content, self._checksum(key, content)

    def read(self, row: Row) -> tuple[K, V]:
        key, content, checksum = row
        try:
            if self.key is str and isinstance(key, bytes):
                key = key.decode()
        except UnicodeDecodeError as error:
            raise DamagedRow(f"it is not what was written: {error}") from error
        if not isinstance(key, self.key) or not isinstance(content, bytes):
            raise DamagedRow("a column has the wrong type")
        if checksum != self._checksum(key, content):
            raise DamagedRow("the checksum does not fit")
        try:
            return key, self._decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnknownRow(
                f"row {key!r} of {self.name} is whole, but cannot be decoded: {error}"
            ) from error

    def _checksum(self, key: Key, content: bytes) -> bytes:
        if isinstance(key, int):
            key = _NUMBER.pack(key)
        elif isinstance(key, str):
            key = key.encode()
        data = b"".join((self._begin, _LENGTH.pack(len(key)), key, content))
        return blake2b(data, digest_size=CHECKSUM_BYTES).digest()


AnyTable: TypeAlias = RowTable[Any, Any]


def empty(tables: Mapping[str, AnyTable]) -> Held:
    return {name: {} for name in tables}


class Draft:
    """Changes to what is held, seen by whoever reads through the draft, and by nobody else before `settle`."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.changes: Held = {}
        """Values by table and key; None for a row that is gone."""
        self.is_settled = False

    def get(self, table: RowTable[K, V], key: K) -> V | None:
        changed = self.changes.get(table.name)
        if changed is not None and key in changed:
            value: V | None = changed[key]
            return value
        return self._held[table.name].get(key)

    def items(self, table: RowTable[K, V]) -> Iterator[tuple[K, V]]:
        """Give the rows as they are in this draft, which the caller may change meanwhile."""
        for key, value in (self._held[table.name] | self.changes.get(table.name, {})).items():
            if value is not None:
                yield key, value

    def put(self, table: RowTable[K, V], key: K, value: V) -> None:
        """The newest of the table from now on."""
        changed = self.changes.setdefault(table.name, {})
        changed.pop(key, None)
        changed[key] = value

    def drop(self, table: RowTable[K, V], key: K) -> None:
        changed = self.changes.setdefault(table.name, {})
        changed.pop(key, None)
        if key in self._held[table.name]:
            changed[key] = None

    def count(self, table: AnyTable) -> int:
        held = self._held[table.name]
        return len(held) + sum(
            (value is not None) - (key in held) for key, value in self.changes.get(table.name, {}).items()
        )

    def keep_newest(self, table: AnyTable, count_max: int) -> None:
        """Drop the oldest rows above a number of them."""
        surplus = self.count(table) - count_max
        if surplus <= 0:
            return
        changed = self.changes.get(table.name, {})
        unchanged = (key for key in self._held[table.name] if key not in changed)
        oldest = [key for key, _ in zip(unchanged, range(surplus), strict=False)]
        oldest += [key for key, value in changed.items() if value is not None][: surplus - len(oldest)]
        for key in oldest:
            self.drop(table, key)

    def settle(self) -> None:
        """Make the changes to the rows that are held: the transaction has happened."""
        settle(self._held, self.changes)
        self.is_settled = True


def settle(held: Held, changes: Held) -> None:
    for name, changed in changes.items():
        rows = held[name]
        for key, value in changed.items():
            rows.pop(key, None)
            if value is not None:
                rows[key] = value


SET_ASIDE = "INSERT INTO set_aside VALUES (?, ?, ?)"

CHECKSUM_BYTES = 8

Row: TypeAlias = tuple[Any, ...]


class DamagedRow(Exception):
    """Damage of a row; never leaves the store."""


class UnknownRow(StorageError):
    """Row that is whole, since its checksum fits, and that this release cannot read: another release wrote it."""


def checksum_of(*parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=CHECKSUM_BYTES).digest()


def content_of(row: Row) -> bytes:
    """Return a row of any shape as bytes, for people who look into the rows that were set aside."""
    blobs = [value for value in row if isinstance(value, bytes)]
    return max(blobs, key=len) if blobs else repr(row).encode()
