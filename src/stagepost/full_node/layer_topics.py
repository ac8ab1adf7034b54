"""The topics of the layers before REMP: each DMQ message that a node takes in, and each change of a delivery's status.

topic = DmqMessagesTopic(create_topic(data, DMQ_MESSAGES_TOPIC).writer())
node.intake.on_accepted.append(topic.accepted)

events = DeliveryEventsTopic(create_topic(data, DELIVERY_EVENTS_TOPIC).writer())
ReliablePublisher(transport, config, events=events)
"""

from __future__ import annotations

import logging

import msgspec

from stagepost.delivery.effects import DeliveryEvent
from stagepost.delivery.shell.events import TOPIC as DELIVERY_EVENTS_TOPIC
from stagepost.dmq.mempool import Entry
from stagepost.errors import StorageError
from stagepost.topics.topic import Place, Record, TopicWriter

DMQ_MESSAGES_TOPIC = "stagepost.dmq.messages"

log = logging.getLogger(__name__)

__all__ = ["DELIVERY_EVENTS_TOPIC", "DMQ_MESSAGES_TOPIC", "DeliveryEventsTopic", "DmqMessagesTopic"]


class _LayerTopic:
    """What the disk refuses is logged: a topic that is read by people must not hold up messages."""

    def __init__(self, writer: TopicWriter) -> None:
        self.written = 0
        self._writer = writer

    def _write(self, record: Record) -> None:
        self.written += 1
        self._writer.append_soon([record], _log_failure)

    async def close(self) -> None:
        """What was handed over is written first."""
        await self._writer.close()


class DmqMessagesTopic(_LayerTopic):
    def accepted(self, entry: Entry) -> None:
        message = entry.message
        headers = {"received_ms": str(entry.received_ms), "from": entry.source}
        self._write(Record(message.message_id.hex().encode(), message.raw, headers))


class DeliveryEventsTopic(_LayerTopic):
    """A `DeliveryEventSink`."""

    def put(self, event: DeliveryEvent) -> None:
        self._write(Record(event.delivery_id.encode(), msgspec.json.encode(event)))


def _log_failure(outcome: list[Place] | StorageError) -> None:
    if isinstance(outcome, StorageError):
        log.error("record not written", extra={"reason": outcome.text})
