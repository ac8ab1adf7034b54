"""Between the publisher's core and its store: entries as rows, and rows as what the core remembers."""

from __future__ import annotations

from stagepost.delivery.effects import SaveEnd
from stagepost.delivery.ended import FailedMessage
from stagepost.delivery.entry import Entry
from stagepost.delivery.errors import DeliveryError
from stagepost.delivery.result import Outcome
from stagepost.delivery.runtime_delivery_result import DeliveryResult
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.delivery.stores.outbox import (
    DeadLetter,
    DoneKey,
    Finished,
    OutboxChange,
    OutboxRecord,
    Progress,
)


def record_of(entry: Entry) -> OutboxRecord:
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
    )


def progress_of(entry: Entry) -> Progress:
    return Progress(entry.sequence, entry.status, entry.attempts, entry.last_used, entry.maybe_duplicate)


def change_of(effect: SaveEnd) -> OutboxChange:
    outcome = effect.outcome
    if isinstance(outcome.error, DeliveryError):
        return buried(effect.entry, outcome.error, outcome.timestamp_ms)
    return Finished(effect.entry.sequence, outcome.status, outcome.timestamp_ms, outcome.acked_by)


def buried(entry: Entry, error: DeliveryError, failed_ms: int) -> DeadLetter:
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
    )


def outcome_of(done: DoneKey) -> Outcome | None:
    """None for one that failed: its key may be used again."""
    if done.status is DeliveryStatus.FAILED:
        return None
    tier = Tier.ACKED if done.status is DeliveryStatus.ACKED else Tier.QUEUED
    return DeliveryResult(done.delivery_id.hex(), done.status, tier, done.done_ms, done.acked_by)
