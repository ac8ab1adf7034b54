"""Segment files: a header, then blocks until the file ends; named after the offset of their first record."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from struct import Struct, unpack_from
from typing import NamedTuple

from stagepost.topics.batch import Batch, Columns
from stagepost.topics.log import block
from stagepost.topics.topic import DamagedLog

SUFFIX = ".segment"
INDEX_SUFFIX = ".index"
SEGMENT_BYTES_MAX = 67_108_864
READ_BYTES = 1_048_576
"""Bytes read at a time; more only where a single block is larger."""
HEADER_BYTES = 64
VERSION = 1
MAGIC = b"STPSEGMT"
INDEX_EVERY_BYTES = 65_536
_FIELDS = Struct("<8sIIQq16s")
_ENTRY = Struct("<QQ")


class LogSegmentHeader(NamedTuple):
    magic: bytes
    version: int
    partition: int
    base_offset: int
    appended_before_ms: int
    """Unix milliseconds of the last append to the segment before this one: retention goes by it."""
    previous: bytes
    """Digest of the last block of the segment before this one."""


class WholeBlock(NamedTuple):
    """Block that agrees with its digest."""

    position: int
    header: block.BlockHeader
    columns: Columns

    @property
    def end(self) -> int:
        return self.position + block.HEADER_BYTES + self.header.body_bytes

    def batch(self, partition: int) -> Batch:
        return Batch(partition, self.header.base_offset, self.columns, 0, self.header.records)


def segment_path(folder: Path, base_offset: int) -> Path:
    return folder / f"{base_offset:020d}{SUFFIX}"


def index_path(folder: Path, base_offset: int) -> Path:
    return folder / f"{base_offset:020d}{INDEX_SUFFIX}"


def base_offsets(folder: Path) -> list[int]:
    """Return the base offsets of all segments of a partition, in order."""
    names = (name for name in os.listdir(folder) if name.endswith(SUFFIX))
    return sorted(
        int(stem) for name in names if (stem := name.removesuffix(SUFFIX)).isdigit() and len(stem) == 20
    )


def bytes_held(folder: Path) -> int:
    """Return the size of all segments of a partition; retention may remove some of them meanwhile."""
    held = 0
    for base_offset in base_offsets(folder):
        with suppress(FileNotFoundError):
            held += segment_path(folder, base_offset).stat().st_size
    return held


def write_header(partition: int, base_offset: int, appended_before_ms: int, previous: bytes) -> bytes:
    fields = _FIELDS.pack(MAGIC, VERSION, partition, base_offset, appended_before_ms, previous)
    return fields + sha256(fields).digest()[: block.DIGEST_BYTES]


def read_header(path: Path, content: bytes, partition: int, base_offset: int) -> LogSegmentHeader:
    """Return the header; raise `DamagedLog` if it is not the header of this very segment."""
    if len(content) < HEADER_BYTES:
        raise DamagedLog(path, len(content), f"the file ends within its header of {HEADER_BYTES} bytes")
    fields = content[: _FIELDS.size]
    header = LogSegmentHeader._make(_FIELDS.unpack(fields))
    if sha256(fields).digest()[: block.DIGEST_BYTES] != content[_FIELDS.size : HEADER_BYTES]:
        raise DamagedLog(path, 0, "the header of the file does not agree with its digest")
    if (header.magic, header.version) != (MAGIC, VERSION):
        raise DamagedLog(path, 0, f"this is not a segment of version {VERSION}")
    if (header.partition, header.base_offset) != (partition, base_offset):
        raise DamagedLog(
            path,
            0,
            f"the file says that it begins at offset {header.base_offset} of partition {header.partition}",
        )
    return header


class SegmentScan:
    """Scan over the whole blocks of one segment, in order. `limit` is the byte at which to stop: later bytes
    are not looked at."""

    def __init__(self, path: Path, partition: int, base_offset: int, limit: int | None = None) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(self._file).st_size
            self.limit = size if limit is None else limit
            self.header = read_header(path, os.pread(self._file, HEADER_BYTES, 0), partition, base_offset)
            if size < self.limit:
                raise DamagedLog(path, size, f"the file ends here, but {self.limit} bytes were acknowledged")
        except BaseException:
            os.close(self._file)
            raise
        self.position = HEADER_BYTES
        self.offset = base_offset
        self.digest = self.header.previous

    def close(self) -> None:
        os.close(self._file)

    def seek(self, folder: Path, offset: int) -> None:
        """Move near the block that holds `offset`, if the index knows a place and a plausible block stands
        there."""
        try:
            entries = index_path(folder, self.header.base_offset).read_bytes()
        except OSError:
            return
        known = [
            _ENTRY.unpack_from(entries, at) for at in range(0, len(entries) - _ENTRY.size + 1, _ENTRY.size)
        ]
        place = bisect_right(known, offset, key=lambda entry: entry[0]) - 1
        if place < 0 or not HEADER_BYTES < known[place][1] < self.limit:
            return
        base_offset, position = known[place]
        content = os.pread(self._file, block.HEADER_BYTES, position)
        if len(content) == block.HEADER_BYTES:
            header = block.read_header(content)
            if block.is_plausible(header, base_offset):
                self.position, self.offset, self.digest = position, base_offset, header.previous

    def blocks(self) -> Iterator[WholeBlock]:
        """Yield the blocks until `limit`; raise `DamagedLog` at the first that is not whole. Then `position`
        is where the whole ones end."""
        while self.position < self.limit:
            content = os.pread(self._file, min(READ_BYTES, self.limit - self.position), self.position)
            used = 0
            while True:
                needed = self._needed(content, used)
                if used + needed > len(content):
                    break
                yield self._whole(content, used, needed)
                used += needed
                if used == len(content):
                    break
            if not used:
                # A block larger than one read, or the end of the file within one.
                content = os.pread(self._file, needed, self.position)
                if len(content) < needed or needed > self.limit - self.position:
                    raise DamagedLog(self.path, self.position, "the file ends within a block")
                yield self._whole(content, 0, needed)

    def _needed(self, content: bytes, at: int) -> int:
        """Return the size of the block that begins here, or of its header if that is incomplete."""
        if len(content) - at < block.HEADER_BYTES:
            return block.HEADER_BYTES
        header = block.read_header(content, at)
        if not block.is_plausible(header, self.offset):
            raise DamagedLog(self.path, self.position, f"no block with offset {self.offset} begins here")
        return block.HEADER_BYTES + header.body_bytes

    def _whole(self, content: bytes, at: int, size: int) -> WholeBlock:
        header = block.read_header(content, at)
        body = content[at + block.HEADER_BYTES : at + size]
        fields = content[at : at + block.FIELDS_BYTES]
        try:
            if block.digest_of(fields, body) != header.digest:
                raise ValueError("a block does not match its digest")
            if header.previous != self.digest:
                raise ValueError("a block does not follow the block before it")
            columns = block.read_columns(body, header.records)
        except ValueError as fault:
            raise self._located(header, body, str(fault)) from None
        whole = WholeBlock(self.position, header, columns)
        self.position, self.offset, self.digest = whole.end, self.offset + header.records, header.digest
        return whole

    def _located(self, header: block.BlockHeader, body: bytes, fault: str) -> DamagedLog:
        """Return the damage with the offset of the record, if the checksums of the records show it."""
        try:
            columns = block.read_columns(body, header.records)
            batch = Batch(0, header.base_offset, columns, 0, header.records)
            rows = map(block.Row, batch.keys, batch.values, batch.header_texts, batch.timestamps)
            checks = unpack_from(f"<{header.records}I", columns.checks)
            for at, row in enumerate(rows):
                if block.check_of(header.base_offset + at, row) != checks[at]:
                    return DamagedLog(self.path, self.position, fault, header.base_offset + at)
        except (ValueError, OverflowError):
            pass
        return DamagedLog(self.path, self.position, fault)


def index_entry(base_offset: int, position: int) -> bytes:
    return _ENTRY.pack(base_offset, position)
