"""Sessions of validators on the topic of the data folder: a record when one begins, and one when it ends.

At its start a full node reads the sessions that still matter. A folder of an earlier release has its sessions in the
validator-sets file; they move to the topic before that file is written without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from stagepost.errors import StorageError
from stagepost.full_node.known_sets import KEPT_MS, KnownSets
from stagepost.full_node.status_topic import RETRY_S
from stagepost.ground.identifiers import SESSIONS_TOPIC
from stagepost.remp.validator_sets import SETS_FILE, ValidatorSets
from stagepost.topics.log.file_topic import FileTopic, create_topic
from stagepost.topics.session_records import load_sets, session_record
from stagepost.topics.topic import Place

log = logging.getLogger(__name__)

MOVED_AT_ONCE = 256
"""Sessions of a file that go to the topic in one append."""


class SessionLog:
    """Writer of the topic. What the disk refuses is tried again, in order, and `fault` says why; a switch of sessions waits
    for nothing."""

    def __init__(
        self,
        data: Path,
        now_ms: int,
        known_sets: KnownSets,
        on_error: Callable[[StorageError], None],
    ) -> None:
        topic = create_topic(data, SESSIONS_TOPIC)
        if (data / SETS_FILE).exists():
            _move_from_file(topic, ValidatorSets.load(data / SETS_FILE))
        known_sets.add(load_sets(data, now_ms - KEPT_MS))
        self._writer = topic.writer(retry_s=RETRY_S, on_error=on_error)

    @property
    def fault(self) -> StorageError | None:
        return self._writer.fault

    def changed(self, known_sets: KnownSets) -> None:
        """Append the sessions that have begun or ended."""
        sessions = known_sets.take_changed()
        if sessions:
            names = known_sets.sets.names
            self._writer.append_soon([session_record(one, names) for one in sessions], _appended)

    async def close(self) -> None:
        await self._writer.close()


def _appended(outcome: list[Place] | StorageError) -> None:
    if isinstance(outcome, StorageError):
        log.error("sessions were not written before the end", extra={"reason": outcome.text})


def _move_from_file(topic: FileTopic, sets: ValidatorSets) -> None:
    """Append the sessions of the file; `StorageError` if the disk refuses, and then the file stays. A crash before the file
    is written anew repeats this, which changes nothing."""
    sessions = sorted(sets.sessions.values(), key=lambda one: one.age_key)
    if not sessions:
        return
    writer = topic.writer()
    try:
        for first in range(0, len(sessions), MOVED_AT_ONCE):
            records = [session_record(one, sets.names) for one in sessions[first : first + MOVED_AT_ONCE]]
            answered: SimpleQueue[list[Place] | StorageError] = SimpleQueue()
            writer.append_soon(records, answered.put)
            outcome = answered.get()
            if isinstance(outcome, StorageError):
                raise outcome
    finally:
        writer.close_now()
    log.info("sessions moved to their topic", extra={"count": len(sessions)})
