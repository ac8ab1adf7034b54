"""Store of what a publisher has promised to send: rows that a restart finds again, and totals that balance.

    published = acked + sent_final + failed + live, in every state that was ever written

Every message that is stored counts as published once, and leaves the live ones by exactly one change: `Finished` or
`DeadLetter`. A replay is stored, and counted, as a new message under the old delivery id.

Between the publisher's core and its store: entries as rows, and rows as what the core remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from stagepost.delivery.effects import SaveEnd
from stagepost.delivery.endings import FailedMessage
from stagepost.delivery.entry import OutboxEntry
from stagepost.delivery.errors import DeliveryError
from stagepost.delivery.status import DeliveryResult, DeliveryStatus, Tier
from stagepost.errors import StagepostError

NONCE_PREFIX_BYTES = 8
DEAD_LETTERS_MAX = 1_000
DONE_KEYS_MAX = 10_000


class OutboxRecord(msgspec.Struct, frozen=True, array_like=True):
    """Message that has no end yet. `sequence` is its place in the queue, and is never used again. `stamped_ms` is when
    it was first sent, where the topic's messages are dated by that; 0 before.
    """

    sequence: int
    delivery_id: bytes
    tier: Tier
    topic: str
    payload: bytes
    nonce: bytes
    created_ms: int
    key_hash: bytes | None = None
    ackers: tuple[str, ...] = ()
    required: int = 0
    status: DeliveryStatus = DeliveryStatus.QUEUED
    attempts: int = 0
    last_used: int = 0
    maybe_duplicate: bool = False
    stamped_ms: int = 0
    traceparent: str = ""


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A message that failed, as it was then. `error` is the name of an error class, `text` what it said."""

    record: OutboxRecord
    error: str
    text: str
    failed_ms: int


class DoneKey(msgspec.Struct, frozen=True, array_like=True):
    """End of the message with this idempotency key; `error` and `text` are empty unless it failed."""

    key_hash: bytes
    delivery_id: bytes
    status: DeliveryStatus
    done_ms: int
    acked_by: tuple[str, ...] = ()
    error: str = ""
    text: str = ""


class OutboxTotals(msgspec.Struct, frozen=True, array_like=True):
    """Since the outbox was made. `failed` is by the name of the error."""

    published: int = 0
    acked: int = 0
    sent_final: int = 0
    failed: dict[str, int] = {}

    @property
    def ended(self) -> int:
        return self.acked + self.sent_final + sum(self.failed.values())

    @property
    def live(self) -> int:
        """Return how many messages must be live if nothing was lost."""
        return self.published - self.ended


