"""The DMQ messages inside protocol messages, and the checks that need no clock and no list of pools."""

from __future__ import annotations

from stagepost.dmq import validation as proof
from stagepost.dmq.inspection.following import CapturedMessage, CaptureLane
from stagepost.dmq.inspection.report import MessageFinding
from stagepost.dmq.local_notification import ReplyMessagesBlocking, ReplyMessagesNonBlocking
from stagepost.dmq.local_submission import SubmitMessage
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.submission import ReplyMessages

_CHECKS = (proof.check_id, proof.check_period, proof.check_certificate, proof.check_kes_signature)


def findings(
    said: CapturedMessage, lane: CaptureLane, *, check_signatures: bool
) -> tuple[MessageFinding, ...]:
    found = []
    searched = 0
    for message in _carried(said.message):
        # Each message kept its own bytes, so they stand in the item, one after the other.
        start = said.item.index(message.raw, searched)
        searched = start + len(message.raw)
        offset, _ = lane.place(said.base + start)
        found.append(_finding(message, offset, check_signatures))
    return tuple(found)


def elements(message: object) -> int:
    """Return the number of list elements that `message` keeps in memory."""
    names: tuple[str, ...] = getattr(message, "__struct_fields__", ())
    values = (getattr(message, name) for name in names)
    return sum(len(value) for value in values if isinstance(value, tuple))


def _carried(message: object) -> tuple[DmqMessage, ...]:
    match message:
        case SubmitMessage(DmqMessage() as submitted):
            return (submitted,)
        case ReplyMessages(messages) | ReplyMessagesBlocking(messages) | ReplyMessagesNonBlocking(messages):
            return messages
        case _:
            return ()


def _finding(message: DmqMessage, offset: int, check_signatures: bool) -> MessageFinding:
    faults: list[Rejected] = []
    if check_signatures:
        faults = [fault for check in _CHECKS if (fault := check(message)) is not None]
    return MessageFinding(
        offset,
        message.message_id,
        message.pool_id,
        len(message.raw),
        message.kes_period,
        message.kes_evolution,
        message.expires_at,
        message.layout.value,
        tuple(faults),
    )
