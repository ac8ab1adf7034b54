"""What a puller may do with a peer, one at a time; and why it may end with one."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stagepost.dmq.message import DmqMessage
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import MessageId


class Submit(msgspec.Struct, frozen=True, gc=False):
    """Have these judged; `PeerPulling.submitted` wants to know."""

    messages: tuple[DmqMessage, ...]


class FetchMessages(msgspec.Struct, frozen=True, gc=False):
    """`PeerPulling.messages_arrived` wants to know. Need not be answered before the next action."""

    ids: tuple[MessageId, ...]


class AskIds(msgspec.Struct, frozen=True, gc=False):
    """`PeerPulling.ids_arrived` wants to know. Need not be answered before the next action."""

    blocking: bool
    acknowledged: int
    requested: int


class Sleep(msgspec.Struct, frozen=True, gc=False):
    """Nothing to do before `until`, or before something is heard; None: there is no timer."""

    until: float | None


Action: TypeAlias = Submit | FetchMessages | AskIds | Sleep


class PeerFault(msgspec.Struct, frozen=True, gc=False):
    """Why the connection must end."""

    code: ErrorCode
    text: str
    message_id: MessageId
