"""The positions of a group of readers, in one small file that is replaced whole, durably, with a checksum."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.owner_lock import OwnerLock
from stagepost.ground.files.small_files import Files, make_folder, replace_durably
from stagepost.topics.topic import DamagedLog, require_name

GROUPS_FOLDER = "groups"
POSITIONS_BYTES_MAX = 8_192
OFFSET_MAX = 2**63 - 1


class FilePositions:
    """Positions of one group, held by one process at a time: two that commit for one group would overwrite
    each other's positions."""

    def __init__(
        self, folder: Path, topic: str, partitions: int, group: str, files: Files | None = None
    ) -> None:
        require_name(group, "group of readers")
        self._topic = topic
        self._group = group
        self._partitions = partitions
        self._files = files or Files()
        groups = folder / GROUPS_FOLDER
        make_folder(groups, f"topic {topic}", self._files)
        self._path = groups / f"{group}.json"
        self._lock = OwnerLock(groups / f"{group}.lock")
        try:
            self._committed = read_positions(folder, group)
        except BaseException:
            self._lock.release()
            raise

    @property
    def committed(self) -> Mapping[int, int]:
        return dict(self._committed)

    def commit_now(self, offsets: Mapping[int, int]) -> None:
        """Commit these offsets; other partitions stay where they are. Going back is allowed: that is how
        records are read again."""
        for partition, offset in offsets.items():
            if not 0 <= partition < self._partitions or not 0 <= offset <= OFFSET_MAX:
                raise ConfigError(
                    f"offset {offset} of partition {partition} cannot be a position in {self._topic}",
                    advice=f"partitions are 0 to {self._partitions - 1}, offsets 0 to {OFFSET_MAX}",
                )
        wanted = self._committed | dict(offsets)
        try:
            replace_durably(self._files, self._path, _written(wanted))
        except OSError as error:
            raise self._failed(error) from error
        self._committed = wanted

    async def commit(self, offsets: Mapping[int, int]) -> None:
        await asyncio.to_thread(self.commit_now, offsets)

    def close(self) -> None:
        self._lock.release()

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(
            f"the position of group {self._group} in {self._topic} cannot be written: {error.strerror}",
            advice="check the disk and the space left on it",
        )


def read_positions(folder: Path, group: str) -> dict[int, int]:
    """Return the positions of one group of a topic, also while another process holds it. Empty if it has
    never committed."""
    path = folder / GROUPS_FOLDER / f"{group}.json"
    try:
        with path.open("rb") as file:
            content = file.read(POSITIONS_BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}", advice="check its mode") from error
    try:
        facts = json.loads(content)
        positions = {int(partition): int(offset) for partition, offset in facts["positions"].items()}
        if content != _written(positions):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedLog(path, 0, "the positions do not agree with their checksum") from None
    return positions


def group_names(folder: Path) -> list[str]:
    try:
        names = os.listdir(folder / GROUPS_FOLDER)
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and name[0] != ".")


def _written(positions: Mapping[int, int]) -> bytes:
    told = {str(partition): positions[partition] for partition in sorted(positions)}
    check = crc32(json.dumps(told).encode())
    return json.dumps({"positions": told, "crc32": check}).encode() + b"\n"
