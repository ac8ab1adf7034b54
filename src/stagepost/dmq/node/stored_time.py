"""Way back from a clock that was ahead: the stored time returns to the present, and no message is accepted twice.

While the clock of a machine is ahead, its node stores messages and forgets expired ones by that clock. When the clock is
corrected, the stored time lies ahead, and everything looks expired until then. The way back sets the stored time to the
present, keeps every message that the node still holds, and leaves the note of a restore: for the longest life of a message
the node refuses all that it may have forgotten.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stagepost.dmq.node.message_store import StoredState
from stagepost.dmq.node.stored_messages import SqliteStore
from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.data_folder import (
    FILE_MODE,
    MESSAGES_FILE,
    RESTORED_FILE,
    DataFolder,
    RestoredNote,
    restored_note,
)
from stagepost.ground.files.small_files import replace_file

CLOCK_NOTE = "clock"
"""Kind of a note that no restore has left, but this way back."""


class StoredTime(msgspec.Struct, frozen=True):
    """Time in a node's store. `ahead_s`: seconds by which it lies ahead of the machine's clock; negative when it lies
    behind. `later`: stored messages that came, by the clock of then, after the present."""

    ahead_s: float
    messages: int
    later: int


def stored_time_of(state: StoredState, now_unix_s: float) -> StoredTime:
    later = sum(entry.received_ms > now_unix_s * 1_000 for entry in state.messages)
    return StoredTime(state.highest_ms / 1_000 - now_unix_s, len(state.messages), later)


async def stored_time(data: Path, now_unix_s: float, *, recover: bool = False) -> StoredTime:
    """Return the stored time of a node that does not run, as it was found. `recover`: set it to the present."""
    path = data / MESSAGES_FILE
    if not path.exists():
        raise ConfigError(
            f"{data} holds no messages of a DMQ node", advice="give the data folder of a DMQ node with --data"
        )
    folder = DataFolder(data)
    folder.open()
    try:
        store = SqliteStore(path)
        try:
            state = store.load()
            found = stored_time_of(state, now_unix_s)
            if recover:
                # The note comes first: whatever happens in between, the node refuses more, and never less.
                _leave_note(data, int(now_unix_s * 1_000))
                await _set_back(store, state, now_unix_s)
        finally:
            await store.close()
    finally:
        folder.close()
    return found


async def _set_back(store: SqliteStore, state: StoredState, now_unix_s: float) -> None:
    now_ms = int(now_unix_s * 1_000)
    later = [entry for entry in state.messages if entry.received_ms > now_ms]
    if later:
        await store.put([msgspec.structs.replace(entry, received_ms=now_ms) for entry in later])
    store.reset_time(now_unix_s)


def _leave_note(data: Path, now_ms: int) -> None:
    before = restored_note(data)
    note = (
        RestoredNote(CLOCK_NOTE, "", now_ms, now_ms)
        if before is None
        else msgspec.structs.replace(before, restored_at_ms=now_ms, accepts_replays=False)
    )
    try:
        replace_file(data / RESTORED_FILE, msgspec.json.encode(note) + b"\n", FILE_MODE)
    except OSError as error:
        raise StorageError(
            f"could not write {data / RESTORED_FILE}: {error.strerror}",
            advice="check the space left on the disk",
        ) from error
