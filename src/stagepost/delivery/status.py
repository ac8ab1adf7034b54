"""The statuses of a delivery, the one table of their order, and the result of one message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

from stagepost.ground.statemachine.lifecycle import Lifecycle


class DeliveryStatus(StrEnum):
    PENDING = "Pending"
    QUEUED = "Queued"
    SENT = "Sent"
    ACKED = "Acked"
    FAILED = "Failed"


# Module constants: see `entry.py`.
PENDING: Final = DeliveryStatus.PENDING
QUEUED: Final = DeliveryStatus.QUEUED
SENT: Final = DeliveryStatus.SENT
ACKED: Final = DeliveryStatus.ACKED
FAILED: Final = DeliveryStatus.FAILED


class Tier(StrEnum):
    """The promise that a caller asks for: one attempt, storage until it is sent, or acknowledgement."""

    BEST_EFFORT = "best-effort"
    QUEUED = "queued"
    ACKED = "acked"


class AckType(IntEnum):
    """The kind of a receipt. 0 stays invalid, so that a missing field can never read as an acknowledgement."""

    ACK = 1
    NACK = 2


ACK: Final = AckType.ACK


class NackReason(IntEnum):
    NONE = 0
    BUSY = 1
    HANDLER_FAILED = 2
    INVALID = 3
    UNAUTHORISED = 4
    UNKNOWN_TOPIC = 5
    EXPIRED = 6
    TOO_LARGE = 7


TRANSIENT_REASONS = frozenset({NackReason.BUSY, NackReason.HANDLER_FAILED})


class Step(StrEnum):
    """An event in the life of a message. Text, since its hash is cached."""

    MUST_WAIT = "must wait"
    WRITTEN = "written"
    CONFIRMED = "confirmed"
    GAVE_UP = "gave up"


MUST_WAIT: Final = Step.MUST_WAIT
WRITTEN: Final = Step.WRITTEN
CONFIRMED: Final = Step.CONFIRMED
GAVE_UP: Final = Step.GAVE_UP


DELIVERY = Lifecycle(
    initial=DeliveryStatus.PENDING,
    table={
        (DeliveryStatus.PENDING, Step.MUST_WAIT): DeliveryStatus.QUEUED,
        (DeliveryStatus.PENDING, Step.WRITTEN): DeliveryStatus.SENT,
        (DeliveryStatus.PENDING, Step.GAVE_UP): DeliveryStatus.FAILED,
        (DeliveryStatus.QUEUED, Step.WRITTEN): DeliveryStatus.SENT,
        (DeliveryStatus.QUEUED, Step.GAVE_UP): DeliveryStatus.FAILED,
        (DeliveryStatus.SENT, Step.CONFIRMED): DeliveryStatus.ACKED,
        (DeliveryStatus.SENT, Step.GAVE_UP): DeliveryStatus.FAILED,
    },
)
"""Statuses of a message that asks for acknowledgement. A retry is silent inside Sent. Without acknowledgement Sent is the end."""


class DeliveryResult(msgspec.Struct, frozen=True):
    """The last status of a message, with the peers that acknowledged or refused it.

    `acked_by` is in order of arrival. `error` is the exception that a caller would get; None if all went well.
    """

    message_id: str
    status: DeliveryStatus
    tier: Tier
    timestamp_ms: int
    acked_by: tuple[str, ...] = ()
    error: Exception | None = None
    missing: tuple[str, ...] = ()
    nacked_by: Mapping[str, NackReason | int] = {}
    attempts: int = 0

    @property
    def timestamp(self) -> datetime:
        """Return when the message reached `status`, in UTC."""
        return datetime.fromtimestamp(self.timestamp_ms / 1_000, UTC)
