"""The outbox in memory, with the rules and rows of the one on disk."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from stagepost.delivery.stores.outbox import NONCE_PREFIX_BYTES
from stagepost.delivery.stores.outbox_rules import TABLES, USUAL_LIMITS, OutboxBook, OutboxLimits, recover
from stagepost.delivery.stores.outbox_stores import OutboxRows
from stagepost.ground.storage.group_writer import GroupWriter
from stagepost.ground.storage.simulated_disk import InstantWriter, MemoryBackend, TablesDisk
from stagepost.ground.storage.tables import Draft, empty


class MemoryOutboxDisk(TablesDisk):
    """Outlives the outboxes on it: `crash` is a power cut, `kill` the end of a process alone."""

    def __init__(self, sync_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(TABLES, sync_s)


class MemoryOutbox(OutboxRows):
    """Without a disk it ends with the process. `nonce_prefix` is drawn unless a simulation gives it.

    `is_safe=False` is a planted defect: it answers before it has synced.
    """

    def __init__(
        self,
        disk: MemoryOutboxDisk | None = None,
        *,
        fsync: str = "commit",
        limits: OutboxLimits = USUAL_LIMITS,
        nonce_prefix: bytes | None = None,
        is_safe: bool = True,
    ) -> None:
        prefix = nonce_prefix or secrets.token_bytes(NONCE_PREFIX_BYTES)
        backend = None if disk is None else MemoryBackend(disk, is_safe=is_safe)
        held = empty({table.name: table for table in TABLES}) if backend is None else backend.held
        draft = Draft(held)
        damage = recover(draft, held, prefix, is_loose=fsync != "commit", queue_size=limits.queue_size)
        if disk is not None:
            disk.put_at_once(draft)
        draft.settle()
        super().__init__(held, damage)
        if backend is None:
            self._writer = InstantWriter(held, lambda draft: OutboxBook(draft, limits))
        else:
            self._writer = GroupWriter(
                backend, lambda draft: OutboxBook(draft, limits), fsync=fsync, on_error=self._report
            )
