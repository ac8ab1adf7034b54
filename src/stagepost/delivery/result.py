"""What became of one message, as far as is known.

What a caller gets: the core's outcome, with the time as a calendar knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from stagepost.delivery.status import DeliveryStatus, NackReason, Tier


class Outcome(msgspec.Struct, frozen=True):
    """`acked_by` is in order of arrival. `error` is the exception that a caller would get; None if all went well."""

    message_id: str
    status: DeliveryStatus
    tier: Tier
    timestamp_ms: int
    acked_by: tuple[str, ...] = ()
    error: Exception | None = None
    missing: tuple[str, ...] = ()
    nacked_by: Mapping[str, NackReason | int] = {}
    attempts: int = 0


class DeliveryResult(Outcome, frozen=True):
    """`timestamp` is when the last status was reached."""

    @property
    def timestamp(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp_ms / 1_000, UTC)
