"""Validator sets for a pipeline: a file, or a node's data folder with the topic of sessions. Needs no Spark.

The topic holds one record per session, so a switch of sessions costs one record. Full nodes, and sessions from before the
topic was begun, are those of the file in the same folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stagepost.errors import StorageError
from stagepost.ground.identifiers import SESSIONS_TOPIC
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.remp.validator_sets import SETS_FILE, SETS_FILE_BYTES_MAX
from stagepost.topics.log.file_topic import open_topic, topic_names


class SetsSource:
    """Content of the validator sets, as `parse_validator_sets` takes it, looked at again and again."""

    def __init__(self, path: Path) -> None:
        # The file of a data folder stands for the folder, whose sessions are on their topic.
        is_of_folder = path.name == SETS_FILE and SESSIONS_TOPIC in topic_names(path.parent)
        self._path = path.parent if is_of_folder else path
        self._next: dict[int, int] = {}
        self._sessions: dict[str, Any] = {}
        self._made: tuple[bytes, bytes] | None = None

    def content(self) -> bytes:
        """Return the sets as of now; `StorageError` for what cannot be read. Records that were read are not read again."""
        if not self._path.is_dir():
            return self._file(self._path)
        beside = self._path / SETS_FILE
        has_topic = SESSIONS_TOPIC in topic_names(self._path)
        base = self._file(beside) if beside.exists() or not has_topic else b"{}"
        if not has_topic:
            return base
        if not self._read_on() and self._made is not None and self._made[0] == base:
            return self._made[1]
        try:
            document = decode_foreign(base, dict[str, Any])
            known = {str(one["session_id"]).lower(): one for one in document.get("sessions", ())}
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise StorageError(f"{beside} is not a valid validator-sets file: {error}") from error
        sessions = list({**known, **self._sessions}.values())
        content = msgspec.json.encode({"full_nodes": [], **document, "sessions": sessions})
        self._made = base, content
        return content

    def _read_on(self) -> bool:
        """Take the records that came since the last call; return whether there were any. A later record of a session counts."""
        reader = open_topic(self._path, SESSIONS_TOPIC).reader()
        has_more = False
        for partition in range(reader.partitions):
            begin = self._next.get(partition, reader.start_offset(partition))
            if reader.end_offset(partition) <= begin:
                continue
            has_more = True
            for batch in reader.batches(partition, begin):
                for one in batch:
                    self._enter(one.value, partition, one.offset)
                self._next[partition] = batch.next_offset
        return has_more

    def _enter(self, value: bytes | None, partition: int, offset: int) -> None:
        try:
            session = decode_foreign(value or b"", dict[str, Any])
            self._sessions[str(session["session_id"]).lower()] = session
        except (msgspec.MsgspecError, KeyError) as error:
            raise StorageError(
                f"the record at offset {offset} of partition {partition} of {SESSIONS_TOPIC} is not a session: {error}",
                advice="the sets stay as they were; give a file with --validator-sets",
                offset=offset,
            ) from error

    def _file(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                return file.read(SETS_FILE_BYTES_MAX + 1)
        except OSError as error:
            raise StorageError(
                f"the validator-sets file {path} cannot be read: {error.strerror}",
                advice="give the path of the file, or a node's data folder, with --validator-sets",
            ) from error