class OutboxContent(msgspec.Struct, frozen=True):
    """Content of an outbox when it was opened. `damage` is for people: one sentence for each thing that was wrong."""

    records: tuple[OutboxRecord, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    """The oldest first."""
    done_keys: tuple[DoneKey, ...] = ()
    """The oldest first."""
    totals: OutboxTotals = OutboxTotals()
    """All 0 where `has_totals` is False."""
    next_counter: int = 1
    """For the next record, both as `sequence` and as the second half of its nonce."""
    has_totals: bool = True
    """False if the row with the totals is damaged or missing: then nobody knows them."""
    damage: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    """Names of damaged files that lie beside the outbox: their readable rows were taken over, others are lost."""
    queue_size: int = 0
    """Messages that the publisher lets wait at most; 0 if no publisher has said so."""


class EntryProgress(msgspec.Struct, frozen=True):
    """A live message was tried, or used again."""

    sequence: int
    status: DeliveryStatus
    attempts: int
    last_used: int
    maybe_duplicate: bool = False
    stamped_ms: int = 0


class Finished(msgspec.Struct, frozen=True):
    """A live message reached its good end: `ACKED`, or `SENT` where nobody was asked to acknowledge."""

    sequence: int
    status: DeliveryStatus
    done_ms: int
    acked_by: tuple[str, ...] = ()


class Joined(msgspec.Struct, frozen=True):
    """A dead letter whose message is live again without it: the letter is no dead letter any more."""

    sequence: int


OutboxChange: TypeAlias = EntryProgress | Finished | DeadLetter | Joined
OnStorageError: TypeAlias = Callable[[StagepostError], None]


class OutboxStore(Protocol):
    """Store with one owner at a time. A failure is a `StorageError`; the store may be asked again at any time."""

    on_storage_error: OnStorageError | None
    """Told on the event loop about what no caller waits for: damage (by `load`), marks that could not be written."""

    @property
    def nonce_prefix(self) -> bytes:
        """Drawn when the outbox was made: with it and a counter no two messages have the same nonce."""
        ...

    def load(self) -> OutboxContent:
        """Everything, in order. Called once, before anything else."""
        ...

    async def insert(
        self, record: OutboxRecord, dead: Sequence[DeadLetter] = (), *, replayed: int | None = None
    ) -> None:
        """Store a message, and in the same transaction bury those that made room for it.

        `record.sequence` is higher than any before. `replayed` is the sequence of the dead letter that the record
        is made from, which is then no dead letter any more. Returns when all of it is as durable as was asked for;
        after `StorageError` nothing of it happened. A caller who stops waiting does not stop the writing.
        """
        ...

    def mark(self, change: OutboxChange) -> None:
        """In order with everything else, soon, and not lost by errors; a crash may lose the newest marks."""
        ...

    async def flush(self) -> None:
        """Returns when every mark is as durable as an insert; `StorageError` if they cannot be written now."""
        ...

    async def close(self) -> None: ...

    def kill(self) -> None:
        """Let go of the rows at once, as a crash would: nothing more is written, and nobody is answered."""
        ...


def record_of(entry: OutboxEntry) -> OutboxRecord:
    return OutboxRecord(
        entry.sequence,
        entry.delivery_id,
        entry.tier,
        entry.topic,
        entry.payload,
        entry.nonce,
        entry.created_ms,
        entry.key_hash,
        entry.critical,
        entry.required,
        DeliveryStatus.QUEUED,
        entry.attempts,
        entry.last_used,
        entry.maybe_duplicate,
        entry.stamped_ms,
        entry.traceparent,
    )


def progress_of(entry: OutboxEntry) -> EntryProgress:
    return EntryProgress(
        entry.sequence,
        entry.status,
        entry.attempts,
        entry.last_used,
        entry.maybe_duplicate,
        entry.stamped_ms,
    )


def change_of(effect: SaveEnd) -> OutboxChange:
    outcome = effect.outcome
    if isinstance(outcome.error, DeliveryError):
        return buried(effect.entry, outcome.error, outcome.timestamp_ms)
    return Finished(effect.entry.sequence, outcome.status, outcome.timestamp_ms, outcome.acked_by)


def buried(entry: OutboxEntry, error: DeliveryError, failed_ms: int) -> DeadLetter:
    return DeadLetter(record_of(entry), type(error).__name__, error.text, failed_ms)


def letter_of(dead: DeadLetter) -> FailedMessage:
    record = dead.record
    return FailedMessage(
        record.delivery_id.hex(),
        record.sequence,
        record.tier,
        record.topic,
        record.payload,
        record.nonce,
        record.created_ms,
        record.key_hash,
        record.ackers,
        record.required,
        record.attempts,
        dead.error,
        dead.text,
        dead.failed_ms,
        record.stamped_ms,
        record.traceparent,
    )


def outcome_of(done: DoneKey) -> DeliveryResult | None:
    """None for one that failed: its key may be used again."""
    if done.status is DeliveryStatus.FAILED:
        return None
    tier = Tier.ACKED if done.status is DeliveryStatus.ACKED else Tier.QUEUED
    return DeliveryResult(done.delivery_id.hex(), done.status, tier, done.done_ms, done.acked_by)
