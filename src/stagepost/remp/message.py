"""An external message as validators know it: its destination, content and origin; and the binary forms in
which full nodes send it to validators and validators pass its body among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from stagepost.ground.crypto import ed25519
from stagepost.ground.identifiers import MESSAGES_TOPIC as MESSAGES_TOPIC
from stagepost.ground.wire.tl import ZERO_INT256, Reader, Writer, constructor_id, key_id
from stagepost.remp.queue.records import UNSIGNED, HandOver, Header


class ExternalMessage(msgspec.Struct, frozen=True):
    """The fields that a ledger reads in a message's bytes. `uid` is the hash of all that makes it
    what it is to its account, without the salt: two ids may share one, and then they expire together.
    """

    message_id: bytes
    uid: bytes
    workchain: int
    account: bytes
    body: bytes


class UidKey(NamedTuple):
    """Equal bodies to different accounts are different messages."""

    workchain: int
    account: bytes
    uid: bytes


class Origin(msgspec.Struct, frozen=True):
    """The full node that sent a message, the validator that announced it, and the time of that."""

    source_key_id: bytes
    source_index: int
    timestamp_ms: int
    hand_over: HandOver = UNSIGNED


def uid_key(header: Header) -> UidKey:
    return UidKey(header.workchain, header.account, header.uid)


def header_of(message: ExternalMessage, origin: Origin, masterchain_seqno: int) -> Header:
    return Header(
        message.message_id,
        message.uid,
        message.workchain,
        message.account,
        origin.source_key_id,
        origin.source_index,
        masterchain_seqno,
        origin.timestamp_ms,
        origin.hand_over,
    )


MESSAGE_BYTES_MAX = 65_535
"""Bytes of an external message, at most."""

SIGNATURE_BYTES_MAX = 64

MESSAGE_ID = constructor_id(
    "tonNode.rempMessage message:bytes id:int256 timestamp:long signature:bytes = tonNode.RempMessage"
)
BODY_ID = constructor_id("tonNode.rempMessageBody message:bytes = tonNode.rempMessageBody")
QUERY_ID = constructor_id("tonNode.rempMessageQuery message_id:int256 = tonNode.rempMessageQuery")


class RempMessage(msgspec.Struct, frozen=True):
    """A message on its way to a validator, signed by the full node that sends it."""

    message: bytes
    message_id: bytes
    timestamp_ms: int = 0
    signature: bytes = b""

    def signed_bytes(self, source_id: bytes) -> bytes:
        """Return the signed bytes: time, source and id, that is who sends the message and when; the id covers
        the rest already.
        """
        writer = Writer()
        writer.write_long(self.timestamp_ms)
        writer.write_int256(source_id)
        writer.write_int256(self.message_id)
        return writer.written()

    def sign(self, seed: bytes) -> RempMessage:
        source_id = key_id(ed25519.public_key(seed))
        return msgspec.structs.replace(self, signature=ed25519.sign(seed, self.signed_bytes(source_id)))

    def is_signed_by(self, public_key: bytes) -> bool:
        return ed25519.verify(public_key, self.signed_bytes(key_id(public_key)), self.signature)

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(MESSAGE_ID)
        writer.write_bytes(self.message)
        writer.write_int256(self.message_id)
        writer.write_long(self.timestamp_ms)
        writer.write_bytes(self.signature)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> RempMessage:
        reader = Reader(data)
        reader.read_constructor(MESSAGE_ID)
        message = reader.read_bytes(MESSAGE_BYTES_MAX, "message")
        message_id, timestamp_ms = reader.read_int256(), reader.read_long()
        signature = reader.read_bytes(SIGNATURE_BYTES_MAX, "signature")
        reader.expect_end()
        return cls(message, message_id, timestamp_ms, signature)


def names_its_sender(header: Header, full_nodes: Mapping[bytes, bytes]) -> bool:
    """Return whether the full node that `header` names has signed that it handed the message over. `full_nodes`: public
    keys by key id.
    """
    public_key, hand_over = full_nodes.get(header.source_key_id), header.hand_over
    if public_key is None or hand_over == UNSIGNED:
        return False
    return RempMessage(b"", header.message_id, hand_over.at_ms, hand_over.signature).is_signed_by(public_key)


class MessageBody(msgspec.Struct, frozen=True):
    """A message's bytes, as a broadcast or as the answer to a query."""

    message: bytes

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(BODY_ID)
        writer.write_bytes(self.message)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> MessageBody:
        reader = Reader(data)
        reader.read_constructor(BODY_ID)
        message = reader.read_bytes(MESSAGE_BYTES_MAX, "message")
        reader.expect_end()
        return cls(message)


class MessageQuery(msgspec.Struct, frozen=True):
    """A question for a body whose header came without it."""

    message_id: bytes

    @property
    def is_for_nothing(self) -> bool:
        """True for the zero id, which stands for no message; nobody asks for it."""
        return self.message_id == ZERO_INT256

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(QUERY_ID)
        writer.write_int256(self.message_id)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> MessageQuery:
        reader = Reader(data)
        reader.read_constructor(QUERY_ID)
        message_id = reader.read_int256()
        reader.expect_end()
        return cls(message_id)
