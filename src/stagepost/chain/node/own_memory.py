"""Memory of a validator about what it said: from when on it is complete, and in which older sessions it has become so.

A validator signs nothing twice because its disk holds what it signed. A disk that was lost, or replaced by an older copy, has a
gap. The memory is complete for sessions that began after the gap, and for older ones in which every other member
has told the validator what it said. In all others the validator listens and does not speak (`StartAnswers`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from stagepost.errors import StorageError
from stagepost.ground.files.data_folder import read_note, restored_note
from stagepost.ground.files.small_files import Files, replace_durably
from stagepost.ground.loop.clock import loop_time
from stagepost.ground.statemachine.lifecycle import StartAnswers
from stagepost.remp.ledger import LedgerSession

MEMORY_FILE = "memory.json"
MEMORY_BYTES_MAX = 65_536
SESSIONS_MAX = 256
"""Sessions, at most, that a note names; the oldest go first, and have ended long since."""
ADVICE = "put back a backup of the data folder, or start with an empty one"
AHEAD_MS_MAX = 5_000
"""Milliseconds that a session may begin ahead of our clock. A clock that is further behind cannot tell what is new."""

STEP_MS = 250
"""Milliseconds by which two readings of the clocks may differ without a step."""


class MemoryNote(msgspec.Struct, frozen=True):
    """Content of memory.json. `complete_since_ms` is in Unix milliseconds; `sessions` are those that began earlier and are
    complete nevertheless; `restored` names the restore that made the gap."""

    complete_since_ms: int
    sessions: tuple[str, ...] = ()
    restored: str = ""
    version: int = 1


class OwnMemory:
    """`note` is None for a validator that never lost anything. `keep` writes a note durably. `gap_ends_here`: the gap ends with
    the start of this process, whatever a clock said then that has been set right meanwhile.
    """

    def __init__(
        self,
        note: MemoryNote | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        keep: Callable[[MemoryNote], None] = lambda note: None,
        *,
        gap_ends_here: bool = False,
    ) -> None:
        self.note = note
        self._now_ms = now_ms
        self._keep = keep
        self._opened_s = loop_time() if gap_ends_here else None

    def answers(self, session: LedgerSession, spoken_as: bytes | None = None) -> StartAnswers:
        """Return whose answers this validator needs before it speaks in the session, or in its queue `spoken_as`."""
        note = self._dated_by_the_present_clock()
        if note is None or (spoken_as or session.session_id).hex() in note.sessions:
            return StartAnswers.QUORUM
        if note.complete_since_ms < session.from_ms <= self._now_ms() + AHEAD_MS_MAX:
            return StartAnswers.QUORUM
        # With the genesis everybody begins from nothing, which is no gap.
        is_founding = not session.started_by and not note.restored
        return StartAnswers.FOUNDING if is_founding else StartAnswers.GAP

    def _dated_by_the_present_clock(self) -> MemoryNote | None:
        """Return the note. If the clock was set ahead since this process began, the gap ends later than the note says: a
        machine that comes back from a copy has the clock of the copy until somebody sets it."""
        note = self.note
        if note is None or self._opened_s is None:
            return note
        opened_ms = self._now_ms() - int((loop_time() - self._opened_s) * 1_000)
        if opened_ms > note.complete_since_ms + STEP_MS:
            note = msgspec.structs.replace(note, complete_since_ms=opened_ms)
            self._keep(note)
            self.note = note
        return note

    def spoke(self, session_id: bytes) -> None:
        """Note that this validator speaks in the session: from now on its disk holds all that it says there."""
        note, name = self.note, session_id.hex()
        if note is not None and name not in note.sessions:
            sessions = (*note.sessions, name)[-SESSIONS_MAX:]
            kept = msgspec.structs.replace(note, sessions=sessions)
            self._keep(kept)
            self.note = kept


def open_memory(data: Path, now_ms: Callable[[], int], *, is_new: bool) -> OwnMemory:
    """Return the memory of the validator of a data folder. `is_new`: a store of it was missing when it was opened.

    A folder that a restore filled, or that has no store, has a gap that ends now. Raise `StorageError` if a note cannot be
    read or written: without it the validator would speak too early.
    """
    path = data / MEMORY_FILE

    def keep(note: MemoryNote) -> None:
        try:
            replace_durably(Files(), path, msgspec.json.encode(note) + b"\n")
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}",
                advice="check the disk and the space left on it",
            ) from error

    note = read_note(path, MemoryNote, MEMORY_BYTES_MAX, ADVICE)
    restored = restored_note(data)
    name = "" if restored is None else f"{restored.backup}@{restored.restored_at_ms}"
    since_ms = now_ms() if restored is None else max(now_ms(), restored.restored_at_ms)
    gap_ends_here = is_new or (restored is not None and (note is None or note.restored != name))
    if gap_ends_here:
        note = MemoryNote(since_ms, restored=name)
        keep(note)
    return OwnMemory(note, now_ms, keep, gap_ends_here=gap_ends_here)
