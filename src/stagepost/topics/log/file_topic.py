"""A topic in a folder: `topic.json`, a folder of segments for each partition, and the positions of its readers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.data_folder import make_private
from stagepost.ground.files.small_files import Files, make_folder, replace_durably
from stagepost.topics.batch import Batch
from stagepost.topics.log import segment
from stagepost.topics.log.appends import AwaitedAppends, PendingAppend, Router
from stagepost.topics.log.block import Row
from stagepost.topics.log.group_commit import WAITING_BYTES_MAX, Clock, CommitCounters, GroupCommit
from stagepost.topics.log.partition_log import PartitionLog
from stagepost.topics.log.partition_reader import PartitionReader
from stagepost.topics.log.positions import FilePositions, group_names, read_positions
from stagepost.topics.topic import Appended, Place, Record, Retention, require_name, require_partitions

TOPICS_FOLDER = "topics"
TOPIC_FILE = "topic.json"
VERSION = 1
PARTITIONS = 1
"""Partitions by default: one sync per group, and one order for everything."""


def system_now_ms() -> int:
    return time.time_ns() // 1_000_000


class FileTopic:
    """Topic in a folder. Making this object costs nothing; `create_topic` and `open_topic` do so. It makes
    writers and readers."""

    def __init__(self, folder: Path, name: str, partitions: int) -> None:
        self.folder = folder
        self.name = name
        self.partitions = partitions

    def writer(
        self,
        *,
        retention: Retention = Retention(),  # noqa: B008  # frozen
        segment_bytes: int = segment.SEGMENT_BYTES_MAX,
        only: Collection[int] | None = None,
        now_ms: Clock = system_now_ms,
        on_error: Callable[[StorageError], None] = lambda error: None,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        retry_s: float | None = None,
        files: Files | None = None,
    ) -> FileTopicWriter:
        """Return a writer that holds the lock of every partition, or of those in `only`.

        Raise `StorageError`, which names the holder, if another process holds a lock. With `retry_s` the
        writer is a `RetryingWriter`.
        """
        logs: dict[int, PartitionLog] = {}
        try:
            for partition in range(self.partitions) if only is None else sorted(only):
                place = partition_folder(self.folder, partition)
                make_folder(place, f"topic {self.name}", files or Files())
                logs[partition] = PartitionLog(
                    place, partition, retention=retention, segment_bytes=segment_bytes, files=files
                )
                logs[partition].retain(now_ms())
        except BaseException:
            for log in logs.values():
                log.close()
            raise
        return FileTopicWriter(self, logs, now_ms, on_error, waiting_bytes_max, retry_s)

    def reader(self) -> FileTopicReader:
        return FileTopicReader(self)

    def positions(self, group: str) -> FilePositions:
        """Return the positions of `group`, for reading and committing, by one process at a time."""
        return FilePositions(self.folder, self.name, self.partitions, group)


class FileTopicWriter:
    """Writer of a topic. `repairs` says what was repaired when it was opened."""

    def __init__(
        self,
        topic: FileTopic,
        logs: dict[int, PartitionLog],
        now_ms: Clock,
        on_error: Callable[[StorageError], None],
        waiting_bytes_max: int,
        retry_s: float | None,
    ) -> None:
        self.partitions = topic.partitions
        self.repairs = [sentence for log in logs.values() for sentence in log.repairs]
        self._now_ms = now_ms
        self._commits = {
            partition: GroupCommit(
                log,
                f"{topic.name}/{partition}",
                now_ms,
                on_error,
                waiting_bytes_max=waiting_bytes_max,
                retry_s=retry_s,
            )
            for partition, log in logs.items()
        }
        self._router = Router(topic.name, topic.partitions, sorted(logs))
        self._awaited = AwaitedAppends(self.append_soon)

    @property
    def counters(self) -> dict[int, CommitCounters]:
        return {partition: commit.counters for partition, commit in self._commits.items()}

    @property
    def fault(self) -> StorageError | None:
        """Return why the last write of some partition failed; None if the last write of each went well."""
        return next((commit.fault for commit in self._commits.values() if commit.fault is not None), None)

    def append_soon(self, records: Sequence[Record], done: Appended) -> None:
        """Append the records, and call `done` in a thread of the writer's own; `done` must be short."""
        routed = self._router.routed(records, self._now_ms())
        pending = PendingAppend(routed, done)
        for partition, (rows, _) in routed.items():
            self._hand_over(partition, rows, pending)

    def _hand_over(self, partition: int, rows: Sequence[Row], pending: PendingAppend) -> None:
        try:
            self._commits[partition].append(rows, lambda outcome: pending.settle(partition, outcome))
        except StorageError as error:
            pending.settle(partition, error)

    async def append(self, records: Sequence[Record]) -> list[Place]:
        return await self._awaited.append(records)

    async def close(self) -> None:
        """Write all appended records, then close."""
        for commit in self._commits.values():
            await asyncio.to_thread(commit.close)

    def close_now(self) -> None:
        """Do what `close` does, without an event loop."""
        for commit in self._commits.values():
            commit.close()


