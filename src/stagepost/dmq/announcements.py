"""The window of message submission: ids announced, outstanding and acknowledged.

These are the rules that a state graph cannot hold. Both sides run the same class on the messages they send
and receive; the caller knows who spoke and blames accordingly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Sized
from dataclasses import dataclass

import msgspec

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.errors import ErrorCode, LocalProtocolError
from stagepost.ground.identifiers import MessageId, abbreviated

IDS_UNACKNOWLEDGED_MAX = 132
IDS_REQUESTED_MAX = 33
SIZE_TOLERANCE_BYTES = 32


@dataclass(frozen=True, slots=True)
class WindowRules:
    """Rules in which profiles differ. The documents allow either kind of request at any fill, and an empty
    reply."""

    ids_unacknowledged_max: int = IDS_UNACKNOWLEDGED_MAX
    blocking_follows_fill: bool = True
    blocking_reply_may_be_empty: bool = False


class Violation(msgspec.Struct, frozen=True):
    """Broken rule: its name in running nodes' reports, the code that we print, and a description."""

    rule: str
    code: ErrorCode
    text: str


class Announcements:
    """Window of one submission instance. Each method returns the rule that was broken, or None after it has
    updated the window."""

    def __init__(self, rules: WindowRules | None = None) -> None:
        self._rules = rules or WindowRules()
        self._announced: deque[MessageId] = deque()
        self._sizes: dict[MessageId, int] = {}
        # A peer may announce an id twice; the id is available until the last announcement is acknowledged.
        self._announced_again: dict[MessageId, int] = {}
        self._ids_requests: deque[tuple[bool, int]] = deque()  # blocking, and how many were requested
        self._ids_due = 0
        self._messages_requests: deque[dict[MessageId, int]] = deque()  # the announced sizes

    @property
    def unacknowledged(self) -> int:
        return len(self._announced)

    @property
    def ids_due(self) -> int:
        """Number of ids that unanswered requests may still bring."""
        return self._ids_due

    def request_ids(self, *, blocking: bool, acknowledged: int, requested: int) -> Violation | None:
        violation = self._check_ids_request(blocking, acknowledged, requested)
        if violation is not None:
            return violation
        again = self._announced_again
        for _ in range(acknowledged):
            oldest = self._announced.popleft()
            if oldest not in again:
                del self._sizes[oldest]
            elif again[oldest] == 1:
                del again[oldest]
            else:
                again[oldest] -= 1
        self._ids_requests.append((blocking, requested))
        self._ids_due += requested
        return None

    def _check_ids_request(self, blocking: bool, acknowledged: int, requested: int) -> Violation | None:
        left = len(self._announced) - acknowledged
        if left < 0:
            text = f"{acknowledged} ids acknowledged, {len(self._announced)} are outstanding"
            return Violation("AckedTooManySigIds", ErrorCode.PROTOCOL_WINDOW, text)
        expected = left + self.ids_due
        would_be = expected + requested
        if would_be > self._rules.ids_unacknowledged_max:
            text = f"{would_be} ids would be outstanding, the limit is {self._rules.ids_unacknowledged_max}"
            return Violation("RequestedTooManySigIds", ErrorCode.PROTOCOL_WINDOW, text)
        if requested == 0 and (blocking or acknowledged == 0):
            kind = "blocking" if blocking else "non-blocking"
            return Violation(
                "RequestedNothing", ErrorCode.PROTOCOL_REQUEST, f"a {kind} request asks for 0 items"
            )
        if self._rules.blocking_follows_fill:
            if blocking and expected:
                text = f"blocking request while {expected} ids are outstanding"
                return Violation("RequestBlocking", ErrorCode.PROTOCOL_REQUEST, text)
            # Ids that an earlier request may still bring do not count: the supplier may send none of them.
            if not blocking and not left:
                text = "non-blocking request while no id is outstanding"
                return Violation("RequestNonBlocking", ErrorCode.PROTOCOL_REQUEST, text)
        return None

    def reply_ids(self, ids: Sequence[MessageIdAndSize]) -> Violation | None:
        _require_request(self._ids_requests)
        blocking, requested = self._ids_requests[0]
        if len(ids) > requested:
            text = f"{len(ids)} ids in a reply, {requested} were requested"
            return Violation("SigIdsNotRequested", ErrorCode.PROTOCOL_WINDOW, text)
        if blocking and not ids and not self._rules.blocking_reply_may_be_empty:
            text = "the reply to a blocking request is empty"
            return Violation("EmptyBlockingReply", ErrorCode.PROTOCOL_WINDOW, text)
        self._ids_requests.popleft()
        self._ids_due -= requested
        sizes = self._sizes
        for announced in ids:
            message_id = announced.message_id
            if message_id in sizes:
                self._announced_again[message_id] = self._announced_again.get(message_id, 0) + 1
            sizes[message_id] = announced.size_in_bytes
            self._announced.append(message_id)
        return None

    def reply_no_ids(self) -> None:
        """Record that the supplier answered the oldest request without any ids."""
        _require_request(self._ids_requests)
        _, requested = self._ids_requests.popleft()
        self._ids_due -= requested

    def request_messages(self, ids: Sequence[MessageId]) -> Violation | None:
        sizes: dict[MessageId, int] = {}
        for wanted in ids:
            size = self._sizes.get(wanted)
            if size is None:
                text = f"message {abbreviated(wanted)} was requested, which is not announced (any more)"
                return Violation("RequestedUnavailableSig", ErrorCode.PROTOCOL_WINDOW, text)
            sizes[wanted] = size
        self._messages_requests.append(sizes)
        return None

    def reply_whole_messages(self, messages: Sequence[DmqMessage]) -> Violation | None:
        """Do what `reply_messages` does, for a caller that has the messages themselves."""
        sizes = self._messages_requests[0]
        for message in messages:
            announced = sizes.get(message.message_id)
            if announced is None or abs(len(message.raw) - announced) > SIZE_TOLERANCE_BYTES:
                return self.reply_messages(
                    [MessageIdAndSize(message.message_id, len(message.raw)) for message in messages]
                )
        self._messages_requests.popleft()
        return None

    def reply_messages(self, messages: Sequence[MessageIdAndSize]) -> Violation | None:
        """Record a reply. `messages` holds the ids and real sizes of the messages in it; the supplier no
        longer has the requested ones that are missing."""
        _require_request(self._messages_requests)
        announced_sizes = self._messages_requests[0]
        for message in messages:
            announced = announced_sizes.get(message.message_id)
            if announced is None:
                text = f"message {abbreviated(message.message_id)} came, which was not requested"
                return Violation("SigNotRequested", ErrorCode.PROTOCOL_WINDOW, text)
            if abs(message.size_in_bytes - announced) > SIZE_TOLERANCE_BYTES:
                text = (
                    f"message {abbreviated(message.message_id)} has {message.size_in_bytes} bytes, "
                    f"announced were {announced}"
                )
                return Violation("TxSizeError", ErrorCode.PROTOCOL_SIZE, text)
        self._messages_requests.popleft()
        return None


def _require_request(requests: Sized) -> None:
    """Raise unless a request is unanswered: the referee lets no reply through without one."""
    if not requests:
        raise LocalProtocolError("a reply came where no request is under way", reason="ReplyWithoutRequest")
