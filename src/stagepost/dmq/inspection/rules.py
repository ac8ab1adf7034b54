"""Rules between the messages of one instance, which a state graph cannot hold: the window, and the cookies."""

from __future__ import annotations

from typing import Protocol

from stagepost.dmq import submission
from stagepost.dmq.announcements import Announcements, WindowRules
from stagepost.dmq.inspection.faults import Fault, fault_of
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.errors import RemoteProtocolError
from stagepost.ground.net import keep_alive_protocol as keep_alive

_COOKIE_AT = 2  # behind the message's head and tag, one byte each


class InstanceRules(Protocol):
    def heard(self, message: object, base: int, state: str) -> Fault | None:
        """What `message`, which begins at lane offset `base`, breaks."""


def rules_for(profile: Profile, protocol: MiniProtocol) -> InstanceRules | None:
    match protocol:
        case MiniProtocol.MESSAGE_SUBMISSION:
            return _WindowKept(profile.window)
        case MiniProtocol.KEEP_ALIVE:
            return _CookiesReturned()
        case _:
            return None


class _WindowKept:
    def __init__(self, rules: WindowRules) -> None:
        self._limit = rules.ids_unacknowledged_max
        self._window = Announcements(rules)

    def heard(self, message: object, base: int, state: str) -> Fault | None:
        window = self._window
        # Worked out before the message changes the window; the referee has already seen that it is an answer.
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
        return Fault(base, violation.code, violation.rule, violation.text, allowed, state, base)

    def _allowed_request(self, acknowledged: int, outstanding: int, due: int) -> str:
        if acknowledged > outstanding:
            return f"acknowledge 0 to {outstanding}" if outstanding else "acknowledge nothing"
        left = outstanding - acknowledged + due
        kind = "non-blocking" if left else "blocking"
        return f"a {kind} request for 1 to {max(self._limit - left, 0)} ids"


class _CookiesReturned:
    def __init__(self) -> None:
        self._request: keep_alive.KeepAlive | None = None

    def heard(self, message: object, base: int, state: str) -> Fault | None:
        if isinstance(message, keep_alive.KeepAlive):
            self._request = message
        elif isinstance(message, keep_alive.KeepAliveResponse) and self._request is not None:
            try:
                keep_alive.check_cookie(self._request, message)
            except RemoteProtocolError as error:
                fault = fault_of(error, base=base, allowed=f"cookie {self._request.cookie}", state=state)
                return Fault(
                    base + _COOKIE_AT, fault.code, fault.rule, fault.text, fault.allowed, state, base
                )
        return None
