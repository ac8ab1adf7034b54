"""Records as readers get them: a block of the log, column by column, made into Python values only on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from struct import unpack_from
from typing import NamedTuple

import msgspec

NO_HEADERS: Mapping[str, str] = {}
_read_headers = msgspec.json.Decoder(dict[str, str]).decode


class Read(NamedTuple):
    """Record of a batch."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]
    timestamp_ms: int


class Strings(NamedTuple):
    """Column of byte strings: the buffers of an Arrow binary array, as they stand in the file.

    `places` are count + 1 int32, the ends of each string in `content`; `validity` has a bit per record, least
    significant first, 0 for null.
    """

    places: memoryview
    validity: memoryview
    content: memoryview


class Columns(NamedTuple):
    """Columns of a whole block. All numbers are little-endian."""

    records: int
    timestamps: memoryview
    checks: memoryview
    keys: Strings
    values: Strings
    headers: Strings


class Batch:
    """Records `first` to `last` (not included) of a block."""

    def __init__(self, partition: int, block_offset: int, columns: Columns, first: int, last: int) -> None:
        self.partition = partition
        self.base_offset = block_offset + first
        self.columns = columns
        self.first = first
        self.last = last

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self)

    @cached_property
    def timestamps(self) -> tuple[int, ...]:
        return unpack_from(f"<{len(self)}q", self.columns.timestamps, 8 * self.first)

    @cached_property
    def keys(self) -> list[bytes | None]:
        return self._strings(self.columns.keys)

    @cached_property
    def values(self) -> list[bytes | None]:
        return self._strings(self.columns.values)

    @cached_property
    def headers(self) -> list[Mapping[str, str]]:
        # Records that were appended together mostly have the same headers.
        known: dict[bytes, Mapping[str, str]] = {b"": NO_HEADERS}
        for text in set(self.header_texts) - known.keys():
            known[text] = _read_headers(text)
        return [known[text] for text in self.header_texts]

    @cached_property
    def header_texts(self) -> list[bytes]:
        """JSON objects as they stand in the log; empty for records without headers."""
        return [text or b"" for text in self._strings(self.columns.headers)]

    def __iter__(self) -> Iterator[Read]:
        offsets = range(self.base_offset, self.next_offset)
        return map(Read, offsets, self.keys, self.values, self.headers, self.timestamps)

    def within(self, start: int, end: int) -> Batch:
        """Return the part whose offsets are at least `start` and less than `end`."""
        block_offset = self.base_offset - self.first
        first, last = max(self.first, start - block_offset), min(self.last, end - block_offset)
        return Batch(self.partition, block_offset, self.columns, first, max(first, last))

    def _strings(self, column: Strings) -> list[bytes | None]:
        count, first = len(self), self.first
        places = unpack_from(f"<{count + 1}i", column.places, 4 * first)
        # From one bytes object: cutting a memoryview into pieces takes three times as long.
        begin = places[0]
        content = bytes(column.content[begin : places[-1]])
        found: list[bytes | None] = [content[a - begin : b - begin] for a, b in pairwise(places)]
        bits = int.from_bytes(column.validity, "little") >> first
        if ~bits & ((1 << count) - 1):
            for number in range(count):
                if not bits >> number & 1:
                    found[number] = None
        return found
