"""Sinks of delivery events: one event for each change of a message's status.

`trace/layer_topics.py` has the sinks that write the topic `stagepost.delivery.events`.
"""

from __future__ import annotations

from typing import Protocol

from stagepost.delivery.effects import DeliveryEvent


class DeliveryEventSink(Protocol):
    """A receiver of events. `put` is called on the event loop: it must return at once and never raise."""

    def put(self, event: DeliveryEvent) -> None: ...
