"""The handlers that a receiver's program writes, the messages that they get, and their two ways to refuse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from stagepost.delivery.errors import ErrConfig
from stagepost.delivery.status import TRANSIENT_REASONS, NackReason

PERMANENT_REASONS = tuple(
    reason for reason in NackReason if reason is not NackReason.NONE and reason not in TRANSIENT_REASONS
)
"""Reasons that a handler may give for a refusal for good."""


class Reject(Exception):
    """Refusal by a handler for good: another attempt is of no use. `Reject("sold out")` and `Reject(reason, "sold out")`
    tell the sender the text, cut after 200 bytes; without a reason it is INVALID.
    """

    def __init__(self, reason: NackReason | int | str = NackReason.INVALID, text: str = "") -> None:
        if isinstance(reason, str):
            text = text or reason
            reason = NackReason.INVALID
        try:
            known = NackReason(reason)
        except ValueError:
            raise ErrConfig(
                f"{reason!r} is not a reason to refuse a message",
                advice="give one of " + ", ".join(str(one) for one in PERMANENT_REASONS),
                found=reason,
            ) from None
        if known is NackReason.NONE or known in TRANSIENT_REASONS:
            raise ErrConfig(
                f"{known.name} is not a valid reason to refuse a message permanently",
                advice="raise Busy if the sender may try again",
                found=known,
            )
        super().__init__(text or known.name)
        self.reason = known
        self.text = text


class Busy(Exception):
    """Refusal by a handler for now. `retry_after` is in seconds; senders wait at most 30."""

    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


class Message(msgspec.Struct, frozen=True):
    """A message for a handler. `sender` is authenticated; `message_id` has 64 hex characters, the same for every copy.

    `maybe_duplicate`: it is older than what is remembered here, so it may have been handled before. `traceparent` is the
    W3C trace context of the sender, to be continued here; empty if there is none.
    """

    topic: str
    data: bytes
    message_id: str
    sender: str
    attempt: int
    created_ms: int
    maybe_duplicate: bool
    traceparent: str = ""


Handler: TypeAlias = Callable[[Message], Awaitable[object] | object]
