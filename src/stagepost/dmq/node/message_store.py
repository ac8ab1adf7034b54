"""Where accepted messages are kept so that a restart neither forgets one nor accepts it a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from stagepost.dmq.mempool import Entry
from stagepost.errors import ConfigError, StorageError
from stagepost.ground.identifiers import PoolId

STORED_TIME_AHEAD_MAX_S = 3_600
ACCEPT_STORED_TIME = "unsafe-accept-stored-time"
"""How configuration and command line call the override."""

StoredMessage: TypeAlias = Entry
Written: TypeAlias = Callable[[StorageError | None], None]


class StoredPool(msgspec.Struct, frozen=True):
    """What a pool's messages have settled: kept after the messages themselves have expired."""

    pool_id: PoolId
    issue_number: int
    last_valid_ms: int

    def merged(self, other: StoredPool | None) -> StoredPool:
        if other is None:
            return self
        return StoredPool(
            self.pool_id,
            max(self.issue_number, other.issue_number),
            max(self.last_valid_ms, other.last_valid_ms),
        )


def pool_of(entry: Entry) -> StoredPool:
    message = entry.message
    return StoredPool(message.pool_id, message.issue_number, entry.received_ms)


@dataclass(frozen=True)
class StoredState:
    """What a store held when it was opened. `damage` is for people: one sentence for each thing that was wrong."""

    messages: tuple[StoredMessage, ...] = ()
    pools: tuple[StoredPool, ...] = ()
    highest_ms: int = 0
    index_max: int = 0
    damage: tuple[str, ...] = ()


class MessageStore(Protocol):
    """One owner at a time. A failure is a `StorageError`; the store may be asked again at any time."""

    @property
    def fault(self) -> str | None:
        """Why the last write failed; None after one that went well."""
        ...

    def load(self) -> StoredState:
        """Everything, in order of arrival. Called once, before anything else."""
        ...

    def write(self, records: Sequence[StoredMessage], written: Written) -> None:
        """`written` is called once, on the event loop and perhaps at once, when all would survive a power cut.

        With an error none of them counts. Never raises: a store that is closed tells `written`, too.
        """
        ...

    def forget(self, records: Sequence[StoredMessage], unix_s: float) -> None:
        """These expired, as was seen at `unix_s`. Done in the background, in order with `put`, and not lost by errors.

        Their pools are remembered, and so is the time: a clock that was set back must not revive them.
        """
        ...

    def reset_time(self, unix_s: float) -> None:
        """Replace the highest time, where somebody decided that the stored one was wrong."""
        ...

    async def close(self) -> None: ...


async def write_and_wait(store: MessageStore, records: Sequence[StoredMessage]) -> None:
    """`write` for those who would rather wait than be called. Returns when all are safe; raises `StorageError`."""
    done: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()

    def written(error: StorageError | None) -> None:
        if not done.done():
            done.set_result(error)

    store.write(records, written)
    error = await done
    if error is not None:
        raise error


def check_stored_time(highest_ms: int, now_unix_s: float) -> None:
    """Refuse to start with a clock far behind: every message would look expired, or an old one would look new."""
    ahead_s = highest_ms / 1_000 - now_unix_s
    if ahead_s > STORED_TIME_AHEAD_MAX_S:
        raise ConfigError(
            f"the stored messages are from {highest_ms / 1_000:.0f}, {ahead_s:.0f} s ahead of this machine's clock, "
            f"which says {now_unix_s:.0f}; at most {STORED_TIME_AHEAD_MAX_S} s are allowed",
            advice=f"set the clock, or start once with {ACCEPT_STORED_TIME} if the clock is right "
            "and was wrong before",
            limit=STORED_TIME_AHEAD_MAX_S,
            found=round(ahead_s),
        )
