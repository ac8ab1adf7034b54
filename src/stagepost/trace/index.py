"""The index of a data folder: which ids one message has in which layer, and where the topics hold its records.

The index is one SQLite file beside the topics, made from them alone: it is brought up to date from the offset that it has
read up to, made anew when it is missing or damaged, and pruned with the topics. Any number of processes may use it at once.
Every row has a checksum, and an id that is not found is believed only after the whole file was verified: a damaged row must
not look like a message that nobody sent.

    with MessageIndex(data) as index:
        index.catch_up()
        matches = index.find("5f0c91aa")
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Self
from zlib import crc32

from stagepost.delivery.identity import nonce_of_key
from stagepost.errors import StorageError
from stagepost.ground.storage.layout import (
    Beginning,
    Migration,
    StoreLayout,
    UnreadableLayout,
    create,
    migrate,
    refuse_other_layout,
)
from stagepost.ground.storage.sqlite_file import DamagedFile, SqliteFile, beside, connect, is_damage
from stagepost.topics.log.file_topic import TOPIC_FILE, TOPICS_FOLDER, FileTopicReader, open_topic
from stagepost.trace.indexed_records import (
    ID_DIGITS,
    INDEXED_TOPICS,
    MessageIds,
    NameKind,
    RecordNames,
    RecordSpan,
    names_in,
)

INDEX_FILE = "index.sqlite"
WHAT = "message index"
PREFIX_DIGITS_MIN = 8
MATCHES_MAX = 50
"""Messages, at most, that an ambiguous id or key lists."""
NAMES_OF_ONE_MAX = 1_000
"""Ids, at most, of one message: anybody may send copies of it, and acknowledge what nobody asked them to."""
RECORDS_AT_ONCE = 5_000
"""Records, about at most, of one transaction."""
FOLDERS_MAX = 64
"""Folders below a data folder, at most, whose topics belong to its index."""

VERIFY_EVERY_S = 60.0
"""Seconds, at least, from one verification of the whole file to the next in one process: anybody may look for what is not there."""

_MARK_BYTES = 8
_HEX = re.compile(rf"[0-9a-f]{{{PREFIX_DIGITS_MIN},{ID_DIGITS}}}")

_NAMES_V1 = (
    "CREATE TABLE names (id BLOB NOT NULL, kind INTEGER NOT NULL, number INTEGER NOT NULL, "
    "PRIMARY KEY (id, kind, number)) WITHOUT ROWID"
)
_SPANS_V1 = (
    "CREATE TABLE spans (id BLOB NOT NULL, source INTEGER NOT NULL, first INTEGER NOT NULL, "
    "last INTEGER NOT NULL, PRIMARY KEY (id, source)) WITHOUT ROWID"
)
_MESSAGES_V1 = (
    "CREATE TABLE messages (number INTEGER PRIMARY KEY, topic TEXT, first_ms INTEGER NOT NULL, "
    "names INTEGER NOT NULL)"
)
_SOURCES_V1 = (
    "CREATE TABLE sources (source INTEGER PRIMARY KEY, folder TEXT NOT NULL, topic TEXT NOT NULL, "
    "part INTEGER NOT NULL, next INTEGER NOT NULL, mark BLOB NOT NULL)"
)
_TABLES = {
    "names": (
        "CREATE TABLE names (id BLOB NOT NULL, kind INTEGER NOT NULL, number INTEGER NOT NULL, "
        "spans INTEGER NOT NULL, sum INTEGER NOT NULL, PRIMARY KEY (id, kind, number)) WITHOUT ROWID"
    ),
    "names_by_number": "CREATE INDEX names_by_number ON names (number)",
    "spans": (
        "CREATE TABLE spans (id BLOB NOT NULL, source INTEGER NOT NULL, first INTEGER NOT NULL, "
        "last INTEGER NOT NULL, sum INTEGER NOT NULL, PRIMARY KEY (id, source)) WITHOUT ROWID"
    ),
    "spans_by_last": "CREATE INDEX spans_by_last ON spans (source, last)",
    "messages": (
        "CREATE TABLE messages (number INTEGER PRIMARY KEY, topic TEXT, first_ms INTEGER NOT NULL, "
        "names INTEGER NOT NULL, sum INTEGER NOT NULL)"
    ),
    "sources": (
        "CREATE TABLE sources (source INTEGER PRIMARY KEY, folder TEXT NOT NULL, topic TEXT NOT NULL, "
        "part INTEGER NOT NULL, next INTEGER NOT NULL, mark BLOB NOT NULL, sum INTEGER NOT NULL)"
    ),
}
LAYOUT = StoreLayout(
    _TABLES,
    (
        # The topics fill the tables again, with checksums.
        Migration(
            1,
            2,
            (
                *(f"DROP TABLE {name}" for name in ("names", "spans", "messages", "sources")),
                *_TABLES.values(),
            ),
            former={
                "names": _NAMES_V1,
                "spans": _SPANS_V1,
                "messages": _MESSAGES_V1,
                "sources": _SOURCES_V1,
            },
        ),
    ),
    Beginning(1, "it was made before the index had a version", "remove the file: it is made anew"),
)

log = logging.getLogger(__name__)


class _Source(NamedTuple):
    number: int
    next: int
    mark: bytes


class MessageIndex:
    """Index of a data folder; `StorageError` from the constructor if there is a file of another layout in its place.

    `outbox` is the folder of a publisher elsewhere, whose topic of delivery events belongs to the same messages. Where the
    folder cannot be written, the index is made in a folder of its own, which goes with it.
    """

    def __init__(self, data: Path, outbox: Path | None = None) -> None:
        self._data = data
        self._outbox = outbox
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None
        if not data.is_dir():
            raise StorageError(
                f"there is no data folder {data}", advice="give the folder of a node or devnet with --data"
            )
        place = data
        if not os.access(data, os.W_OK):
            self._own_folder = tempfile.TemporaryDirectory(prefix="stagepost-index-")
            place = Path(self._own_folder.name)
        self._path = place / INDEX_FILE
        self._numbers: dict[bytes, int] = {}
        self.made_anew: str | None = None
        """Reason why this object has made the file anew; None if there was no need."""
        self._file = self._opened()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    # Opening

    def _opened(self) -> SqliteFile:
        for is_last in (False, True):
            try:
                if not self._path.exists():
                    create(self._path, connect, LAYOUT, ())
                with closing(connect(str(self._path))) as connection:
                    connection.text_factory = bytes
                    version = refuse_other_layout(connection, self._path, LAYOUT, WHAT)
                if version != LAYOUT.version:
                    migrate(self._path, LAYOUT, WHAT, connect)
                file = SqliteFile(self._path, _summing)
                # The topics can make again what a power cut takes.
                file.sync_commits(False)
                return file
            except (UnreadableLayout, DamagedFile, sqlite3.Error) as error:
                if is_last or (isinstance(error, sqlite3.Error) and not is_damage(error)):
                    raise _failed(self._path, error) from error
                self._discard(str(error))
            except OSError as error:
                raise _failed(self._path, error) from error
        raise StorageError(f"the {WHAT} {self._path} cannot be made")

    def _discard(self, why: str) -> None:
        log.warning("message index is made anew", extra={"file": str(self._path), "reason": why})
        self.made_anew = why
        for ending in ("", "-wal", "-shm"):
            beside(self._path, ending).unlink(missing_ok=True)

    def _again(self, error: sqlite3.Error) -> None:
        """Make a damaged file anew; raise what is not damage."""
        if not is_damage(error):
            raise _failed(self._path, error) from error
        self._file.close()
        self._discard(str(error))
        self._file = self._opened()

    # Writing

    def catch_up(self) -> int:
        """Read what the topics have gained, and forget what they have lost; return how many records were read."""
        try:
            return self._catch_up()
        except sqlite3.Error as error:
            self._again(error)
            return self._catch_up()

    def _catch_up(self) -> int:
        count = 0
        for folder in topic_folders(self._data, self._outbox):
            for topic in INDEXED_TOPICS:
                if not (folder / TOPICS_FOLDER / topic / TOPIC_FILE).exists():
                    continue
                reader = open_topic(folder, topic).reader()
                for partition in range(reader.partitions):
                    while read := self._read_some(self._name_of(folder), topic, partition, reader):
                        count += read
        return count

    def _name_of(self, folder: Path) -> str:
        if folder == self._data:
            return "."
        inside = folder.is_relative_to(self._data)
        return str(folder.relative_to(self._data)) if inside else str(folder.absolute())

    def _folder_of(self, name: str) -> Path:
        return self._data / name

    def _read_some(self, folder: str, topic: str, partition: int, reader: FileTopicReader) -> int:
        """Take over the next records of a partition in one transaction; return their number."""
        start, end = reader.start_offset(partition), reader.end_offset(partition)
        known = self._source(folder, topic, partition)
        if known is not None and known.next == end and not self._has_spans_before(known.number, start):
            is_same = end == start or known.mark == _mark(reader, partition, end)
            if is_same:
                return 0
        file = self._file
        file.begin()
        try:
            self._numbers.clear()
            source = self._source(folder, topic, partition)
            if source is None:
                file.call(
                    "INSERT INTO sources (folder, topic, part, next, mark, sum) "
                    "VALUES (?1, ?2, ?3, ?4, ?5, row_sum(?1, ?2, ?3))",
                    (folder, topic, partition, start, b""),
                )
                source = self._source(folder, topic, partition)
                if source is None:
                    raise StorageError(f"the {WHAT} {self._path} does not keep what is written")
            elif source.next > end or (
                source.next > start and source.mark != _mark(reader, partition, source.next)
            ):
                # The topic was begun anew: its offsets mean other records now.
                self._forget(source.number, end + source.next)
                source = source._replace(next=start)
            self._forget(source.number, start)
            read, at, spans = 0, max(source.next, start), dict[bytes, list[int]]()
            for batch in reader.batches(partition, at, end):
                for record in batch:
                    for found in names_in(topic, record):
                        self._link(found, record.timestamp_ms)
                        span = spans.setdefault(found.own, [record.offset, record.offset])
                        span[1] = record.offset
                read += len(batch)
                at = batch.next_offset
                if read >= RECORDS_AT_ONCE:
                    break
            for own, (first, last) in spans.items():
                self._place(own, source.number, first, last)
            mark = _mark(reader, partition, at) if at > start else b""
            file.call("UPDATE sources SET next = ?, mark = ? WHERE source = ?", (at, mark, source.number))
            file.commit()
            return read
        except BaseException:
            self._roll_back()
            raise

    def _place(self, own: bytes, source: int, first: int, last: int) -> None:
        added = self._file.run(
            "INSERT OR IGNORE INTO spans VALUES (?1, ?2, ?3, ?4, row_sum(?1, ?2, ?3, ?4))",
            [(own, source, first, last)],
        )
        if added:
            self._count_places([own])
        else:
            self._file.call(
                "UPDATE spans SET last = max(last, ?3), sum = row_sum(id, source, first, max(last, ?3)) "
                "WHERE id = ?1 AND source = ?2",
                (own, source, last),
            )

    def _count_places(self, ids: Iterable[bytes]) -> None:
        """Note in the names how many places each id has: a place that is lost is missed."""
        count = "(SELECT count(*) FROM spans WHERE spans.id = ?1)"
        self._file.run(
            f"UPDATE names SET spans = {count}, sum = row_sum(id, kind, number, {count}) WHERE id = ?1",
            [(one,) for one in ids],
        )

    def _roll_back(self) -> None:
        try:
            self._file.call("ROLLBACK", ())
        except sqlite3.Error:
            log.debug("nothing to roll back in the message index")

    def _source(self, folder: str, topic: str, partition: int) -> _Source | None:
        rows = self._file.rows(
            "SELECT source, next, mark FROM sources WHERE folder = ? AND topic = ? AND part = ?",
            *(folder, topic, partition),
        )
        return next((_Source(*row) for row in rows), None)

    def _has_spans_before(self, source: int, start: int) -> bool:
        query = "SELECT 1 FROM spans WHERE source = ? AND last < ? LIMIT 1"
        return any(True for _ in self._file.rows(query, source, start))

    def _forget(self, source: int, start: int) -> None:
        """Drop the places before offset `start`, and messages that have no place left."""
        gone = [
            row[0]
            for row in self._file.rows("SELECT id FROM spans WHERE source = ? AND last < ?", source, start)
        ]
        if not gone:
            return
        self._file.call("DELETE FROM spans WHERE source = ? AND last < ?", (source, start))
        self._count_places(gone)
        numbers = {
            row[0] for own in gone for row in self._file.rows("SELECT number FROM names WHERE id = ?", own)
        }
        for number in numbers:
            query = "SELECT 1 FROM names JOIN spans ON spans.id = names.id WHERE names.number = ? LIMIT 1"
            if not any(True for _ in self._file.rows(query, number)):
                self._file.call("DELETE FROM names WHERE number = ?", (number,))
                self._file.call("DELETE FROM messages WHERE number = ?", (number,))

    def _link(self, found: RecordNames, at_ms: int) -> None:
        """File all names of a record under one message, and make one of several that turn out to be the same."""
        joining = [name for name in found.names if name[0] in _JOINING]
        numbers = {number for name in joining if (number := self._number_of(*name)) is not None}
        if {self._numbers.get(_cached(*name)) for name in found.names} == numbers and len(numbers) == 1:
            return
        if not numbers:
            ((number,),) = self._file.rows("SELECT coalesce(max(number), 0) + 1 FROM messages")
            self._file.call(
                "INSERT INTO messages VALUES (?1, ?2, ?3, 0, row_sum(?1, ?2, ?3, 0))",
                (number, found.topic, at_ms),
            )
        else:
            number = min(numbers)
            for other in numbers - {number}:
                self._merge(number, other)
        for kind, identifier in found.names:
            self._name(number, kind, identifier)
        if found.topic is not None:
            self._file.call(
                "UPDATE messages SET topic = ?1, sum = row_sum(number, ?1, first_ms, names) "
                "WHERE number = ?2 AND topic IS NULL",
                (found.topic, number),
            )

    def _number_of(self, kind: NameKind, identifier: bytes) -> int | None:
        known = self._numbers.get(_cached(kind, identifier))
        if known is None:
            query = "SELECT number FROM names WHERE id = ? AND kind = ?"
            known = next((row[0] for row in self._file.rows(query, identifier, int(kind))), None)
        return known

    def _name(self, number: int, kind: NameKind, identifier: bytes) -> None:
        added = self._file.run(
            "INSERT OR IGNORE INTO names SELECT ?1, ?2, number, places, row_sum(?1, ?2, number, places) "
            "FROM messages, (SELECT count(*) AS places FROM spans WHERE id = ?1) "
            "WHERE number = ?3 AND names < ?4",
            [(identifier, int(kind), number, NAMES_OF_ONE_MAX)],
        )
        if added:
            self._file.call(
                "UPDATE messages SET names = names + 1, sum = row_sum(number, topic, first_ms, names + 1) "
                "WHERE number = ?",
                (number,),
            )
        self._numbers[_cached(kind, identifier)] = number

    def _merge(self, number: int, other: int) -> None:
        file = self._file
        file.call(
            "UPDATE OR IGNORE names SET number = ?1, sum = row_sum(id, kind, ?1, spans) WHERE number = ?2",
            (number, other),
        )
        file.call("DELETE FROM names WHERE number = ?", (other,))
        file.call(
            "UPDATE messages SET names = (SELECT count(*) FROM names WHERE number = ?), "
            "topic = coalesce(topic, (SELECT topic FROM messages WHERE number = ?)), "
            "first_ms = min(first_ms, (SELECT first_ms FROM messages WHERE number = ?)) WHERE number = ?",
            (number, other, other, number),
        )
        file.call(
            "UPDATE messages SET sum = row_sum(number, topic, first_ms, names) WHERE number = ?", (number,)
        )
        file.call("DELETE FROM messages WHERE number = ?", (other,))
        self._numbers.clear()

    # Reading

    def find(self, text: str) -> list[MessageIds]:
        """Return the messages that `text` names, at most `MATCHES_MAX`: by any id or at least eight of its first hex
        digits, else by their idempotency key.
        """
        try:
            found = self._find(text)
        except sqlite3.Error as error:
            self._make_again(error)
            found = self._find(text)
        if not found and self._verify():
            found = self._find(text)
        return found

    def _find(self, text: str) -> list[MessageIds]:
        numbers: list[int] = []
        lower = text.lower()
        if _HEX.fullmatch(lower):
            first = bytes.fromhex(lower.ljust(ID_DIGITS, "0"))
            last = bytes.fromhex(lower.ljust(ID_DIGITS, "f"))
            query = f"SELECT DISTINCT number, {_NAME_HOLDS} FROM names WHERE id BETWEEN ? AND ? AND kind != ? LIMIT ?"
            numbers = self._found(query, first, last, int(NameKind.KEY), MATCHES_MAX)
        if not numbers:
            query = f"SELECT DISTINCT number, {_NAME_HOLDS} FROM names WHERE id = ? AND kind = ? LIMIT ?"
            numbers = self._found(query, nonce_of_key(text), int(NameKind.KEY), MATCHES_MAX)
        return [self._ids(number) for number in numbers]

    def spans(self, ids: MessageIds) -> Iterator[RecordSpan]:
        """Yield the places of all records about a message."""
        for name in dict.fromkeys((*ids.message_ids, *ids.delivery_ids, *ids.dmq_ids, *ids.acks)):
            try:
                rows = self._places(bytes.fromhex(name))
            except sqlite3.Error as error:
                self._make_again(error)
                rows = self._places(bytes.fromhex(name))
            for folder, topic, part, first, last in rows:
                yield RecordSpan(name, self._folder_of(_text(folder)), _text(topic), part, first, last)

    def _places(self, identifier: bytes) -> list[tuple[Any, ...]]:
        query = f"SELECT folder, topic, part, first, last, {_SPAN_HOLDS} FROM {_PLACES} WHERE id = ?"
        rows = self._rows(query, identifier)
        counts = self._rows(f"SELECT spans, {_NAME_HOLDS} FROM names WHERE id = ?", identifier)
        if any(count != len(rows) for (count,) in counts):
            raise sqlite3.DatabaseError("a place is missing")
        return rows

    def _verify(self) -> bool:
        """Verify the whole file, unless that was done lately; make a damaged one anew and return True."""
        now = time.monotonic()
        if now - _VERIFIED.get(self._path, -VERIFY_EVERY_S) < VERIFY_EVERY_S:
            return False
        if len(_VERIFIED) >= FOLDERS_MAX:
            _VERIFIED.clear()
        _VERIFIED[self._path] = now
        try:
            ((answer,),) = self._file.rows("PRAGMA integrity_check(1)")
            faults = [] if _text(answer) == "ok" else [_text(answer)]
            rows = (("names", _NAME_HOLDS), (_PLACES, _SPAN_HOLDS), ("messages", _MESSAGE_HOLDS))
            for table, holds in rows:
                query = f"SELECT 1 FROM {table} WHERE NOT {holds} LIMIT 1"
                faults += [f"a row of {table.split()[0]} is damaged" for _ in self._file.rows(query)]
            if not faults:
                return False
            error = sqlite3.DatabaseError(faults[0])
        except sqlite3.Error as found:
            error = found if isinstance(found, sqlite3.DatabaseError) else sqlite3.DatabaseError(str(found))
        self._make_again(error)
        return True

    def _make_again(self, error: sqlite3.Error) -> None:
        self._again(error)
        self._catch_up()

    def _found(self, query: str, *values: object) -> list[int]:
        return [row[0] for row in self._rows(query, *values)]

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query without their last column, which says whether a row is whole."""
        rows = list(self._file.rows(query, *values))
        if not all(row[-1] for row in rows):
            raise sqlite3.DatabaseError("a row is damaged")
        return [row[:-1] for row in rows]

    def _ids(self, number: int) -> MessageIds:
        of_kind: dict[int, list[str]] = {}
        query = f"SELECT id, kind, {_NAME_HOLDS} FROM names WHERE number = ?"
        for identifier, kind in self._rows(query, number):
            of_kind.setdefault(kind, []).append(identifier.hex())
        query = f"SELECT topic, first_ms, names, {_MESSAGE_HOLDS} FROM messages WHERE number = ?"
        facts = self._rows(query, number)
        if not facts or facts[0][2] != sum(map(len, of_kind.values())):
            raise sqlite3.DatabaseError("a name is missing")
        topic, first_ms, _ = facts[0]
        return MessageIds(
            tuple(of_kind.get(NameKind.MESSAGE, ())),
            tuple(of_kind.get(NameKind.DELIVERY, ())),
            tuple(of_kind.get(NameKind.DMQ, ())),
            tuple(of_kind.get(NameKind.ACK, ())),
            None if topic is None else _text(topic),
            first_ms,
        )


