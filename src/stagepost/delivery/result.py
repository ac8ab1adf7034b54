"""The result of one message, as far as the publisher knows it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from stagepost.delivery.status import DeliveryStatus, NackReason, Tier


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
