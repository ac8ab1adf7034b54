"""Local message notification, node to client: a program asks its node for messages, waiting for them or not."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from stagepost.dmq.message import DmqMessage
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.framing import ITEMS_IN_NOTIFICATION_REPLY_MAX
from stagepost.ground.wire.layout import Boolean, Field, Layout, ListForm, ListOf

MESSAGES_ACCEPTED_MAX = 1_000
MESSAGES_SENT_MAX = 100
REPLY_BYTES_MAX = 4 * 1024 * 1024

HEADLESS_BLOCKING_REPLY = b"\x83\x02"
"""First bytes of a blocking reply of some servers: three elements announced, of which the third may be missing."""


# Messages


class RequestMessages(msgspec.Struct, frozen=True):
    blocking: bool


class ReplyMessagesNonBlocking(msgspec.Struct, frozen=True):
    messages: tuple[DmqMessage, ...]
    has_more: bool


class ReplyMessagesBlocking(msgspec.Struct, frozen=True):
    """Reply that is never empty: a blocking request waits until there are messages."""

    messages: tuple[DmqMessage, ...]


class ClientDone(msgspec.Struct, frozen=True):
    """End of the conversation."""


# Layouts


def dialect(form: ListForm, message: Field) -> Dialect:
    at_least_one = ListOf(message, form, MESSAGES_ACCEPTED_MAX, count_min=1)
    return Dialect(
        "local notification",
        (
            Layout(RequestMessages, 0, (("blocking", Boolean()),)),
            Layout(
                ReplyMessagesNonBlocking,
                1,
                (("messages", ListOf(message, form, MESSAGES_ACCEPTED_MAX)), ("has_more", Boolean())),
            ),
            Layout(
                ReplyMessagesBlocking,
                2,
                (("messages", at_least_one),),
                surplus=(("has_more", Boolean()),),
                surplus_may_be_missing=True,
            ),
            Layout(ClientDone, 3),
        ),
    )


# States

IDLE = State("Idle", Role.CLIENT)
BUSY_NON_BLOCKING = State(
    "BusyNonBlocking",
    Role.SERVER,
    message_bytes_max=REPLY_BYTES_MAX,
    items_max=ITEMS_IN_NOTIFICATION_REPLY_MAX,
)
BUSY_BLOCKING = replace(BUSY_NON_BLOCKING, name="BusyBlocking")
DONE = State("Done", speaker=None)

SEED_IDLE = replace(IDLE, id=1, timeout_s=300)
SEED_BUSY_NON_BLOCKING = replace(BUSY_NON_BLOCKING, id=2, timeout_s=10)  # the documents' "0 (immediate)"
SEED_BUSY_BLOCKING = replace(BUSY_BLOCKING, id=3)  # the documents' "0 (indefinite)"
SEED_DONE = replace(DONE, id=4, timeout_s=10)

# Specs

LOCAL_NOTIFICATION = ProtocolSpec(
    name="LocalMessageNotification",
    initial=IDLE,
    edges=(
        Edge(IDLE, RequestMessages, BUSY_NON_BLOCKING, {"blocking": False}),
        Edge(IDLE, RequestMessages, BUSY_BLOCKING, {"blocking": True}),
        Edge(IDLE, ClientDone, DONE),
        Edge(BUSY_NON_BLOCKING, ReplyMessagesNonBlocking, IDLE),
        Edge(BUSY_BLOCKING, ReplyMessagesBlocking, IDLE),
    ),
)

SEED_LOCAL_NOTIFICATION = LOCAL_NOTIFICATION.with_states(
    "LocalMessageNotification seed",
    {
        IDLE: SEED_IDLE,
        BUSY_NON_BLOCKING: SEED_BUSY_NON_BLOCKING,
        BUSY_BLOCKING: SEED_BUSY_BLOCKING,
        DONE: SEED_DONE,
    },
)
