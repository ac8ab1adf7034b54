"""A DMQ message as a field of a protocol message: read in the layouts that a profile allows, written as it came."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stagepost.dmq.message import NETWORK_SIZES, DmqMessage, MessageLayout, MessageSizes, read_message
from stagepost.errors import DecodeError, ErrorCode
from stagepost.wire.cbor import Reader


@dataclass(frozen=True, slots=True)
class MessageField:
    layouts: frozenset[MessageLayout]
    sizes: MessageSizes | None = NETWORK_SIZES

    def read(self, reader: Reader, what: str) -> DmqMessage:
        return read_message(reader, self.layouts, self.sizes)

    def write(self, value: DmqMessage) -> bytes:
        return value.raw


class MalformedMessage(msgspec.Struct, frozen=True):
    """Well-formed CBOR that is no message, and why: a local program is told so instead of being cut off."""

    raw: bytes
    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class SubmittedField:
    """The last field of a submission. The framing has already shown that it is one well-formed item."""

    messages: MessageField

    def read(self, reader: Reader, what: str) -> DmqMessage | MalformedMessage:
        start = reader.offset
        try:
            message = self.messages.read(reader, what)
            reader.finish("the message")
        except DecodeError as fault:
            if fault.code is ErrorCode.CBOR_TRUNCATED:
                raise
            reader.offset = reader.end
            return MalformedMessage(reader.data[start : reader.end], fault.code, fault.text)
        return message

    def write(self, value: DmqMessage | MalformedMessage) -> bytes:
        return value.raw
