"""The ids that one record of a topic names together, for the index of messages; and all ids of one message.

A record that cannot be read names nothing: readers of the topic itself show it with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from stagepost.chain.messages import read_message, stamped_draft
from stagepost.delivery.effects import DeliveryEvent
from stagepost.delivery.envelope import DataEnvelope, read_ack_envelope, read_data_envelope
from stagepost.dmq.message import DmqMessage
from stagepost.errors import DecodeError, StagepostError
from stagepost.ground.identifiers import (
    DELIVERY_EVENTS_TOPIC,
    DMQ_MESSAGES_TOPIC,
    DMQ_PULLS_TOPIC,
    MESSAGES_TOPIC,
    STATUSES_TOPIC,
)
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.topics.batch import Read

ID_DIGITS = 64
PROFILE = "seed"
"""Name of the profile that reads every layout of a DMQ message."""


class MessageIds(msgspec.Struct, frozen=True):
    """All ids of one message, by layer, as hex. `acks` are the DMQ ids of its acknowledgements and refusals."""

    message_ids: tuple[str, ...] = ()
    delivery_ids: tuple[str, ...] = ()
    dmq_ids: tuple[str, ...] = ()
    acks: tuple[str, ...] = ()
    topic: str | None = None
    first_ms: int | None = None

    @property
    def main(self) -> str:
        """Return the message id: the one that `send` or `submit` gave its caller."""
        return (self.message_ids + self.delivery_ids + self.dmq_ids + self.acks)[0]

    def led_by(self, text: str) -> MessageIds:
        """Return the same ids with the external message that `text` begins first: one delivery may have had several, as
        after a new expiry, and each of them has receipts and an end of its own.
        """
        asked = text.lower()
        ordered = sorted(self.message_ids, key=lambda one: not one.startswith(asked))
        return msgspec.structs.replace(self, message_ids=tuple(ordered))


class RecordSpan(NamedTuple):
    """Place of one id's records in a topic: they lie at `first` to `last`, both included, among others."""

    key: str
    folder: Path
    topic: str
    partition: int
    first: int
    last: int


class NameKind(IntEnum):
    """Layer that gave an id. The numbers are those in the index's file."""

    MESSAGE = 1
    """External message id, of the chain."""
    DELIVERY = 2
    """Delivery id, of the outbox."""
    DMQ = 3
    """DMQ id, of one attempt on the network."""
    ACK = 4
    """DMQ id of a message that acknowledges or refuses deliveries."""
    KEY = 5
    """Nonce of an idempotency key."""


class RecordNames(msgspec.Struct, frozen=True):
    """Ids that belong to one message. `own` is the id by which the topic files the record."""

    own: bytes
    names: tuple[tuple[NameKind, bytes], ...]
    topic: str | None = None


def names_in(topic: str, record: Read) -> list[RecordNames]:
    """Return the ids that a record names: one list for each message that the record is about."""
    reader = _READERS.get(topic)
    own = _id(record.key)
    if reader is None or own is None:
        return []
    try:
        return reader(own, record)
    except (StagepostError, msgspec.MsgspecError, UnicodeDecodeError):
        return []


def external_id(topic: str, payload: bytes, created_ms: int) -> bytes | None:
    """Return the id that full nodes give the payload of a delivery; None for what is not a message of theirs."""
    if topic != MESSAGES_TOPIC:
        return None
    try:
        return read_message(stamped_draft(payload, created_ms), takes_cells=False).external.message_id
    except DecodeError:
        return None


def _status(own: bytes, record: Read) -> list[RecordNames]:
    names = [(NameKind.MESSAGE, own)]
    for kind, header in ((NameKind.DMQ, "dmq_id"), (NameKind.DELIVERY, "delivery_id")):
        known = _id(record.headers.get(header, "").encode())
        if known is not None:
            names.append((kind, known))
    return [RecordNames(own, tuple(names))]


def _dmq_message(own: bytes, record: Read) -> list[RecordNames]:
    message = DmqMessage.decode(record.value or b"", profile=PROFILE)
    try:
        return [_data(own, message, read_data_envelope(message.body))]
    except DecodeError:
        pass
    try:
        receipts = read_ack_envelope(message.body).receipts
    except DecodeError:
        return [RecordNames(own, ((NameKind.DMQ, own),))]
    acknowledged = dict.fromkeys(receipt.message_id for receipt in receipts)
    return [
        RecordNames(own, ((NameKind.DELIVERY, delivery), (NameKind.ACK, own))) for delivery in acknowledged
    ]


def _data(own: bytes, message: DmqMessage, envelope: DataEnvelope) -> RecordNames:
    names = [
        (NameKind.DMQ, own),
        (NameKind.DELIVERY, bytes(envelope.delivery_id(message.pool_id))),
        (NameKind.KEY, envelope.nonce),
    ]
    external = external_id(envelope.topic, envelope.payload, envelope.created_ms)
    if external is not None:
        names.append((NameKind.MESSAGE, external))
    return RecordNames(own, tuple(names), envelope.topic)


def _delivery_event(own: bytes, record: Read) -> list[RecordNames]:
    event = decode_foreign(record.value or b"", DeliveryEvent)
    names = [(NameKind.DELIVERY, own)]
    dmq_id = _id((event.dmq_id or "").encode())
    if dmq_id is not None:
        names.append((NameKind.DMQ, dmq_id))
    if event.key_nonce is not None:
        try:
            names.append((NameKind.KEY, bytes.fromhex(event.key_nonce)))
        except ValueError:
            return []
    return [RecordNames(own, tuple(names), event.topic)]


def _pull(own: bytes, record: Read) -> list[RecordNames]:
    return [RecordNames(own, ((NameKind.DMQ, own),))]


def _id(text: bytes | None) -> bytes | None:
    if text is None or len(text) != ID_DIGITS:
        return None
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return None


_READERS: dict[str, Callable[[bytes, Read], list[RecordNames]]] = {
    STATUSES_TOPIC: _status,
    DMQ_MESSAGES_TOPIC: _dmq_message,
    DMQ_PULLS_TOPIC: _pull,
    DELIVERY_EVENTS_TOPIC: _delivery_event,
}
INDEXED_TOPICS = tuple(_READERS)
