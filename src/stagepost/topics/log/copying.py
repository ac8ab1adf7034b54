"""A copy of a topic up to a mark, taken beside its writer and its readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stagepost.errors import StorageError
from stagepost.ground.storage.backup import BackupMark, BackupWriter
from stagepost.topics.log import segment
from stagepost.topics.log.end_mark import NAME as MARK_NAME
from stagepost.topics.log.end_mark import EndMark, write_mark
from stagepost.topics.log.file_topic import (
    TOPIC_FILE,
    TOPICS_FOLDER,
    FileTopic,
    open_topic,
    partition_folder,
    topic_names,
)
from stagepost.topics.log.partition_reader import PartitionReader
from stagepost.topics.log.positions import GROUPS_FOLDER, group_names, read_positions
from stagepost.topics.topic import DamagedLog, OffsetGone

TOPIC_PATHS = (
    rf"{TOPICS_FOLDER}/[A-Za-z0-9][A-Za-z0-9._-]*/("
    rf"{TOPIC_FILE}|{GROUPS_FOLDER}/[A-Za-z0-9][A-Za-z0-9._-]*\.json|[0-9]{{3}}/({MARK_NAME}|[0-9]{{20}}\{segment.SUFFIX}))"
)
"""Pattern of the paths of all files that a copy has; indexes are made anew."""


def copy_topics(data: Path, backup: BackupWriter) -> list[BackupMark]:
    """Copy every topic of a data folder. Positions of readers come first: none is beyond the records that follow."""
    topics = [open_topic(data, name) for name in topic_names(data)]
    for topic in topics:
        inner = f"{TOPICS_FOLDER}/{topic.name}"
        backup.add_file(topic.folder / TOPIC_FILE, f"{inner}/{TOPIC_FILE}")
        for group in group_names(topic.folder):
            read_positions(topic.folder, group)  # a damaged file is refused
            path = f"{GROUPS_FOLDER}/{group}.json"
            backup.add_file(topic.folder / path, f"{inner}/{path}")
    return [mark for topic in topics for mark in _copy_partitions(topic, backup)]


def _copy_partitions(topic: FileTopic, backup: BackupWriter) -> Iterator[BackupMark]:
    for partition in range(topic.partitions):
        folder = partition_folder(topic.folder, partition)
        inner = f"{TOPICS_FOLDER}/{topic.name}/{folder.name}"
        mark = PartitionReader(folder, topic.name, partition).mark
        start_offset = _copy_partition(topic, partition, mark, inner, backup) if mark.position else 0
        yield BackupMark(topic.name, partition, start_offset, mark.end_offset)


def _copy_partition(topic: FileTopic, partition: int, mark: EndMark, inner: str, backup: BackupWriter) -> int:
    """Copy the segments from the newest to the oldest, so that retention can only take what is still to come. Return the
    first offset that the copy holds."""
    folder = partition_folder(topic.folder, partition)
    bases = [base for base in segment.base_offsets(folder) if base <= mark.segment]
    held = [base for base in bases if base > mark.start_offset or base == mark.segment]
    first = max((base for base in bases if base <= mark.start_offset), default=mark.segment)
    lowest = mark.segment
    for base in sorted({first, *held}, reverse=True):
        name = segment.segment_path(folder, base).name
        try:
            if base == mark.segment:
                backup.add_part(folder / name, f"{inner}/{name}", mark.position)
            else:
                backup.add_file(folder / name, f"{inner}/{name}")
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError) and base != mark.segment:
                break
            raise
        lowest = base
    start_offset = max(mark.start_offset, lowest)
    if start_offset > PartitionReader(folder, topic.name, partition).mark.start_offset:
        path = segment.segment_path(folder, mark.start_offset)
        raise DamagedLog(path, 0, "the file is gone, and retention has not removed it")
    backup.add_bytes([write_mark(mark._replace(start_offset=start_offset))], f"{inner}/{MARK_NAME}")
    _require_whole(backup.folder / inner, topic.name, partition, start_offset)
    return start_offset


def _require_whole(copy: Path, topic: str, partition: int, start_offset: int) -> None:
    """Read the copy to its end: the digest of every block must fit, and each block follow the one before it."""
    try:
        for _ in PartitionReader(copy, topic, partition).batches(start_offset):
            pass
    except OffsetGone as error:
        raise StorageError(f"the copy of {topic} is not whole: {error.text}") from error
