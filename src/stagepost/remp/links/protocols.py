"""The protocols of a link between a full node and a validator: messages there, receipts back, nothing
awaited.
"""

from __future__ import annotations

import msgspec

from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.layout import ByteString, Layout
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES

OBJECT_BYTES_MAX = 66_535
"""Bytes of a boxed `tonNode.rempMessage` or `tonNode.rempCombinedReceipt`, at most; the message inside has
65,535 at most.
"""

ENVELOPE_BYTES_MAX = 16
"""Bytes, at most, that a protocol message adds to its object."""


# Messages


class MessageFrame(msgspec.Struct, frozen=True):
    """A boxed `tonNode.rempMessage`."""

    message: bytes


class Receipts(msgspec.Struct, frozen=True):
    """A boxed `tonNode.rempCombinedReceipt`."""

    combined_receipt: bytes


class Done(msgspec.Struct, frozen=True):
    """This side says nothing more."""


# Layouts

_OBJECT = ByteString(CONSTRUCTOR_BYTES, OBJECT_BYTES_MAX)
MESSAGES_DIALECT = Dialect(
    "REMP messages", (Layout(MessageFrame, 0, (("message", _OBJECT),)), Layout(Done, 1))
)
RECEIPTS_DIALECT = Dialect(
    "REMP receipts", (Layout(Receipts, 0, (("combined_receipt", _OBJECT),)), Layout(Done, 1))
)

# States

SPEAKING = State(
    "Speaking", Role.CLIENT, message_bytes_max=OBJECT_BYTES_MAX + ENVELOPE_BYTES_MAX, items_max=3
)
DONE = State("Done", speaker=None)

# Specs

REMP_MESSAGES = ProtocolSpec(
    name="RempMessages",
    initial=SPEAKING,
    edges=(Edge(SPEAKING, MessageFrame, SPEAKING), Edge(SPEAKING, Done, DONE)),
)

REMP_RECEIPTS = ProtocolSpec(
    name="RempReceipts",
    initial=SPEAKING,
    edges=(Edge(SPEAKING, Receipts, SPEAKING), Edge(SPEAKING, Done, DONE)),
)
