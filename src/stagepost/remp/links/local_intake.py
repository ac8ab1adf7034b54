"""The protocol between a program of this machine and a full node: external messages in, their statuses out.

A program asks for the statuses of one message from a position on. The node answers when there are more, or
when the time that the program gave is over: a slow program holds nobody up, and the node keeps nothing for
it.
"""

from __future__ import annotations

import msgspec

from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.layout import ArrayLayout, ByteString, Layout, ListForm, ListOf, Text, Unsigned
from stagepost.remp.message import MESSAGE_BYTES_MAX
from stagepost.remp.receipts.receipt import RECEIPT_BYTES_MAX

ID_BYTES = 32
READ_BYTES_MAX = 2 * (MESSAGE_BYTES_MAX + 1)
"""Bytes: a message that is too large is refused in words; one larger than this ends the connection."""

WITHIN_MS_MAX = 60_000
TELLING_RECORDS_MAX = 64
TELLING_BYTES_MAX = 131_072
"""Bytes of the statuses in one answer, at most; a single status always fits."""

VERDICT_BYTES_MAX = 65_536
PROOF_BYTES_MAX = 1_048_576
"""Bytes of a proof file that a program is told, at most; `stagepost prove` reads a larger one from the data folder."""

CODE_BYTES_MAX = 64
TEXT_BYTES_MAX = 4_096
HEADER_BYTES_MAX = 256
_ENVELOPE_BYTES_MAX = 64


# Messages


class SubmitExternalMessage(msgspec.Struct, frozen=True):
    message: bytes


class MessageTaken(msgspec.Struct, frozen=True):
    """`is_new` is False for a message that is in processing, or final, already."""

    message_id: bytes
    is_new: int


class MessageRefused(msgspec.Struct, frozen=True):
    """`message_id` is empty if the bytes are not a message."""

    message_id: bytes
    code: str
    text: str
    advice: str


class FollowMessage(msgspec.Struct, frozen=True):
    """`after`: number of statuses that the program knows already. `within_ms` 0 asks for those that there are
    now.
    """

    message_id: bytes
    after: int
    within_ms: int


class ToldStatus(msgspec.Struct, frozen=True):
    """A record of the topic of statuses; a header that it lacks is empty."""

    value: bytes
    arrived_ms: int
    session: str
    dmq_id: str
    delivery_id: str


class TellStatuses(msgspec.Struct, frozen=True):
    """`next_after` goes into the next question. `verdict` is the row of the message as JSON; empty if nothing counts."""

    statuses: tuple[ToldStatus, ...]
    next_after: int
    as_of_ms: int
    verdict: bytes


class AskProof(msgspec.Struct, frozen=True):
    message_id: bytes


class TellProof(msgspec.Struct, frozen=True):
    """`proof` is the content of a proof file; empty as long as the end of the message is not known."""

    proof: bytes


class Done(msgspec.Struct, frozen=True):
    """The program asks nothing more."""


# Layouts

_ID = ByteString(ID_BYTES, ID_BYTES)
_HEADER = Text(HEADER_BYTES_MAX)
_STATUS = ArrayLayout(
    ToldStatus,
    (
        ("value", ByteString(0, RECEIPT_BYTES_MAX)),
        ("arrived_ms", Unsigned(63)),
        ("session", _HEADER),
        ("dmq_id", _HEADER),
        ("delivery_id", _HEADER),
    ),
)
DIALECT = Dialect(
    "local intake",
    (
        Layout(SubmitExternalMessage, 0, (("message", ByteString(0, READ_BYTES_MAX)),)),
        Layout(MessageTaken, 1, (("message_id", _ID), ("is_new", Unsigned(1)))),
        Layout(
            MessageRefused,
            2,
            (
                ("message_id", ByteString(0, ID_BYTES)),
                ("code", Text(CODE_BYTES_MAX)),
                ("text", Text(TEXT_BYTES_MAX)),
                ("advice", Text(TEXT_BYTES_MAX)),
            ),
        ),
        Layout(FollowMessage, 3, (("message_id", _ID), ("after", Unsigned(32)), ("within_ms", Unsigned(32)))),
        Layout(
            TellStatuses,
            4,
            (
                ("statuses", ListOf(_STATUS, ListForm.DEFINITE, TELLING_RECORDS_MAX)),
                ("next_after", Unsigned(32)),
                ("as_of_ms", Unsigned(63)),
                ("verdict", ByteString(0, VERDICT_BYTES_MAX)),
            ),
        ),
        Layout(Done, 5),
        Layout(AskProof, 6, (("message_id", _ID),)),
        Layout(TellProof, 7, (("proof", ByteString(0, PROOF_BYTES_MAX)),)),
    ),
)

# States

IDLE = State(
    "Idle",
    Role.CLIENT,
    timeout_s=300,
    message_bytes_max=READ_BYTES_MAX + _ENVELOPE_BYTES_MAX,
    items_max=8,
)
SUBMITTED = State(
    "Submitted",
    Role.SERVER,
    timeout_s=30,
    message_bytes_max=2 * TEXT_BYTES_MAX + CODE_BYTES_MAX + ID_BYTES + _ENVELOPE_BYTES_MAX,
    items_max=8,
)
FOLLOWING = State(
    "Following",
    Role.SERVER,
    timeout_s=WITHIN_MS_MAX / 1_000 + 30,
    message_bytes_max=TELLING_BYTES_MAX + VERDICT_BYTES_MAX + _ENVELOPE_BYTES_MAX,
    items_max=6 * TELLING_RECORDS_MAX + 8,
)
PROVING = State(
    "Proving",
    Role.SERVER,
    timeout_s=30,
    message_bytes_max=PROOF_BYTES_MAX + _ENVELOPE_BYTES_MAX,
    items_max=8,
)
DONE = State("Done", speaker=None)

# Spec

LOCAL_INTAKE = ProtocolSpec(
    name="LocalExternalMessages",
    initial=IDLE,
    edges=(
        Edge(IDLE, SubmitExternalMessage, SUBMITTED),
        Edge(IDLE, FollowMessage, FOLLOWING),
        Edge(IDLE, AskProof, PROVING),
        Edge(IDLE, Done, DONE),
        Edge(SUBMITTED, MessageTaken, IDLE),
        Edge(SUBMITTED, MessageRefused, IDLE),
        Edge(FOLLOWING, TellStatuses, IDLE),
        Edge(FOLLOWING, MessageRefused, IDLE),
        Edge(PROVING, TellProof, IDLE),
        Edge(PROVING, MessageRefused, IDLE),
    ),
)
