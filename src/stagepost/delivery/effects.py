"""What the publisher's core asks its shell to do; performed in the order in which they are given.

One status change of one message, as it goes to the topic of delivery events.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stagepost.delivery.entry import Entry
from stagepost.delivery.result import Outcome
from stagepost.delivery.status import DeliveryStatus, Tier


class Report(msgspec.Struct, frozen=True):
    """Tell observers that a message has a new status."""

    entry: Entry
    status: DeliveryStatus
    error: Exception | None
    timestamp_ms: int
    attempt: int
    network_id: bytes | None
    acked_by: tuple[str, ...]


class SaveProgress(msgspec.Struct, frozen=True):
    """A live message was tried, or used again. May reach the disk late."""

    entry: Entry


class SaveEnd(msgspec.Struct, frozen=True):
    """A message has ended: as dead letter, if there is an error. May reach the disk late."""

    entry: Entry
    outcome: Outcome


class DropDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter is gone: its message is on its way, in a life that another call began. May reach the disk late."""

    sequence: int


class Wake(msgspec.Struct, frozen=True):
    """Whoever waits for this message gets its outcome."""

    entry: Entry
    outcome: Outcome


class FlushEnded(msgspec.Struct, frozen=True):
    """The flush that somebody asked for is over. `is_cut_short`: the connection was lost before its end."""

    became_sent: int
    is_cut_short: bool


Effect: TypeAlias = Report | SaveProgress | SaveEnd | DropDeadLetter | Wake | FlushEnded


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
