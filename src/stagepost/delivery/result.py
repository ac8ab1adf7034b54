"""What became of one message, as far as is known."""

from __future__ import annotations

from collections.abc import Mapping

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
