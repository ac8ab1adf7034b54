"""The documents' options of message submission, for either side."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from stagepost.dmq.announcements import Violation, WindowRules
from stagepost.dmq.endpoints.message_queue import QUEUE_SIZE_MAX
from stagepost.dmq.endpoints.options import Authenticator, TtlValidator, given_limits, require_positive
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.profiles import DMQ_NODE, SEED, Profile
from stagepost.dmq.submission import INIT, MessageIdAndSize
from stagepost.dmq.validation import check_expiry, check_proof
from stagepost.errors import ProtocolError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.statemachine.spec import Role

RequestMessageIds = Callable[
    [bool, int, int], Sequence[MessageIdAndSize] | Awaitable[Sequence[MessageIdAndSize]]
]
"""Callback with (blocking, acknowledged, requested) that returns ids which were not announced before.

An asynchronous callback may wait for news when the request is blocking, and is cancelled when the wait gets too long.
A callback without ids returns an empty sequence, and is called again after `MessageSubmissionClient.notify`.
"""

ProvideMessages = Callable[[tuple[MessageId, ...]], Sequence[DmqMessage] | Awaitable[Sequence[DmqMessage]]]
"""Callback that returns those of the requested messages that the supplier still has."""


@dataclass(frozen=True, slots=True)
class MessageSubmissionConfig:
    """Options of message submission. A time-out of None is the profile's own; `math.inf` means no limit.

    The client, which supplies, calls `request_message_ids` and `request_messages`; without them it supplies
    the messages passed to `offer`, up to `max_queue_size`. The server, which pulls, makes the two checks and
    reports through `reply_message_ids`, `reply_messages` and `reject_message`.
    """

    request_message_ids: RequestMessageIds | None = None
    request_messages: ProvideMessages | None = None
    reply_message_ids: Callable[[tuple[MessageIdAndSize, ...]], object] | None = None
    reply_messages: Callable[[tuple[DmqMessage, ...]], object] | None = None
    reject_message: Callable[[DmqMessage, Rejected], object] | None = None
    max_queue_size: int = QUEUE_SIZE_MAX
    init_timeout_s: float | None = None  # 30 s in profile `seed`
    idle_timeout_s: float | None = None  # 300 s in profile `seed`
    message_ids_blocking_timeout_s: float | None = None  # 30 s in profile `seed`, 20 s in version 2
    messages_timeout_s: float | None = None  # 30 s in profile `seed`, 10 s elsewhere
    authenticator: Authenticator | None = check_proof  # None: the caller sees to it
    ttl_validator: TtlValidator | None = check_expiry  # None: the caller sees to it
    window: WindowRules | None = None  # None: the profile's own
    no_news_reply_s: float | None = (
        None  # a supplier without news answers after 17 s in version 2, 25 s in `seed`
    )
    unix_s: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        require_positive(
            max_queue_size=self.max_queue_size,
            init_timeout_s=self.init_timeout_s,
            idle_timeout_s=self.idle_timeout_s,
            message_ids_blocking_timeout_s=self.message_ids_blocking_timeout_s,
            messages_timeout_s=self.messages_timeout_s,
            no_news_reply_s=self.no_news_reply_s,
        )

    @property
    def checks_messages(self) -> bool:
        return self.authenticator is not None or self.ttl_validator is not None

    def window_for(self, talk: Conversation) -> WindowRules:
        return self.window or _profile_of(talk).window

    def patience_s(self, talk: Conversation) -> float | None:
        """Return the seconds for which a blocking request may stay unanswered; None means until there is
        news."""
        patience_s = self.no_news_reply_s or _profile_of(talk).no_news_reply_s
        return None if math.isinf(patience_s) else patience_s

    def apply_time_limits(self, talk: Conversation) -> None:
        """Set the time limits of `talk`. Call this before the first message."""
        limits_s = {
            "Idle": self.idle_timeout_s,
            "MessageIdsBlocking": self.message_ids_blocking_timeout_s,
            "Messages": self.messages_timeout_s,
        }
        if begins_with_init(talk):  # version 2 has no such state
            limits_s["Init"] = self.init_timeout_s
        talk.set_time_limits(given_limits(limits_s))


def begins_with_init(talk: Conversation) -> bool:
    """Return whether the instance begins with `Init`, as in version 1 and in the documents. Call this before
    the first message."""
    return talk.state.name == INIT.name


def _profile_of(talk: Conversation) -> Profile:
    # Only the documents number their states.
    return DMQ_NODE if talk.state.id is None else SEED


def is_pulling_side(profile: Profile, submission_version: int, role: Role) -> bool:
    """Return whether `role` pulls: the initiator in version 2, the responder in version 1 and in the
    documents."""
    if profile.follows_documents or submission_version == 1:
        return role is Role.SERVER
    return role is Role.CLIENT


def broken_rule(blame: type[ProtocolError], violation: Violation) -> ProtocolError:
    text = f"MessageSubmission: {violation.text} ({violation.rule})"
    return blame(text, code=violation.code, found=violation.rule)
