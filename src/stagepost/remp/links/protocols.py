"""The protocols of links in which one side speaks and nothing is awaited: between a full node and a validator messages
there and receipts back, between programs bodies of reliable delivery both ways.
"""

from __future__ import annotations

import msgspec

from stagepost.ground.crypto.ed25519 import SIGNATURE_BYTES
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


DELIVERY_BODY_BYTES_MAX = 1_048_576
"""Bytes of a body of reliable delivery, at most: a payload of 900 kB with a long topic and all ackers fits."""


# Messages


class DeliveryBody(msgspec.Struct, frozen=True):
    """A body of reliable delivery with the sender's signature: a data envelope or an envelope of receipts."""

    signature: bytes
    body: bytes


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
DELIVERY_DIALECT = Dialect(
    "delivery",
    (
        Layout(
            DeliveryBody,
            0,
            (
                ("signature", ByteString(SIGNATURE_BYTES, SIGNATURE_BYTES)),
                ("body", ByteString(1, DELIVERY_BODY_BYTES_MAX)),
            ),
        ),
        Layout(Done, 1),
    ),
)

# States

SPEAKING = State(
    "Speaking", Role.CLIENT, message_bytes_max=OBJECT_BYTES_MAX + ENVELOPE_BYTES_MAX, items_max=3
)
DELIVERING = State(
    "Delivering",
    Role.CLIENT,
    message_bytes_max=DELIVERY_BODY_BYTES_MAX + SIGNATURE_BYTES + ENVELOPE_BYTES_MAX,
    items_max=4,
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

DELIVERY_BODIES = ProtocolSpec(
    name="DeliveryBodies",
    initial=DELIVERING,
    edges=(Edge(DELIVERING, DeliveryBody, DELIVERING), Edge(DELIVERING, Done, DONE)),
)
