"""The interface of every topic: records in partitions by key, appended durably, read by offset, as often as
needed; and its errors.

The errors are a record that does not fit, damage on the disk, and an offset that retention has removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

import msgspec

from stagepost.errors import ConfigError, ErrorCode, StagepostError, StorageError
from stagepost.ground.identifiers import (
    DELIVERY_EVENTS_TOPIC,
    DMQ_MESSAGES_TOPIC,
    MESSAGES_TOPIC,
    PROOFS_TOPIC,
    STAKE_TOPIC,
    STATUSES_TOPIC,
)
from stagepost.topics.batch import Batch

MESSAGES = MESSAGES_TOPIC
STATUSES = STATUSES_TOPIC
DMQ_MESSAGES = DMQ_MESSAGES_TOPIC
STAKE = STAKE_TOPIC
DELIVERY_EVENTS = DELIVERY_EVENTS_TOPIC
PROOFS = PROOFS_TOPIC
KNOWN = (MESSAGES, STATUSES, DMQ_MESSAGES, STAKE, DELIVERY_EVENTS, PROOFS)
"""Topics that the pipeline reads."""

NAME_CHARACTERS_MAX = 249
PARTITIONS_MAX = 64
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*")


class Record(msgspec.Struct, frozen=True):
    """Record to append. `timestamp_ms` is the time of its arrival; without one, the writer's clock gives it."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str] = {}
    timestamp_ms: int | None = None


class Place(NamedTuple):
    partition: int
    offset: int


class Retention(msgspec.Struct, frozen=True):
    """Limits beyond which whole segments are removed, the oldest first: bytes per partition, and age. None:
    never."""

    bytes_max: int | None = None
    age_ms_max: int | None = None


Appended = Callable[[list[Place] | StorageError], None]


class TopicWriter(Protocol):
    """Writer of a topic. It answers an append when it is durable. A failed append has not happened, in each
    partition by itself."""

    @property
    def partitions(self) -> int: ...

    async def append(self, records: Sequence[Record]) -> list[Place]:
        """Return the place of each record; raise `StorageError` if the disk refuses, `RecordRefused` if a
        record is too large."""
        ...

    def append_soon(self, records: Sequence[Record], done: Appended) -> None:
        """Do what `append` does, but call `done` with the result, perhaps in a thread of the writer's own."""
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
    """Reader of a topic while it grows; there may be any number. It sees nothing that is not durable."""

    @property
    def partitions(self) -> int: ...

    def start_offset(self, partition: int) -> int:
        """Return the offset of the oldest kept record."""
        ...

    def end_offset(self, partition: int) -> int:
        """Return the offset after that of the newest record."""
        ...

    def batches(self, partition: int, start: int, end: int | None = None) -> Iterator[Batch]:
        """Yield the records from `start` up to, not including, `end`, or up to the present end; always the
        same ones.

        Raise `OffsetGone` if retention has removed the first; raise `StorageError` if the log does not reach
        as far as `end`: a caller that records a range must not get less than it.
        """
        ...


class Positions(Protocol):
    """Positions of a group of readers: the offset of the next record to handle, by partition."""

    @property
    def committed(self) -> Mapping[int, int]: ...

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit the offsets and return when they are durable. Call this after the records before them were
        handled."""
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
    """Return the partition of a key, the same on every machine and in every release: zlib's CRC-32 of the key
    modulo the number of partitions."""
    return crc32(key) % partitions


def require_name(name: str, what: str) -> str:
    """Return the name; raise `ConfigError` if it cannot be the name of a folder."""
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
    """Refusal of a record, or an append, that is too large for the log; nothing of the append has happened."""

    default_code = ErrorCode.MSG_BODY_SIZE


class DamagedLog(StorageError):
    """Bytes on the disk that differ from those written. `position` is a byte of `path`; `record_offset` is
    set where it is known."""

    def __init__(self, path: Path, position: int, what: str, record_offset: int | None = None) -> None:
        where = "" if record_offset is None else f", in the record with offset {record_offset}"
        super().__init__(
            f"{path} is damaged at byte {position}{where}: {what}",
            advice="restore the file from a copy; records before that byte can still be read",
            offset=position,
        )
        self.path = path
        self.position = position
        self.record_offset = record_offset


def beyond_the_end(topic: str, partition: int, wanted: int, end_offset: int) -> StorageError:
    return StorageError(
        f"offset {wanted} of partition {partition} of {topic} was asked for, but the log ends at {end_offset}",
        advice="if the topic was created again, set the reader's position back; after a power cut, start the writer first",
        offset=wanted,
    )


class OffsetGone(StorageError):
    """Request for a record that retention has removed; `first_kept` is the oldest record that is still there."""

    def __init__(self, topic: str, partition: int, wanted: int, first_kept: int) -> None:
        super().__init__(
            f"offset {wanted} of partition {partition} of {topic} is gone: retention has kept {first_kept} and what follows",
            advice=f"continue at offset {first_kept}, or raise the topic's retention",
            offset=wanted,
        )
        self.first_kept = first_kept
