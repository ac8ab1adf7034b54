"""The protocol between the members of a session over a link: pushed objects, queries and their answers.

Each side opens an instance of its own and is the only one who speaks in it, so nobody waits for a turn.
Blocks and answers share a lane and keep their order: an answer with the number of sent blocks comes after
them.
"""

from __future__ import annotations

import msgspec

from stagepost.catchain.block import BLOCK_BYTES_MAX, UPDATE_ID
from stagepost.errors import ErrorCode, LimitExceeded
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.layout import ByteString, Layout, Unsigned
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES, constructor_bytes

OBJECT_BYTES_MAX = 66_535
"""Bytes of one TL object: the longest is an external message with a body of 65,535 bytes."""

ENVELOPE_BYTES_MAX = 16
"""Bytes that a protocol message adds to its object: head, tag, number, and the head of the byte string."""


# Messages


class Push(msgspec.Struct, frozen=True):
    """Object that is not answered: a block, or the body of a message."""

    frame: bytes


class Ask(msgspec.Struct, frozen=True):
    """Query. Numbers count up from 0 on each link."""

    number: int
    query: bytes


class Answer(msgspec.Struct, frozen=True):
    """Answer to the query of that number; at most one."""

    number: int
    answer: bytes


class Done(msgspec.Struct, frozen=True):
    """End of this side's messages."""


# Layouts

_OBJECT = ByteString(CONSTRUCTOR_BYTES, OBJECT_BYTES_MAX)
_NUMBER = Unsigned(64)
DIALECT = Dialect(
    "catchain overlay",
    (
        Layout(Push, 0, (("frame", _OBJECT),)),
        Layout(Ask, 1, (("number", _NUMBER), ("query", _OBJECT))),
        Layout(Answer, 2, (("number", _NUMBER), ("answer", _OBJECT))),
        Layout(Done, 3),
    ),
)


class ObjectShape:
    """`KnownShape` of `[0, object]`, the form of most messages on links."""

    initial = 0x82
    items = 3
    depth = 1

    @staticmethod
    def end(data: bytes | bytearray, start: int) -> int | None:
        begin = start + 3
        if len(data) < begin or data[start + 1]:
            return None
        length = data[start + 2] - 0x40
        if length >= 24:
            width = {0x18: 1, 0x19: 2}.get(length, 0)
            if not width:
                return None
            length, begin = int.from_bytes(data[begin : begin + width], "big"), begin + width
        return begin + length if 0 <= length <= len(data) - begin else None


# States

SPEAKING = State(
    "Speaking", Role.CLIENT, message_bytes_max=OBJECT_BYTES_MAX + ENVELOPE_BYTES_MAX, items_max=4
)
DONE = State("Done", speaker=None)

# Spec

CATCHAIN_OVERLAY = ProtocolSpec(
    name="CatchainOverlay",
    initial=SPEAKING,
    edges=(
        Edge(SPEAKING, Push, SPEAKING),
        Edge(SPEAKING, Ask, SPEAKING),
        Edge(SPEAKING, Answer, SPEAKING),
        Edge(SPEAKING, Done, DONE),
    ),
)


_UPDATE = constructor_bytes(UPDATE_ID)


def check_frame(frame: bytes) -> None:
    """Raise `LimitExceeded` for a block that is too long. The layout cannot hold this rule: it admits longer
    objects."""
    if len(frame) > BLOCK_BYTES_MAX and frame.startswith(_UPDATE):
        text = f"a block of {len(frame)} bytes was pushed; at most {BLOCK_BYTES_MAX} are accepted"
        raise LimitExceeded(
            text,
            code=ErrorCode.CBOR_LIMIT,
            limit=BLOCK_BYTES_MAX,
            found=len(frame),
            state=SPEAKING.name,
            reason="TooLarge",
        )
