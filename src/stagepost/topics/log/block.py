"""A block: the records of one group commit, column by column, with a checksum for each record and a digest
over everything.

The digest also covers the digest of the block before it, so that the last digest of a segment stands for the
whole segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate
from struct import Struct, pack, unpack_from
from typing import NamedTuple
from zlib import crc32

import msgspec

from stagepost.errors import StorageError
from stagepost.topics.batch import Columns, Strings
from stagepost.topics.topic import Record, RecordRefused

KEY_BYTES_MAX = 1_024
VALUE_BYTES_MAX = 65_536
HEADERS_BYTES_MAX = 4_096
"""Bytes of all headers of a record, written as JSON."""
RECORDS_MAX = 16_384
CONTENT_BYTES_MAX = 4_194_304
"""Bytes of keys, values and headers of one block together: the memory that a reader needs."""
TIMESTAMP_MS_MAX = 2**63 - 1

MAGIC = b"STPB"
DIGEST_BYTES = 16
HEADER_BYTES = 64
NO_DIGEST = bytes(DIGEST_BYTES)
_FIELDS = Struct("<4sIQIIq16s")
_HEADER = Struct(f"{_FIELDS.format}16s")
_CHECKED = Struct("<Qqiii")
_COLUMN_BYTES_PER_RECORD = 8 + 4 + 3 * 4 + 3 / 8
BODY_BYTES_MAX = CONTENT_BYTES_MAX + int(RECORDS_MAX * _COLUMN_BYTES_PER_RECORD) + 128

_write_headers = msgspec.json.Encoder().encode


class Row(NamedTuple):
    """Record that fits into a block, ready to be written."""

    key: bytes | None
    value: bytes | None
    headers: bytes
    timestamp_ms: int

    @property
    def content_bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"") + len(self.headers)


class BlockHeader(NamedTuple):
    """Header in front of each block. `digest` covers all header fields before it, and the body."""

    magic: bytes
    records: int
    base_offset: int
    body_bytes: int
    reserved: int
    appended_ms: int
    previous: bytes
    digest: bytes


def row_of(record: Record, now_ms: int) -> Row:
    """Return the record as a row; raise `RecordRefused` if it does not fit."""
    key, value = record.key, record.value
    headers = _write_headers(record.headers) if record.headers else b""
    timestamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
    if key is not None and len(key) > KEY_BYTES_MAX:
        raise _too_large("key", len(key), KEY_BYTES_MAX)
    if value is not None and len(value) > VALUE_BYTES_MAX:
        raise _too_large("value", len(value), VALUE_BYTES_MAX)
    if len(headers) > HEADERS_BYTES_MAX:
        raise _too_large("headers", len(headers), HEADERS_BYTES_MAX)
    if not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        raise RecordRefused(
            f"a record's time is 0 to {TIMESTAMP_MS_MAX} milliseconds, this one's is {timestamp_ms}",
            advice="give Unix milliseconds, or None for now",
            found=timestamp_ms,
        )
    return Row(key, value, headers, timestamp_ms)


def _too_large(what: str, size: int, limit: int) -> RecordRefused:
    return RecordRefused(
        f"the {what} of a record may have {limit} bytes, this one has {size}",
        advice="shorten it, or store the content elsewhere and its address here",
        limit=limit,
        found=size,
    )


def check_of(offset: int, row: Row) -> int:
    """Return the checksum of one record, which locates a fault in a block."""
    key, value, headers, timestamp_ms = row
    sizes = (-1 if key is None else len(key), -1 if value is None else len(value), len(headers))
    return crc32(
        headers, crc32(value or b"", crc32(key or b"", crc32(_CHECKED.pack(offset, timestamp_ms, *sizes))))
    )


def write_block(rows: Sequence[Row], base_offset: int, appended_ms: int, previous: bytes) -> bytes:
    """Return header and body; the digest of the block is the end of the header."""
    count = len(rows)
    if not 0 < count <= RECORDS_MAX:
        raise StorageError(
            f"a block has 1 to {RECORDS_MAX} records, not {count}", limit=RECORDS_MAX, found=count
        )
    keys, values, headers, times = zip(*rows, strict=True)
    columns = (
        pack(f"<{count}q", *times),
        _padded(pack(f"<{count}I", *(check_of(base_offset + at, row) for at, row in enumerate(rows)))),
        *_strings(keys),
        *_strings(values),
        *_strings(headers),
    )
    body = b"".join(columns)
    if len(body) > BODY_BYTES_MAX:
        raise StorageError(
            f"the body of a block has {len(body)} bytes, at most {BODY_BYTES_MAX} fit",
            limit=BODY_BYTES_MAX,
            found=len(body),
        )
    fields = _FIELDS.pack(MAGIC, count, base_offset, len(body), 0, appended_ms, previous)
    return b"".join((fields, digest_of(fields, body), body))


def _strings(column: Sequence[bytes | None]) -> tuple[bytes, bytes, bytes]:
    count = len(column)
    present = (1 << count) - 1
    if None in column:
        present = sum(1 << at for at, one in enumerate(column) if one is not None)
    places = pack(f"<{count + 1}i", *accumulate((len(one or b"") for one in column), initial=0))
    validity = present.to_bytes((count + 7) // 8, "little")
    return _padded(places), _padded(validity), _padded(b"".join(one or b"" for one in column))


def _padded(content: bytes) -> bytes:
    """Pad to a multiple of eight bytes, so that every column can be used in place."""
    return content + bytes(-len(content) % 8)


def read_header(content: bytes | memoryview, at: int = 0) -> BlockHeader:
    """Return the 64 bytes as a header. `is_plausible` and the digest tell whether they are one."""
    return BlockHeader._make(_HEADER.unpack_from(content, at))


def is_plausible(header: BlockHeader, offset: int) -> bool:
    """Return whether a block with this header could stand here. Check this before reading its body."""
    return (
        header.magic == MAGIC
        and header.base_offset == offset
        and 0 < header.records <= RECORDS_MAX
        and 0 < header.body_bytes <= BODY_BYTES_MAX
    )


def digest_of(fields: bytes | memoryview, body: bytes | memoryview) -> bytes:
    """Return the digest; `fields` are the header without its digest."""
    digest = sha256(fields)
    digest.update(body)
    return digest.digest()[:DIGEST_BYTES]


FIELDS_BYTES = _FIELDS.size


def read_columns(body: bytes | memoryview, count: int) -> Columns:
    """Return the columns; raise `ValueError` if they do not fill the body exactly."""
    rest = memoryview(body)

    def take(size: int) -> memoryview:
        nonlocal rest
        padded = size + -size % 8
        if size < 0 or padded > len(rest):
            raise ValueError("a column reaches beyond the end of its block")
        taken, rest = rest[:size], rest[padded:]
        return taken

    def take_strings() -> Strings:
        places = take(4 * (count + 1))
        validity = take((count + 7) // 8)
        return Strings(places, validity, take(unpack_from("<i", places, 4 * count)[0]))

    columns = Columns(count, take(8 * count), take(4 * count), take_strings(), take_strings(), take_strings())
    if rest:
        raise ValueError("there are bytes after the last column of a block")
    return columns
