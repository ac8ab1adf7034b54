"""What a validator's queue wants done: by the graph, by links to other validators, by links to full nodes."""

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
    """A full node that has sent the message later than others: it is to hear what they have heard, and where it stands now.
    `statuses` says it as if it were new, for those who do not remember what was said."""

    full_node: bytes
    message_id: bytes
    statuses: tuple[MessageStatus, ...]


Telling: TypeAlias = Tell | Introduce


class SpeakSoon(msgspec.Struct, frozen=True):
    """Records wait for the next block."""


class BroadcastBody(msgspec.Struct, frozen=True):
    """To every other member of the queue."""

    message_id: bytes
    body: bytes


class AskForBody(msgspec.Struct, frozen=True):
    """One member that must have it."""

    member: int
    message_id: bytes


QueueEffect: TypeAlias = Tell | Introduce | SpeakSoon | BroadcastBody | AskForBody