class FileTopicReader:
    def __init__(self, topic: FileTopic) -> None:
        self.partitions = topic.partitions
        self._readers = [
            PartitionReader(partition_folder(topic.folder, partition), topic.name, partition)
            for partition in range(topic.partitions)
        ]

    def start_offset(self, partition: int) -> int:
        return self._readers[partition].mark.start_offset

    def end_offset(self, partition: int) -> int:
        return self._readers[partition].mark.end_offset

    def batches(self, partition: int, start: int, end: int | None = None) -> Iterator[Batch]:
        return self._readers[partition].batches(start, end)


# Folders


def partition_folder(folder: Path, partition: int) -> Path:
    return folder / f"{partition:03d}"


def create_topic(data: Path, name: str, partitions: int = PARTITIONS) -> FileTopic:
    """Return the topic of that name in a data folder, made if missing; raise `ConfigError` if it has another
    number of partitions."""
    require_name(name, "topic")
    require_partitions(partitions)
    folder = data / TOPICS_FOLDER / name
    if not (folder / TOPIC_FILE).exists():
        make_private(folder, "topic folder", advice="choose another data folder")
        facts = {"version": VERSION, "name": name, "partitions": partitions}
        try:
            replace_durably(Files(), folder / TOPIC_FILE, json.dumps(facts).encode() + b"\n")
            Files().sync_folder(folder.parent)
            Files().sync_folder(data)
        except OSError as error:
            raise StorageError(
                f"topic {name} cannot be made in {folder}: {error.strerror}",
                advice="check the disk and the space left on it",
            ) from error
    topic = open_topic(data, name)
    if topic.partitions != partitions:
        raise ConfigError(
            f"topic {name} in {data} has {topic.partitions} partitions, not {partitions}",
            advice="the number of partitions of a topic cannot change; give the number that it has, or choose another name",
            found=topic.partitions,
        )
    return topic


def open_topic(data: Path, name: str) -> FileTopic:
    """Return the topic; raise `ConfigError` if there is none of that name."""
    require_name(name, "topic")
    path = data / TOPICS_FOLDER / name / TOPIC_FILE
    try:
        content = path.read_bytes()
    except (PermissionError, IsADirectoryError) as error:
        raise StorageError(
            f"topic {name} in {data} cannot be read: {path}: {(error.strerror or str(error)).lower()}",
            advice="check who may read the folder",
        ) from error
    except OSError as error:
        known = ", ".join(topic_names(data)) or "none"
        raise ConfigError(
            f"there is no topic {name} in {data}", advice=f"topics there: {known}", found=name
        ) from error
    try:
        facts = json.loads(content)
        version, partitions = facts["version"], facts["partitions"]
        if version != VERSION or facts["name"] != name or not isinstance(partitions, int):
            raise ValueError(f"version {version}, name {facts['name']}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(
            f"{path} does not describe topic {name} in version {VERSION}: {error}",
            advice="restore the file from a copy, or write it again with the topic's number of partitions",
        ) from error
    return FileTopic(path.parent, name, require_partitions(partitions))


def topic_names(data: Path) -> list[str]:
    return sorted(path.parent.name for path in (data / TOPICS_FOLDER).glob(f"*/{TOPIC_FILE}"))


def topic_facts(data: Path, name: str) -> list[dict[str, Any]]:
    """Return the facts of each partition that people ask for: its bounds, its size, and how far each group
    has read."""
    topic = open_topic(data, name)
    groups = {group: read_positions(topic.folder, group) for group in group_names(topic.folder)}
    reader = topic.reader()
    found = []
    for partition in range(topic.partitions):
        folder = partition_folder(topic.folder, partition)
        start, end = reader.start_offset(partition), reader.end_offset(partition)
        found.append(
            {
                "topic": name,
                "partition": partition,
                "start_offset": start,
                "end_offset": end,
                "records": end - start,
                "bytes": segment.bytes_held(folder),
                "readers": {group: at[partition] for group, at in groups.items() if partition in at},
            }
        )
    return found
