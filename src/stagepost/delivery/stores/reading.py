"""An outbox on disk as commands see it: what is in it, whether it is whole, and whether its totals balance.

Everything here reads, beside a running publisher as well as without one, and changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stagepost.delivery.stores.outbox import OutboxContent, OutboxTotals
from stagepost.delivery.stores.outbox_rules import TABLES, content_of
from stagepost.delivery.stores.outbox_stores import OUTBOX_FILE
from stagepost.errors import StorageError
from stagepost.ground.storage.damage import set_aside
from stagepost.ground.storage.owned_folder import holder
from stagepost.ground.storage.sqlite_file import beside
from stagepost.ground.storage.table_file import Found, read_beside


class OutboxCheck(msgspec.Struct, frozen=True):
    """Counts are of rows that are whole. Times are Unix milliseconds, None where there is nothing to tell."""

    folder: Path
    used_by: int | None
    """The process that has the outbox open, if any."""
    totals: OutboxTotals
    live: int
    live_by_status: dict[str, int]
    payload_bytes: int
    oldest_created_ms: int | None
    newest_created_ms: int | None
    attempts_max: int
    dead_letters: int
    done_keys: int
    damaged_rows: int
    file_bytes: int
    damage: tuple[str, ...]
    set_aside: tuple[str, ...] = ()
    """Names of damaged files beside the outbox, whose readable rows were taken over."""
    has_totals: bool = True
    """False if the totals could not be read: then they are all 0 here, and nobody knows whether they balance."""

    @property
    def imbalance(self) -> int | None:
        """published − acked − sent-final − failed − live: 0, or messages were lost or counted twice. None: unknown."""
        return self.totals.live - self.live if self.has_totals else None

    @property
    def is_sound(self) -> bool:
        return self.imbalance == 0 and not self.damage


def read_outbox(folder: Path) -> OutboxContent:
    """Return everything that can be read; `StorageError` if there is no outbox in the folder, or none that can be read.

    Where `damage` says that rows are damaged or missing, what is returned is a part of what was there.
    """
    found = _found(folder)
    return msgspec.structs.replace(content_of(found.held, found.damage), set_aside=_set_aside(folder))


def _set_aside(folder: Path) -> tuple[str, ...]:
    # A database may lie there with its log.
    names = (one.name for one in set_aside(folder / OUTBOX_FILE))
    return tuple(name for name in names if not name.endswith(("-wal", "-shm")))


def check_outbox(folder: Path) -> OutboxCheck:
    """Describe an outbox; `StorageError` if there is none in the folder, or none that can be read."""
    found = _found(folder)
    content = content_of(found.held, found.damage)
    created = [record.created_ms for record in content.records]
    statuses = [record.status.value for record in content.records]
    return OutboxCheck(
        folder=folder,
        used_by=holder(folder),
        totals=content.totals,
        live=len(content.records),
        live_by_status={status: statuses.count(status) for status in sorted(set(statuses))},
        payload_bytes=sum(len(record.payload) for record in content.records),
        oldest_created_ms=min(created, default=None),
        newest_created_ms=max(created, default=None),
        attempts_max=max((record.attempts for record in content.records), default=0),
        dead_letters=len(content.dead_letters),
        done_keys=len(content.done_keys),
        damaged_rows=len(found.bad),
        file_bytes=sum(_size(beside(folder / OUTBOX_FILE, ending)) for ending in ("", "-wal")),
        damage=content.damage,
        set_aside=_set_aside(folder),
        has_totals=content.has_totals,
    )


def _found(folder: Path) -> Found:
    return read_beside(folder / OUTBOX_FILE, TABLES, "outbox", is_in_use=holder(folder) is not None)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {error.strerror or error}") from error
