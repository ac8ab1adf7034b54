"""What can be wrong with a topic: a record that does not fit, damage on the disk, an offset that is gone."""

from __future__ import annotations

from pathlib import Path

from stagepost.errors import ErrorCode, StagepostError, StorageError


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
