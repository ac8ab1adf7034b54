"""Message submission, node to node: one side pulls, the other supplies. Both published versions, as data.

In version 1 and in the documents the initiator supplies; in version 2 the initiator pulls.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from struct import Struct

import msgspec

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.message_field import MessageField
from stagepost.ground.identifiers import MESSAGE_ID_BYTES, MessageId
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.layout import (
    ArrayLayout,
    Boolean,
    ByteString,
    Field,
    Layout,
    ListForm,
    ListOf,
    Unsigned,
)

IDS_IN_LIST_MAX = 1_024
"""Ids in one list, which bounds its memory; the window decides how many are allowed at a time."""

MESSAGES_IN_LIST_MAX = 1_024
MESSAGES_BYTES_MAX = 98_000


# Messages


class Init(msgspec.Struct, frozen=True, gc=False):
    """Notice that the supplier is ready for requests. Version 1 only."""


class RequestMessageIds(msgspec.Struct, frozen=True, gc=False):
    """Request that acknowledges the oldest `acknowledged` ids and asks for up to `requested` more."""

    blocking: bool
    acknowledged: int
    requested: int


class MessageIdAndSize(msgspec.Struct, frozen=True, gc=False):
    message_id: MessageId
    size_in_bytes: int


class ReplyMessageIds(msgspec.Struct, frozen=True, gc=False):
    ids: tuple[MessageIdAndSize, ...]


class ReplyNoMessageIds(msgspec.Struct, frozen=True, gc=False):
    """Reply without news, which returns the turn to the asker. Version 2 only."""


class RequestMessages(msgspec.Struct, frozen=True, gc=False):
    ids: tuple[MessageId, ...]


class ReplyMessages(msgspec.Struct, frozen=True, gc=False):
    """Reply with those of the requested messages that the supplier still has."""

    messages: tuple[DmqMessage, ...]


class Done(msgspec.Struct, frozen=True, gc=False):
    """End of the conversation."""


# Layouts


class Flavour(Enum):
    """Published numbering of the same messages; there are two."""

    HASKELL = "haskell"
    CIP = "cip"


_TAGS_V1 = {
    Flavour.HASKELL: {
        Init: 6,
        RequestMessageIds: 0,
        ReplyMessageIds: 1,
        RequestMessages: 2,
        ReplyMessages: 3,
        Done: 4,
    },
    Flavour.CIP: {
        Init: 0,
        RequestMessageIds: 1,
        ReplyMessageIds: 2,
        RequestMessages: 3,
        ReplyMessages: 4,
        Done: 5,
    },
}
_TAGS_V2 = {
    Flavour.HASKELL: {
        RequestMessageIds: 1,
        ReplyMessageIds: 2,
        ReplyNoMessageIds: 3,
        RequestMessages: 4,
        ReplyMessages: 5,
        Done: 6,
    },
    Flavour.CIP: {RequestMessageIds: 1, ReplyMessageIds: 2, RequestMessages: 3, ReplyMessages: 4, Done: 5},
}
_TAGS = {1: _TAGS_V1, 2: _TAGS_V2}

_LIST_FORMS = {Flavour.HASKELL: ListForm.INDEFINITE, Flavour.CIP: ListForm.DEFINITE}


class UsualAnnouncements:
    """`[id, size]` pairs in the form of every message that the network takes: 256 to 65,535 bytes long."""

    items_each = 3

    def read_all(self, data: bytes, start: int, end: int) -> list[MessageIdAndSize] | None:
        if start == end:
            return []
        if _USUAL_PAIRS.fullmatch(data, start, end) is None:
            return None
        pairs = _PAIR.iter_unpack(data[start:end])
        return [MessageIdAndSize(message_id, size) for message_id, size in pairs]


_USUAL_PAIRS = re.compile(rb"(?:\x82\x58\x20.{32}\x19[\x01-\xff].)+", re.DOTALL)
_PAIR = Struct(">3x32sxH")


def dialect(version: int, flavour: Flavour, message: Field) -> Dialect:
    form = _LIST_FORMS[flavour]
    usual = message if isinstance(message, MessageField) else None
    message_id = ByteString(MESSAGE_ID_BYTES, MESSAGE_ID_BYTES)
    announcement = ArrayLayout(
        MessageIdAndSize, (("message_id", message_id), ("size_in_bytes", Unsigned(32)))
    )
    fields: dict[type[object], tuple[tuple[str, Field], ...]] = {
        RequestMessageIds: (
            ("blocking", Boolean()),
            ("acknowledged", Unsigned(16)),
            ("requested", Unsigned(16)),
        ),
        ReplyMessageIds: (("ids", ListOf(announcement, form, IDS_IN_LIST_MAX, usual=UsualAnnouncements())),),
        RequestMessages: (("ids", ListOf(message_id, form, IDS_IN_LIST_MAX)),),
        ReplyMessages: (("messages", ListOf(message, form, MESSAGES_IN_LIST_MAX, usual=usual)),),
    }
    layouts = (Layout(kind, tag, fields.get(kind, ())) for kind, tag in _TAGS[version][flavour].items())
    return Dialect(flavour.value, tuple(layouts))


# States

_SUPPLIER_V1, _PULLER_V1 = Role.CLIENT, Role.SERVER
_PULLER_V2, _SUPPLIER_V2 = Role.CLIENT, Role.SERVER

INIT = State("Init", _SUPPLIER_V1)
IDLE_V1 = State("Idle", _PULLER_V1)
IDS_BLOCKING_V1 = State("MessageIdsBlocking", _SUPPLIER_V1)
IDS_NON_BLOCKING_V1 = State("MessageIdsNonBlocking", _SUPPLIER_V1, timeout_s=10)
MESSAGES_V1 = State("Messages", _SUPPLIER_V1, timeout_s=10, message_bytes_max=MESSAGES_BYTES_MAX)
DONE = State("Done", speaker=None)

IDLE_V2 = State("Idle", _PULLER_V2)
IDS_BLOCKING_V2 = State("MessageIdsBlocking", _SUPPLIER_V2, timeout_s=20)
IDS_NON_BLOCKING_V2 = State("MessageIdsNonBlocking", _SUPPLIER_V2, timeout_s=10)
MESSAGES_V2 = State("Messages", _SUPPLIER_V2, timeout_s=10, message_bytes_max=MESSAGES_BYTES_MAX)

SEED_INIT = replace(INIT, id=1, timeout_s=30)
SEED_IDLE = replace(IDLE_V1, id=2, timeout_s=300)
SEED_IDS_BLOCKING = replace(IDS_BLOCKING_V1, id=3, timeout_s=30)
SEED_IDS_NON_BLOCKING = replace(IDS_NON_BLOCKING_V1, id=4, timeout_s=10)  # the documents' "0 (immediate)"
SEED_MESSAGES = replace(MESSAGES_V1, id=5, timeout_s=30)
SEED_DONE = replace(DONE, id=6, timeout_s=10)

# Specs

SUBMISSION_V1 = ProtocolSpec(
    name="MessageSubmission version 1",
    initial=INIT,
    edges=(
        Edge(INIT, Init, IDLE_V1),
        Edge(IDLE_V1, RequestMessageIds, IDS_BLOCKING_V1, {"blocking": True}),
        Edge(IDLE_V1, RequestMessageIds, IDS_NON_BLOCKING_V1, {"blocking": False}),
        Edge(IDLE_V1, RequestMessages, MESSAGES_V1),
        Edge(IDS_BLOCKING_V1, ReplyMessageIds, IDLE_V1),
        Edge(IDS_BLOCKING_V1, Done, DONE),
        Edge(IDS_NON_BLOCKING_V1, ReplyMessageIds, IDLE_V1),
        Edge(MESSAGES_V1, ReplyMessages, IDLE_V1),
    ),
    pipelined={IDS_NON_BLOCKING_V1: IDLE_V1, MESSAGES_V1: IDLE_V1},
)

SUBMISSION_V2 = ProtocolSpec(
    name="MessageSubmission version 2",
    initial=IDLE_V2,
    edges=(
        Edge(IDLE_V2, RequestMessageIds, IDS_BLOCKING_V2, {"blocking": True}),
        Edge(IDLE_V2, RequestMessageIds, IDS_NON_BLOCKING_V2, {"blocking": False}),
        Edge(IDLE_V2, RequestMessages, MESSAGES_V2),
        Edge(IDLE_V2, Done, DONE),
        Edge(IDS_BLOCKING_V2, ReplyMessageIds, IDLE_V2),
        Edge(IDS_BLOCKING_V2, ReplyNoMessageIds, IDLE_V2),
        Edge(IDS_NON_BLOCKING_V2, ReplyMessageIds, IDLE_V2),
        Edge(MESSAGES_V2, ReplyMessages, IDLE_V2),
    ),
    pipelined={IDS_NON_BLOCKING_V2: IDLE_V2, MESSAGES_V2: IDLE_V2},
)

SEED_SUBMISSION = SUBMISSION_V1.with_states(
    "MessageSubmission seed",
    {
        INIT: SEED_INIT,
        IDLE_V1: SEED_IDLE,
        IDS_BLOCKING_V1: SEED_IDS_BLOCKING,
        IDS_NON_BLOCKING_V1: SEED_IDS_NON_BLOCKING,
        MESSAGES_V1: SEED_MESSAGES,
        DONE: SEED_DONE,
    },
    Edge(SEED_IDLE, Done, SEED_DONE),
    Edge(SEED_IDS_NON_BLOCKING, Done, SEED_DONE),
)
