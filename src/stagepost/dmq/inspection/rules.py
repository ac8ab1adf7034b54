"""Rules between the messages of one instance, which a state graph cannot hold (the window and the cookies),
and names for broken rules.

People can search for a name; the error's code alone is too coarse.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from stagepost.dmq import submission
from stagepost.dmq.announcements import Announcements, WindowRules
from stagepost.dmq.message import COMPACT_KES_SIGNATURE_BYTES
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.errors import ErrorCode, RemoteProtocolError, StagepostError, WireRule
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.statemachine.spec import ProtocolSpec, Role, State

_SIDES = {Role.CLIENT: "initiator", Role.SERVER: "responder"}

_RULES_BY_CODE = {
    ErrorCode.CBOR_LIMIT: WireRule.MESSAGE_TOO_LONG,
    ErrorCode.PROTOCOL_STATE: WireRule.NOT_IN_THIS_STATE,
}
"""Rules of errors that name none."""

# Offsets in errors count from the message; the report gives the place in the capture instead.
_PLACES_IN_TEXT = re.compile(r" \(offset \d+\)|, which begins at offset \d+")


@dataclass(frozen=True, slots=True)
class UnplacedFault:
    """Broken rule before its place in the capture is known. `at` counts bytes of the lane."""

    at: int
    code: ErrorCode
    rule: str
    text: str
    allowed: str
    state: str = ""
    message_at: int | None = None


def fault_of(error: StagepostError, *, base: int, allowed: str, state: str) -> UnplacedFault:
    """Return the fault that `error` describes in the message that begins at lane offset `base`."""
    rule = _rule_of(error)
    # A message over its limit is wrong as a whole; the limit itself may lie after the end of the capture.
    at = base if rule is WireRule.MESSAGE_TOO_LONG else base + (error.offset or 0)
    text = _PLACES_IN_TEXT.sub("", error.text)
    if error.advice:
        text = f"{text}; {error.advice}"
    return UnplacedFault(at, error.code, rule, text, allowed, state, message_at=base)


def _rule_of(error: StagepostError) -> WireRule:
    if error.code is ErrorCode.CBOR_INVALID and error.found == COMPACT_KES_SIGNATURE_BYTES and error.advice:
        return WireRule.COMPACT_SUM_SIGNATURE
    return error.rule or _RULES_BY_CODE.get(error.code, WireRule.MALFORMED)


def may_say(spec: ProtocolSpec, state: State) -> str:
    """Return which side may send which messages in `state`, as text."""
    if state.speaker is None:
        return "nothing: the conversation is over"
    names = dict.fromkeys(edge.message.__name__ for edge in spec.edges_from(state))
    return f"{_SIDES[state.speaker]}: {' or '.join(names)}"


def side(role: Role) -> str:
    return _SIDES[role]


_COOKIE_AT = 2  # behind the message's head and tag, one byte each


class InstanceRules(Protocol):
    def heard(self, message: object, base: int, state: str) -> UnplacedFault | None:
        """Return the rule that `message`, which begins at lane offset `base`, breaks; None if it breaks none."""


def rules_for(profile: Profile, protocol: MiniProtocol) -> InstanceRules | None:
    match protocol:
        case MiniProtocol.MESSAGE_SUBMISSION:
            return _WindowRule(profile.window)
        case MiniProtocol.KEEP_ALIVE:
            return _CookieRule()
        case _:
            return None


class _WindowRule:
    def __init__(self, rules: WindowRules) -> None:
        self._limit = rules.ids_unacknowledged_max
        self._window = Announcements(rules)

    def heard(self, message: object, base: int, state: str) -> UnplacedFault | None:
        window = self._window
        # Read before the message changes the window; the referee has already checked that a request precedes
        # an answer.
        outstanding, due = window.unacknowledged, window.ids_due
        match message:
            case submission.RequestMessageIds(blocking, acknowledged, requested):
                violation = window.request_ids(
                    blocking=blocking, acknowledged=acknowledged, requested=requested
                )
                allowed = self._allowed_request(acknowledged, outstanding, due)
            case submission.ReplyMessageIds(ids):
                violation = window.reply_ids(ids)
                allowed = "at most as many ids as were requested; after a blocking request at least one"
            case submission.ReplyNoMessageIds():
                window.reply_no_ids()
                return None
            case submission.RequestMessages(wanted):
                violation = window.request_messages(wanted)
                allowed = f"any of the {outstanding} ids that are announced and not acknowledged"
            case submission.ReplyMessages(messages):
                sizes = [MessageIdAndSize(each.message_id, len(each.raw)) for each in messages]
                violation = window.reply_messages(sizes)
                allowed = "some or all of the requested messages, each of its announced size"
            case _:
                return None
        if violation is None:
            return None
        return UnplacedFault(base, violation.code, violation.rule, violation.text, allowed, state, base)

    def _allowed_request(self, acknowledged: int, outstanding: int, due: int) -> str:
        if acknowledged > outstanding:
            return f"acknowledge 0 to {outstanding}" if outstanding else "acknowledge nothing"
        left = outstanding - acknowledged + due
        kind = "non-blocking" if left else "blocking"
        return f"a {kind} request for 1 to {max(self._limit - left, 0)} ids"


class _CookieRule:
    def __init__(self) -> None:
        self._request: keep_alive.KeepAlive | None = None

    def heard(self, message: object, base: int, state: str) -> UnplacedFault | None:
        if isinstance(message, keep_alive.KeepAlive):
            self._request = message
        elif isinstance(message, keep_alive.KeepAliveResponse) and self._request is not None:
            try:
                keep_alive.check_cookie(self._request, message)
            except RemoteProtocolError as error:
                fault = fault_of(error, base=base, allowed=f"cookie {self._request.cookie}", state=state)
                return UnplacedFault(
                    base + _COOKIE_AT, fault.code, fault.rule, fault.text, fault.allowed, state, base
                )
        return None
