"""Local message submission, node to client: a program submits a message to its node, which accepts or rejects
it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import msgspec

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.message_field import MalformedMessage, MessageField, SubmittedField
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.layout import Layout, Text, Union

REASON_TEXT_BYTES_MAX = 8_192


# Messages


class Invalid(msgspec.Struct, frozen=True):
    """Rejection for every fault without a reason of its own."""

    text: str


class AlreadyReceived(msgspec.Struct, frozen=True):
    """Rejection of a message that the node already holds."""


class Expired(msgspec.Struct, frozen=True):
    """Rejection of a message that has expired."""


class Other(msgspec.Struct, frozen=True):
    text: str


RejectReason: TypeAlias = Invalid | AlreadyReceived | Expired | Other


class SubmitMessage(msgspec.Struct, frozen=True):
    message: DmqMessage | MalformedMessage


class AcceptMessage(msgspec.Struct, frozen=True):
    """Acceptance: the message is in the node's mempool."""


class RejectMessage(msgspec.Struct, frozen=True):
    reason: RejectReason


class Done(msgspec.Struct, frozen=True):
    """End of the conversation."""


# Layouts


def dialect(message: MessageField) -> Dialect:
    text = Text(REASON_TEXT_BYTES_MAX)
    # Reasons 1 and 2 are written with one element; one library writes an empty text after them.
    reason = Union(
        (
            Layout(Invalid, 0, (("text", text),)),
            Layout(AlreadyReceived, 1, surplus=(("text", text),)),
            Layout(Expired, 2, surplus=(("text", text),)),
            Layout(Other, 3, (("text", text),)),
        )
    )
    return Dialect(
        "local submission",
        (
            Layout(SubmitMessage, 0, (("message", SubmittedField(message)),)),
            Layout(AcceptMessage, 1),
            Layout(RejectMessage, 2, (("reason", reason),)),
            Layout(Done, 3),
        ),
    )


# States

IDLE = State("Idle", Role.CLIENT)
BUSY = State("Busy", Role.SERVER)
DONE = State("Done", speaker=None)

SEED_IDLE = replace(IDLE, id=1, timeout_s=300)
SEED_BUSY = replace(BUSY, id=2, timeout_s=30)
SEED_DONE = replace(DONE, id=3, timeout_s=10)

# Specs

LOCAL_SUBMISSION = ProtocolSpec(
    name="LocalMessageSubmission",
    initial=IDLE,
    edges=(
        Edge(IDLE, SubmitMessage, BUSY),
        Edge(IDLE, Done, DONE),
        Edge(BUSY, AcceptMessage, IDLE),
        Edge(BUSY, RejectMessage, IDLE),
    ),
)

SEED_LOCAL_SUBMISSION = LOCAL_SUBMISSION.with_states(
    "LocalMessageSubmission seed", {IDLE: SEED_IDLE, BUSY: SEED_BUSY, DONE: SEED_DONE}
)
