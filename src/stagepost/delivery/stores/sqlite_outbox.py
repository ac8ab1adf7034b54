"""The outbox on disk: one folder for each publisher, one SQLite file in it, one fsync for everything that waits."""

from __future__ import annotations

import secrets
from pathlib import Path

from stagepost.delivery.errors import ErrConfig
from stagepost.delivery.stores.outbox import NONCE_PREFIX_BYTES
from stagepost.delivery.stores.outbox_rows import OutboxRows
from stagepost.delivery.stores.outbox_rules import TABLES, USUAL_LIMITS, OutboxBook, OutboxLimits, recover
from stagepost.delivery.stores.queue_folder import open_queue_folder
from stagepost.ground.storage.group_writer import FileBackend, GroupWriter
from stagepost.ground.storage.sqlite_file import Connect, connect
from stagepost.ground.storage.tables import Draft

OUTBOX_FILE = "outbox.sqlite"
FSYNC_MODES = ("commit", "interval", "off")


class SqliteOutbox(OutboxRows):
    """`ErrQueueLocked` if another publisher has the folder, `StorageError` if it cannot be used.

    `fsync` says what an insert waits for: "commit" for the disk; "interval" for the operating system, which is made
    to write within a second; "off" for the operating system, which writes when it likes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fsync: str = "commit",
        limits: OutboxLimits = USUAL_LIMITS,
        connect: Connect = connect,
    ) -> None:
        if fsync not in FSYNC_MODES:
            raise ErrConfig(f"fsync is one of {', '.join(FSYNC_MODES)}, not {fsync!r}", found=fsync)
        file, lock = open_queue_folder(folder, OUTBOX_FILE, TABLES, "outbox", connect)
        try:
            draft = Draft(file.held)
            prefix = secrets.token_bytes(NONCE_PREFIX_BYTES)
            made_up = recover(draft, file.held, prefix, is_loose=fsync != "commit")
            if draft.changes:
                file.commit(draft, is_synced=True)
        except BaseException:
            file.close()
            lock.release()
            raise
        super().__init__(file.held, [*file.damage, *made_up])
        self._writer = GroupWriter(
            FileBackend(file, "outbox", lock.release),
            lambda draft: OutboxBook(draft, limits),
            fsync=fsync,
            on_error=self._report,
        )
