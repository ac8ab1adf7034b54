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
from stagepost.ground.wire.cbor import Reader
from stagepost.ground.wire.framing import ItemLimits, skip_item


@dataclass(frozen=True, slots=True)
class MessageField:
    layouts: frozenset[MessageLayout]
    sizes: MessageSizes | None = NETWORK_SIZES

    def read(self, reader: Reader, what: str) -> DmqMessage:
        return read_message(reader, self.layouts, self.sizes)

    def read_all(self, data: bytes, start: int, end: int) -> list[DmqMessage] | None:
        """Messages side by side, as most of them are written; None to have them read one by one."""
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
    """Well-formed CBOR that is no message, and why: a local program is told so instead of being cut off."""

    raw: bytes
    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class SubmittedField:
    """The last field of a submission: a message, or whatever else is one well-formed item."""

    messages: MessageField

    def read(self, reader: Reader, what: str) -> DmqMessage | MalformedMessage:
        start = reader.offset
        try:
            return self.messages.read(reader, what)
        except DecodeError as fault:
            reader.offset = start
            raw = skip_item(
                reader, ItemLimits(bytes_max=reader.end), what
            )  # bytes that are no CBOR fail here
            return MalformedMessage(raw, fault.code, fault.text)

    def write(self, value: DmqMessage | MalformedMessage) -> bytes:
        return value.raw
