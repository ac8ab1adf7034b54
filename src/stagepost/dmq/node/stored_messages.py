"""The message store on disk: one SQLite file, one writing thread, one fsync for everything that waits.

Messages that are put while the disk is busy join the next transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from struct import error as StructError

from stagepost.dmq.mempool import MempoolEntry, file_key
from stagepost.dmq.message import NETWORK_SIZES, DmqMessage, MessageLayout, read_usual_shape
from stagepost.dmq.node.message_store import (
    StoredMessage,
    StoredPool,
    StoredState,
    Written,
    pool_of,
    write_and_wait,
)
from stagepost.errors import DecodeError, StorageError
from stagepost.ground.files.owner_lock import OwnerLock
from stagepost.ground.identifiers import POOL_ID_BYTES, PoolId
from stagepost.ground.storage.group_writer import FileBackend, GroupWriter, WriterCounters
from stagepost.ground.storage.sqlite_file import Connect, beside, connect
from stagepost.ground.storage.table_file import Notes, TableFile
from stagepost.ground.storage.tables import (
    AnyTable,
    DamagedRow,
    Draft,
    Held,
    Row,
    RowTable,
    UnknownRow,
    checksum_of,
)

WHAT = "message store"


class SqliteStore:
    """Message store in a file; `StorageError` from the constructor if another process has the file, or if the folder
    cannot be used."""

    def __init__(self, path: Path, *, connect: Connect = connect) -> None:
        lock = OwnerLock(beside(path, ".lock"))
        try:
            self._file = TableFile(path, TABLES, WHAT, notes=NOTES, connect=connect)
        except BaseException:
            lock.release()
            raise
        self._writer = GroupWriter(
            FileBackend(self._file, WHAT, lock.release), MessageDraftBook, on_error=lambda error: None
        )

    @property
    def counters(self) -> WriterCounters:
        return self._writer.counters

    @property
    def commit_s(self) -> float:
        """Seconds spent waiting for the disk, mostly in fsync."""
        return self._file.commit_s

    @property
    def fault(self) -> str | None:
        error = self._writer.fault
        return None if error is None else error.text

    def load(self) -> StoredState:
        state = state_of(self._file.held, self._file.damage)
        # The rows may know a later time than the note, which never goes back.
        self._file.held[FACTS.name][HIGHEST_MS] = state.highest_ms
        return state

    async def put(self, records: Sequence[StoredMessage]) -> None:
        await write_and_wait(self, records)

    def write(self, records: Sequence[StoredMessage], written: Written) -> None:
        if not records:
            return written(None)
        try:
            self._writer.ask(lambda book: book.put(records), written)
        except StorageError as closed:
            written(closed)

    def forget(self, records: Sequence[StoredMessage], unix_s: float) -> None:
        self._writer.soon(lambda book: book.forget(records, int(unix_s * 1_000)))

    def reset_time(self, unix_s: float) -> None:
        self._writer.soon(lambda book: book.reset_time(int(unix_s * 1_000)))

    async def close(self) -> None:
        """Write everything that was given; then the file has no log, and the next owner may come."""
        await self._writer.close()


HIGHEST_MS = "highest_ms"
COUNTER_BYTES = 8
LAYOUTS = {layout.value: layout for layout in MessageLayout}

_MESSAGE_HEAD = Struct(">QBQI")
_NUMBER = Struct(">q")


class MessageRows(RowTable[int, MempoolEntry]):
    """Messages by their place in the order of arrival."""

    def __init__(self) -> None:
        super().__init__(
            "messages",
            int,
            "place INTEGER PRIMARY KEY, layout INTEGER NOT NULL, received_ms INTEGER NOT NULL, "
            "source TEXT NOT NULL, raw BLOB NOT NULL, checksum BLOB NOT NULL",
            identity=lambda entry: file_key(entry.message),
            count_name="messages_held",
        )

    def write(self, key: int, value: MempoolEntry) -> Row:
        message = value.message
        layout = message.layout.value
        source = value.source.encode()
        head = _MESSAGE_HEAD.pack(key, layout, value.received_ms, len(source))
        return (
            key,
            layout,
            value.received_ms,
            value.source,
            message.raw,
            checksum_of(head, source, message.raw),
        )

    def read(self, row: Row) -> tuple[int, MempoolEntry]:
        # A million of these are read at a start: a type that is wrong shows in use, and is not asked for before.
        place, layout, received_ms, source, raw, checksum = row
        try:
            if checksum != checksum_of(
                _MESSAGE_HEAD.pack(place, layout, received_ms, len(source)), source, raw
            ):
                raise DamagedRow("the checksum does not fit")
        except (TypeError, StructError) as error:
            raise DamagedRow("a column has the wrong type") from error
        if layout not in LAYOUTS:
            raise UnknownRow(f"message {place} has the unknown layout {layout}")
        try:
            message = read_usual_shape(raw, 0, len(raw), NETWORK_SIZES)
            if message is None or len(message.raw) != len(raw):
                message = DmqMessage.decode(raw, profile="seed")
            return place, MempoolEntry(place, message, received_ms, source.decode())
        except (DecodeError, UnicodeDecodeError) as error:
            raise UnknownRow(f"message {place} is whole, but cannot be decoded: {error}") from error


class PoolRows(RowTable[bytes, StoredPool]):
    """Pools by their id. Numbers of a certificate have 64 bits without a sign, SQLite's have a sign: so they are bytes."""

    def __init__(self) -> None:
        super().__init__(
            "pools",
            bytes,
            "pool_id BLOB PRIMARY KEY, issue_number BLOB NOT NULL, last_valid_ms INTEGER NOT NULL, "
            "checksum BLOB NOT NULL",
            count_name="pools_held",
        )

    def write(self, key: bytes, value: StoredPool) -> Row:
        issue_number = value.issue_number.to_bytes(COUNTER_BYTES, "big")
        checksum = checksum_of(key, issue_number, _NUMBER.pack(value.last_valid_ms))
        return key, issue_number, value.last_valid_ms, checksum

    def read(self, row: Row) -> tuple[bytes, StoredPool]:
        match row:
            case (bytes(pool_id), bytes(issue_number), int(last_valid_ms), bytes(checksum)):
                pass
            case _:
                raise DamagedRow("a column has the wrong type")
        if len(pool_id) != POOL_ID_BYTES or len(issue_number) != COUNTER_BYTES:
            raise DamagedRow("a column has the wrong length")
        if checksum != checksum_of(pool_id, issue_number, _NUMBER.pack(last_valid_ms)):
            raise DamagedRow("the checksum does not fit")
        return pool_id, StoredPool(PoolId(pool_id), int.from_bytes(issue_number, "big"), last_valid_ms)


