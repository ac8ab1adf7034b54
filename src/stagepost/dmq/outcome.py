"""The outcome of a submitted message: values that validation, mempool and local submission share."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from stagepost.dmq.local_submission import AlreadyReceived, Expired, Invalid, Other, RejectReason
from stagepost.errors import ErrorCode


class Reason(StrEnum):
    """Reason of a rejection, in the four words of the protocol."""

    INVALID = "invalid"
    ALREADY_RECEIVED = "already received"
    EXPIRED = "expired"
    OTHER = "other"


TRANSIENT_CODES = frozenset(
    {
        ErrorCode.MSG_TOO_FREQUENT,
        ErrorCode.NOT_READY,
        ErrorCode.QUEUE_FULL,
        ErrorCode.STORAGE_UNAVAILABLE,
    }
)
"""Codes after which the same message may be accepted later; a sender waits and tries again."""

_REASONS_WITH_A_TAG = {
    ErrorCode.MSG_DUPLICATE: Reason.ALREADY_RECEIVED,
    ErrorCode.MSG_EXPIRED: Reason.EXPIRED,
}
# Nodes written in Haskell put this word into their one transient refusal; their text is opaque otherwise.
_TOO_FREQUENT_ELSEWHERE = "TooFrequent"


class Accepted(msgspec.Struct, frozen=True):
    """Outcome of a message that the node holds."""


class Rejected(msgspec.Struct, frozen=True):
    """Outcome of a refused message. `reason` and `text` go over the wire; `code` is ours, and None if the
    peer gave none."""

    reason: Reason
    text: str = ""
    code: ErrorCode | None = None
    retry_after_s: float | None = None
    gives_way: bool = False
    """The message waits for others of its own pool, so a crowded relay may forget it."""

    @property
    def is_transient(self) -> bool:
        return self.code in TRANSIENT_CODES or _TOO_FREQUENT_ELSEWHERE in self.text


Outcome: TypeAlias = Accepted | Rejected

ACCEPTED = Accepted()


def rejected(
    code: ErrorCode, text: str, retry_after_s: float | None = None, *, gives_way: bool = False
) -> Rejected:
    """Return a rejection of ours. Where the wire carries a text, it begins with the code."""
    reason = _REASONS_WITH_A_TAG.get(code)
    if reason is None:
        reason = Reason.OTHER if code in TRANSIENT_CODES else Reason.INVALID
    return Rejected(reason, f"{code}: {text}", code, retry_after_s, gives_way)


def to_wire(outcome: Rejected) -> RejectReason:
    match outcome.reason:
        case Reason.ALREADY_RECEIVED:
            return AlreadyReceived()
        case Reason.EXPIRED:
            return Expired()
        case Reason.INVALID:
            return Invalid(outcome.text)
        case Reason.OTHER:
            return Other(outcome.text)


def from_wire(reason: RejectReason) -> Rejected:
    match reason:
        case AlreadyReceived():
            return Rejected(Reason.ALREADY_RECEIVED, code=ErrorCode.MSG_DUPLICATE)
        case Expired():
            return Rejected(Reason.EXPIRED, code=ErrorCode.MSG_EXPIRED)
        case Invalid(text):
            return Rejected(Reason.INVALID, text, _code_in(text))
        case Other(text):
            return Rejected(Reason.OTHER, text, _code_in(text))


def _code_in(text: str) -> ErrorCode | None:
    """Return the code at the beginning of a Stagepost node's text; None in texts of other nodes."""
    first = text.partition(":")[0]
    return ErrorCode(first) if first in ErrorCode.__members__ else None
