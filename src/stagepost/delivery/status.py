"""The statuses of a delivery and the one table of their order."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

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
