"""Names for broken rules, so that people can search for them; the error's code alone is too coarse."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stagepost.dmq.message import COMPACT_KES_SIGNATURE_BYTES
from stagepost.errors import ErrorCode, StagepostError
from stagepost.ground.statemachine.spec import ProtocolSpec, Role, State

OUT_OF_TURN = "OutOfTurn"
NOT_IN_THIS_STATE = "NotInThisState"
MESSAGE_TOO_LONG = "MessageTooLong"

_SIDES = {Role.CLIENT: "initiator", Role.SERVER: "responder"}

# Errors say in words what was wrong; the first phrase that occurs in the text names the rule.
_RULES_BY_CODE = {
    ErrorCode.CBOR_LIMIT: (
        ("nesting depth", "TooDeep"),
        ("number of items", "TooManyItems"),
        ("the length of", "ListTooLong"),
        ("", MESSAGE_TOO_LONG),
    ),
    ErrorCode.CBOR_INVALID: (
        ("a place in this protocol", "ForbiddenType"),
        ("no place in this protocol", "ForbiddenType"),
        ("longer than needed", "LongerThanNeeded"),
        ("older layout", "OlderMessageLayout"),
        ("no message of", "UnknownMessage"),
        ("is none of its forms", "UnknownMessage"),
        ("at least", "EmptyBlockingReply"),
        ("elements, expected", "WrongElementCount"),
        ("bytes, expected", "WrongLength"),
        ("a definite one is required", "IndefiniteForm"),
        ("bits hold", "OutOfRange"),
        ("allowed are", "OutOfRange"),
        ("expected", "WrongType"),
        ("not UTF-8", "NotUtf8"),
        ("left over", "LeftoverBytes"),
        ("", "Malformed"),
    ),
    ErrorCode.MSG_BODY_SIZE: (("", "BodySize"),),
    ErrorCode.PROTOCOL_STATE: (
        ("turn", OUT_OF_TURN),
        ("cannot be pipelined", "NotPipelined"),
        ("cookie", "CookieMismatch"),
        ("", NOT_IN_THIS_STATE),
    ),
    ErrorCode.CBOR_TRUNCATED: (("", "Malformed"),),
}
# Offsets in errors count from the message; the report gives the place in the capture instead.
_PLACES_IN_TEXT = re.compile(r" \(offset \d+\)|, which begins at offset \d+")


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule before its place in the capture is known. `at` counts bytes of the lane."""

    at: int
    code: ErrorCode
    rule: str
    text: str
    allowed: str
    state: str = ""
    message_at: int | None = None


def fault_of(error: StagepostError, *, base: int, allowed: str, state: str) -> Fault:
    """What `error` says of the message that begins at lane offset `base`."""
    rule = _rule_of(error)
    # A message over its limit is wrong as a whole; the limit itself may lie behind the end of the capture.
    at = base if rule == MESSAGE_TOO_LONG else base + (error.offset or 0)
    text = _PLACES_IN_TEXT.sub("", error.text)
    if error.advice:
        text = f"{text}; {error.advice}"
    return Fault(at, error.code, rule, text, allowed, state, message_at=base)


def _rule_of(error: StagepostError) -> str:
    if error.code is ErrorCode.CBOR_INVALID and error.found == COMPACT_KES_SIGNATURE_BYTES and error.advice:
        return "CompactSumSignature"
    phrases = _RULES_BY_CODE.get(error.code, (("", "Malformed"),))
    return next(rule for phrase, rule in phrases if phrase in error.text)


def may_say(spec: ProtocolSpec, state: State) -> str:
    """Who may say what in `state`."""
    if state.speaker is None:
        return "nothing: the conversation is over"
    names = dict.fromkeys(edge.message.__name__ for edge in spec.edges_from(state))
    return f"{_SIDES[state.speaker]}: {' or '.join(names)}"


def side(role: Role) -> str:
    return _SIDES[role]
