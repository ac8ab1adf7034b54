"""What a topic is, whatever stands behind it: records in partitions by key, appended durably, read by offset, again and again.

What can be wrong with a topic: a record that does not fit, damage on the disk, an offset that is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

import msgspec

from stagepost.errors import ConfigError, ErrorCode, StagepostError, StorageError
from stagepost.topics.batch import Batch

NAME_CHARACTERS_MAX = 249
PARTITIONS_MAX = 64
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*")


class Record(msgspec.Struct, frozen=True):
    """`timestamp_ms` is when it arrived; without one, the writer's clock tells."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str] = {}
    timestamp_ms: int | None = None


class Place(NamedTuple):
    partition: int
    offset: int


class Retention(msgspec.Struct, frozen=True):
    """Whole segments are removed, the oldest first: above so many bytes per partition, or older than so much. None: never."""

    bytes_max: int | None = None
    age_ms_max: int | None = None


Appended = Callable[[list[Place] | StorageError], None]


class TopicWriter(Protocol):
    """An append is answered when it is durable. One that fails has not happened, in each partition for itself."""

    @property
    def partitions(self) -> int: ...

    async def append(self, records: Sequence[Record]) -> list[Place]:
        """Where each record stands; `StorageError` if the disk refuses, `RecordRefused` if a record is too large."""
        ...

    def append_soon(self, records: Sequence[Record], done: Appended) -> None:
        """`append` for those who would rather be called; `done` may be called in a thread of the writer's own."""
        ...

    async def close(self) -> None: ...


class RetryingWriter(TopicWriter, Protocol):
    """Writer that keeps the records that the disk refuses, and tries them again in the order of the appends.

    An append fails only when the writer closes while the disk still refuses. The memory that waiting appends take has no
    bound of the writer's own: the caller bounds them.
    """

    @property
    def fault(self) -> StorageError | None:
        """Return why the disk refuses now; None while the disk takes what is appended."""
        ...


class TopicReader(Protocol):
    """Any number of them, while the topic grows. Nothing is seen that is not durable."""

    @property
    def partitions(self) -> int: ...

    def start_offset(self, partition: int) -> int:
        """Of the oldest record that is kept."""
        ...

    def end_offset(self, partition: int) -> int:
        """One more than that of the newest record."""
        ...

    def batches(self, partition: int, start: int, end: int | None = None) -> Iterator[Batch]:
        """The records from `start` up to, not including, `end`; up to the present end without one. Always the same ones.

        `OffsetGone` if retention has taken the first; `StorageError` if the log does not reach as far as was asked:
        whoever takes note of a range must not be given less than it.
        """
        ...


class Positions(Protocol):
    """How far a group of readers has come: the offset of the next record to be handled, by partition."""

    @property
    def committed(self) -> Mapping[int, int]: ...

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Returns when it is durable. Called after the records before these offsets have been handled."""
        ...

    def close(self) -> None: ...


class Topic(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> int: ...

    def writer(self) -> TopicWriter: ...

    def reader(self) -> TopicReader: ...

    def positions(self, group: str) -> Positions: ...


def partition_of(key: bytes, partitions: int) -> int:
    """The same on every machine and in every release: CRC-32 of the key, as zlib has it, modulo the number of partitions."""
    return crc32(key) % partitions


def require_name(name: str, what: str) -> str:
    """Names become names of folders."""
    if len(name) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name[:NAME_CHARACTERS_MAX]!r} cannot be the name of a {what}",
            advice=f"use 1 to {NAME_CHARACTERS_MAX} letters, digits, dots, dashes and underscores, a letter or digit first",
            found=name,
            limit=NAME_CHARACTERS_MAX,
        )
    return name


def require_partitions(count: int) -> int:
    if not 1 <= count <= PARTITIONS_MAX:
        raise ConfigError(
            f"a topic cannot have {count} partitions",
            advice=f"choose 1 to {PARTITIONS_MAX}",
            found=count,
            limit=PARTITIONS_MAX,
        )
    return count


class RecordRefused(StagepostError):
    """A record, or an append, that is larger than the log takes; nothing of the append has happened."""

    default_code = ErrorCode.MSG_BODY_SIZE


class DamagedLog(StorageError):
    """Bytes on the disk are not those that were written. `position` is a byte of `path`; `record_offset` where it is known."""

    def __init__(self, path: Path, position: int, what: str, record_offset: int | None = None) -> None:
        where = "" if record_offset is None else f", in the record with offset {record_offset}"
        super().__init__(
            f"{path} is damaged at byte {position}{where}: {what}",
            advice="restore the file from a copy; what stands before that byte can still be read",
            offset=position,
        )
        self.path = path
        self.position = position
        self.record_offset = record_offset


def beyond_the_end(topic: str, partition: int, wanted: int, end_offset: int) -> StorageError:
    return StorageError(
        f"offset {wanted} of partition {partition} of {topic} was asked for, but the log ends at {end_offset}",
        advice="was the topic begun anew? set the reader's position back; after a power cut, start the writer first",
        offset=wanted,
    )


class OffsetGone(StorageError):
    """The record was removed by retention; `first_kept` is the oldest that is still there."""

    def __init__(self, topic: str, partition: int, wanted: int, first_kept: int) -> None:
        super().__init__(
            f"offset {wanted} of partition {partition} of {topic} is gone: retention has kept {first_kept} and what follows",
            advice=f"go on at offset {first_kept}, or keep more (retention by bytes and age)",
            offset=wanted,
        )
        self.first_kept = first_kept