class FactRows(RowTable[str, int]):
    """Numbers by name."""

    def __init__(self) -> None:
        super().__init__(
            "facts", str, "name TEXT PRIMARY KEY, number INTEGER NOT NULL, checksum BLOB NOT NULL"
        )

    def write(self, key: str, value: int) -> Row:
        return key, value, checksum_of(key.encode(), _NUMBER.pack(value))

    def read(self, row: Row) -> tuple[str, int]:
        match row:
            case (bytes(name), int(number), bytes(checksum)):
                pass
            case _:
                raise DamagedRow("a column has the wrong type")
        if checksum != checksum_of(name, _NUMBER.pack(number)):
            raise DamagedRow("the checksum does not fit")
        return name.decode(), number


MESSAGES, POOLS, FACTS = MessageRows(), PoolRows(), FactRows()
TABLES: tuple[AnyTable, ...] = (MESSAGES, POOLS)
NOTES = Notes(FACTS, (HIGHEST_MS,))


def empty_rows() -> Held:
    """Return the rows of a new store."""
    return {MESSAGES.name: {}, POOLS.name: {}, FACTS.name: {HIGHEST_MS: 0}}


def state_of(held: Held, damage: Sequence[str] = ()) -> StoredState:
    """Return the rows as a node takes them over; the highest time is that of the note or of any row."""
    messages: dict[int, MempoolEntry] = held[MESSAGES.name]
    pools: dict[bytes, StoredPool] = held[POOLS.name]
    highest_ms: int = held[FACTS.name][HIGHEST_MS]
    highest_ms = max(highest_ms, max((entry.received_ms for entry in messages.values()), default=0))
    highest_ms = max(highest_ms, max((pool.last_valid_ms for pool in pools.values()), default=0))
    return StoredState(
        tuple(messages[place] for place in sorted(messages)),
        tuple(pools.values()),
        highest_ms,
        max(messages, default=0),
        tuple(damage),
    )


class MessageDraftBook:
    """Changes to the rows of a draft. Each may be repeated after a failed transaction."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def put(self, records: Sequence[StoredMessage]) -> None:
        for record in records:
            self._draft.put(MESSAGES, record.index, record)

    def forget(self, records: Sequence[StoredMessage], unix_ms: int) -> None:
        """Drop messages that were seen to expire at `unix_ms`; keep what their pools have settled, and the time."""
        for record in records:
            self._draft.drop(MESSAGES, record.index)
            self._settle(_not_after(pool_of(record), unix_ms))
        highest_ms = self._draft.get(FACTS, HIGHEST_MS) or 0
        if unix_ms > highest_ms:
            self._draft.put(FACTS, HIGHEST_MS, unix_ms)

    def _settle(self, pool: StoredPool) -> None:
        before = self._draft.get(POOLS, pool.pool_id)
        after = pool.merged(before)
        if after != before:
            self._draft.put(POOLS, pool.pool_id, after)

    def reset_time(self, unix_ms: int) -> None:
        """Replace the highest time, and every later time of a pool: a wrong clock gave them."""
        for pool_id, pool in self._draft.items(POOLS):
            if pool.last_valid_ms > unix_ms:
                self._draft.put(POOLS, pool_id, _not_after(pool, unix_ms))
        self._draft.put(FACTS, HIGHEST_MS, unix_ms)

    def finish(self) -> None:
        pass


def _not_after(pool: StoredPool, unix_ms: int) -> StoredPool:
    """Return the pool without a time beyond the present, which only a wrong clock can have given."""
    if pool.last_valid_ms <= unix_ms:
        return pool
    return StoredPool(pool.pool_id, pool.issue_number, unix_ms)
