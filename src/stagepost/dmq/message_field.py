"""A DMQ message as a field of a protocol message: read in the layouts that a profile allows, written as it came."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stagepost.dmq.message import (
    NETWORK_SIZES,
    USUAL_SHAPE,
    DmqMessage,
    MessageLayout,
    MessageSizes,
    read_message,
    read_usual_shape,
)
from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.framing import ItemLimits, skip_item


@dataclass(frozen=True, slots=True)
class MessageField:
    layouts: frozenset[MessageLayout]
    sizes: MessageSizes | None = NETWORK_SIZES

    def read(self, reader: CborReader, what: str) -> DmqMessage:
        return read_message(reader, self.layouts, self.sizes)

    def read_all(self, data: bytes, start: int, end: int) -> list[DmqMessage] | None:
        """Return the messages that stand side by side in `data`; None if one of them does not have the usual
        shape."""
        sizes = self.sizes
        if sizes is None or MessageLayout.FIVE not in self.layouts:
            return None
        messages: list[DmqMessage] = []
        while start < end:
            message = read_usual_shape(data, start, end, sizes)
            if message is None:
                return None
            messages.append(message)
            start += len(message.raw)
        return messages

    @property
    def items_each(self) -> int:
        return USUAL_SHAPE.items

    def write(self, value: DmqMessage) -> bytes:
        return value.raw


class MalformedMessage(msgspec.Struct, frozen=True):
    """Well-formed CBOR that is not a message, and the reason: a local program gets an answer instead of
    losing its connection."""

    raw: bytes
    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class SubmittedField:
    """Last field of a submission: a message, or any other well-formed item."""

    messages: MessageField

    def read(self, reader: CborReader, what: str) -> DmqMessage | MalformedMessage:
        start = reader.offset
        try:
            return self.messages.read(reader, what)
        except DecodeError as fault:
            reader.offset = start
            raw = skip_item(
                reader, ItemLimits(bytes_max=reader.end), what
            )  # bytes that are not CBOR fail here
            return MalformedMessage(raw, fault.code, fault.text)

    def write(self, value: DmqMessage | MalformedMessage) -> bytes:
        return value.raw
