"""What a caller gets: the core's outcome, with the time as a calendar knows it."""

from __future__ import annotations

from datetime import UTC, datetime

from stagepost.delivery.result import Outcome


class DeliveryResult(Outcome, frozen=True):
    """`timestamp` is when the last status was reached."""

    @property
    def timestamp(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp_ms / 1_000, UTC)
