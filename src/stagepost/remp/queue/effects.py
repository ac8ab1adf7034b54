"""Effects of a validator's queue: requests to the graph, to the links to other validators, and to full nodes."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stagepost.remp.receipts.message_status import MessageStatus


class Tell(msgspec.Struct, frozen=True):
    """A receipt for one full node, to be dated and signed when it is sent."""

    full_node: bytes
    message_id: bytes
    status: MessageStatus


class Introduce(msgspec.Struct, frozen=True):
    """Report the state of a message to a full node that sent it later than others did.

    The full node is to hear what the others have heard. `statuses` describe the present state as if the
    message were new, for a validator that no longer remembers what it reported earlier.
    """

    full_node: bytes
    message_id: bytes
    statuses: tuple[MessageStatus, ...]


Telling: TypeAlias = Tell | Introduce


class SpeakSoon(msgspec.Struct, frozen=True):
    """Records wait for the next block."""


class BroadcastBody(msgspec.Struct, frozen=True):
    """Send the body to every other member of the queue."""

    message_id: bytes
    body: bytes


class AskForBody(msgspec.Struct, frozen=True):
    """Ask `member`, which announced the message, for its body."""

    member: int
    message_id: bytes


class AnswerChallenge(msgspec.Struct, frozen=True):
    """Answer with the newest link of our receipts of the message in the session: a member challenged us."""

    session_id: bytes
    message_id: bytes


QueueEffect: TypeAlias = Tell | Introduce | SpeakSoon | BroadcastBody | AskForBody | AnswerChallenge
