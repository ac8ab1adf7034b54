"""Memory of a receiver: which messages it has seen, what it answered, and which effects are claimed."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from stagepost.delivery.stores.outbox import OnStorageError

CAPACITY = 100_000
KEEP_S = 3_600


class InboxState(StrEnum):
    """`PROCESSING` after a restart: the handler may have run or not, so it runs again."""

    PROCESSING = "processing"
    DONE = "done"
    REFUSED = "refused"


class InboxRecord(msgspec.Struct, frozen=True, array_like=True):
    """`verdict` is the reason of a refusal as its number, 0 where there is none. `stamped_ms`: stamp of the message that
    the verdict is about, where its topic has stamps.
    """

    delivery_id: bytes
    state: InboxState
    keep_until_ms: int
    verdict: int = 0
    is_claimed: bool = False
    stamped_ms: int = 0


class InboxContent(msgspec.Struct, frozen=True):
    records: tuple[InboxRecord, ...] = ()
    damage: tuple[str, ...] = ()


class InboxStore(Protocol):
    """Store with one owner at a time. A failure is a `StorageError`; the store may be asked again at any time.

    A record replaces the one before it, except that a claim stays and `keep_until_ms` never goes back. Above the
    capacity, the records that would be dropped soonest go first, claimed or not, and are counted.
    """

    on_storage_error: OnStorageError | None

    @property
    def overflowed(self) -> int:
        """Records that had to go before their time, since the store was opened."""
        ...

    def load(self) -> InboxContent:
        """Everything. Called once, before anything else."""
        ...

    async def put(self, record: InboxRecord) -> None:
        """Returns when it is as durable as was asked for; after `StorageError` nothing happened."""
        ...

    def mark(self, record: InboxRecord) -> None:
        """Like `put`, soon: for what a crash may forget."""
        ...

    def expire(self, now_ms: int) -> None:
        """Drop, soon, what need not be kept any longer."""
        ...

    async def claim(self, delivery_id: bytes | str, keep_until_ms: int | None = None) -> bool:
        """True for exactly one caller ever, and only when that would survive a crash; False for all others.

        A crash right after it leaves the claim without its effect. Where an effect must neither be repeated nor
        left out, it belongs into one transaction with its claim: see `claim_within`.
        """
        ...

    async def release(self, delivery_id: bytes | str) -> None:
        """Give a claim back: for a handler that knows that its effect did not happen."""
        ...

    async def flush(self) -> None: ...

    async def close(self) -> None: ...

    def kill(self) -> None:
        """Let go of the rows at once, as a crash would: nothing more is written, and nobody is answered."""
        ...