_VERIFIED: dict[Path, float] = {}
"""Monotonic seconds of the last verification, by file."""
_NAME_HOLDS = "names.sum = row_sum(names.id, kind, number, spans)"
_PLACES = "spans LEFT JOIN sources ON sources.source = spans.source"
_SPAN_HOLDS = (
    "(sources.source IS NOT NULL AND sources.sum = row_sum(folder, topic, part) "
    "AND spans.sum = row_sum(spans.id, spans.source, spans.first, spans.last))"
)
_MESSAGE_HOLDS = "sum = row_sum(number, topic, first_ms, names)"

_JOINING = (NameKind.MESSAGE, NameKind.DELIVERY, NameKind.DMQ)
"""Kinds of ids that belong to one message alone."""


def _summing(path: str) -> sqlite3.Connection:
    """Connect with `row_sum`, the checksum of the values of a row."""
    connection = connect(path)
    connection.create_function(
        "row_sum", -1, lambda *values: crc32(repr(values).encode()), deterministic=True
    )
    return connection


def topic_folders(data: Path, outbox: Path | None = None) -> list[Path]:
    """Return the folders whose topics tell of the messages of a data folder: itself, those of its nodes, and an outbox."""
    inner = sorted(path.parent for path in data.glob(f"*/{TOPICS_FOLDER}") if path.is_dir())
    found = [data, *inner[:FOLDERS_MAX]]
    if outbox is not None and outbox.absolute() not in {folder.absolute() for folder in found}:
        found.append(outbox)
    return found


def has_topics(data: Path, outbox: Path | None = None) -> bool:
    """Return whether one of the folders holds an index, or a topic to make one from."""
    topics = (TOPICS_FOLDER + "/" + topic for topic in INDEXED_TOPICS)
    places = [folder / topic / TOPIC_FILE for topic in topics for folder in topic_folders(data, outbox)]
    return any(path.exists() for path in (data / INDEX_FILE, *places))


def _cached(kind: NameKind, identifier: bytes) -> bytes:
    return bytes((kind,)) + identifier


def _mark(reader: FileTopicReader, partition: int, after: int) -> bytes:
    """Return a hash of the record before offset `after`, by which a topic that was begun anew is noticed."""
    for batch in reader.batches(partition, after - 1, after):
        for record in batch:
            content = (record.key or b"", record.value or b"", str(record.timestamp_ms).encode())
            return sha256(b"\0".join(content)).digest()[:_MARK_BYTES]
    return b""


def _failed(path: Path, error: Exception) -> StorageError:
    return StorageError(
        f"the {WHAT} {path} cannot be used: {error}", advice="check the folder and the space left on the disk"
    )


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode(errors="replace")
