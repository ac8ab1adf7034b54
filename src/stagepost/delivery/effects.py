"""Effects that the publisher's core asks its shell to perform, in the order in which the core gives them.

`DeliveryEvent` is a status change of a message, as it goes to the topic of delivery events.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

from stagepost.delivery.entry import OutboxEntry
from stagepost.delivery.status import DeliveryResult, DeliveryStatus, Tier


class Report(msgspec.Struct, frozen=True):
    """Tell observers that a message has a new status."""

    entry: OutboxEntry
    status: DeliveryStatus
    error: Exception | None
    timestamp_ms: int
    attempt: int
    network_id: bytes | None
    acked_by: tuple[str, ...]


class SaveProgress(msgspec.Struct, frozen=True):
    """Store that a live message was tried, or used again. May reach the disk late."""

    entry: OutboxEntry


class SaveEnd(msgspec.Struct, frozen=True):
    """Store the end of a message: as dead letter, if there is an error. May reach the disk late."""

    entry: OutboxEntry
    outcome: DeliveryResult


class DropDeadLetter(msgspec.Struct, frozen=True):
    """Drop a dead letter, since another call published its message again. May reach the disk late."""

    sequence: int


class Wake(msgspec.Struct, frozen=True):
    """Give the result to every caller who waits for this message."""

    entry: OutboxEntry
    outcome: DeliveryResult


class FlushEnded(msgspec.Struct, frozen=True):
    """End the flush that a caller asked for. `is_cut_short`: the connection was lost before its end."""

    became_sent: int
    is_cut_short: bool


Effect: TypeAlias = Report | SaveProgress | SaveEnd | DropDeadLetter | Wake | FlushEnded


REASON_CHARACTERS_MAX = 500
"""Characters, at most, of an error's text in an event."""


class DeliveryEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A status change. `dmq_id` is the network's id of the last attempt; `error` is the name of an error class, and
    `reason` its text. `key_nonce` is the nonce of the idempotency key, as hex, where the caller gave one;
    `traceparent` is the W3C trace context of the caller, where there is one.

    `delivery_id` has 64 hex characters.
    """

    delivery_id: str
    status: DeliveryStatus
    tier: Tier
    topic: str
    timestamp_ms: int
    attempt: int
    dmq_id: str | None
    error: str | None
    acked_by: tuple[str, ...]
    reason: str | None = None
    key_nonce: str | None = None
    traceparent: str | None = None


class DeliveryEventSink(Protocol):
    """A receiver of events. `put` is called on the event loop: it must return at once and never raise."""

    def put(self, event: DeliveryEvent) -> None: ...
