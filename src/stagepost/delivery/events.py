"""One status change of one message, as it goes to the topic of delivery events."""

from __future__ import annotations

import msgspec

from stagepost.delivery.status import DeliveryStatus, Tier


class DeliveryEvent(msgspec.Struct, frozen=True):
    """`delivery_id` has 64 hex characters; `dmq_id` is the network's id of the last attempt; `error` is an error's name."""

    delivery_id: str
    status: DeliveryStatus
    tier: Tier
    topic: str
    timestamp_ms: int
    attempt: int
    dmq_id: str | None
    error: str | None
    acked_by: tuple[str, ...]
