"""Status callbacks by webhook: each change of a delivery's status as a CloudEvent, in the structured JSON form of version 1.0.

{"specversion": "1.0", "type": "stagepost.delivery.acked", "source": "/stagepost/nodes/<pool id>",
 "id": "<delivery id>/Acked/0", "subject": "<delivery id>", "time": "2027-01-15T08:00:00.250Z",
 "datacontenttype": "application/json", "data": {…the event as in the topic stagepost.delivery.events…}}
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from stagepost.delivery.effects import DeliveryEvent, DeliveryEventSink
from stagepost.ground.net.webhook import Webhook, WebhookConfig, WebhookEvent

SPEC_VERSION = "1.0"
TYPE_PREFIX = "stagepost.delivery."


def cloud_event(event: DeliveryEvent, sender: str) -> dict[str, Any]:
    """Return a status change as a CloudEvent. `sender` is the node id of the publisher."""
    status = event.status.value
    found: dict[str, Any] = {
        "specversion": SPEC_VERSION,
        "id": f"{event.delivery_id}/{status}/{event.attempt}",
        "source": f"/stagepost/nodes/{sender}",
        "type": TYPE_PREFIX + status.lower(),
        "subject": event.delivery_id,
        "time": rfc3339(event.timestamp_ms),
        "datacontenttype": "application/json",
        "data": msgspec.to_builtins(event),
    }
    if event.traceparent is not None:
        found["traceparent"] = event.traceparent  # the extension for distributed tracing
    return found


def rfc3339(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1_000:03d}Z"


class StatusWebhook:
    """A sink of delivery events that posts each of them; to be closed after its publisher."""

    def __init__(self, config: WebhookConfig, sender: str) -> None:
        self._webhook = Webhook(config)
        self._sender = sender

    @property
    def counts(self) -> Any:
        return self._webhook.counts

    def put(self, event: DeliveryEvent) -> None:
        made = cloud_event(event, self._sender)
        self._webhook.put(WebhookEvent(made["id"], msgspec.json.encode(made)))

    def close(self) -> None:
        self._webhook.close()


class EventSinks:
    """Several sinks of delivery events as one."""

    def __init__(self, sinks: Iterable[DeliveryEventSink]) -> None:
        self._sinks = tuple(sinks)

    def put(self, event: DeliveryEvent) -> None:
        for sink in self._sinks:
            sink.put(event)


def together(*sinks: DeliveryEventSink | None) -> DeliveryEventSink | None:
    """Return one sink for all that are given; None if there is none."""
    found = [sink for sink in sinks if sink is not None]
    return EventSinks(found) if len(found) > 1 else next(iter(found), None)
