"""Messages that wait to be pulled by one peer, for a supplier without a mempool: bounded, gone once acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import ACCEPTED, Accepted, Rejected, rejected
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import MessageId


class OfferedMessages:
    """In the order in which they were offered. Times are Unix seconds."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._waiting: deque[MessageId] = deque()
        self._announced: deque[MessageId] = deque()
        self._messages: dict[MessageId, DmqMessage] = {}

    def __len__(self) -> int:
        return len(self._messages)

    def offer(self, message: DmqMessage, now: float) -> Accepted | Rejected:
        if message.message_id in self._messages:
            return rejected(ErrorCode.MSG_DUPLICATE, "this message is offered already")
        if len(self._messages) >= self._count_max:
            self._drop_expired(now)
        if len(self._messages) >= self._count_max:
            return rejected(ErrorCode.QUEUE_FULL, f"{self._count_max} messages are offered already")
        self._messages[message.message_id] = message
        self._waiting.append(message.message_id)
        return ACCEPTED

    def acknowledge(self, count: int) -> None:
        for _ in range(count):
            del self._messages[self._announced.popleft()]

    def next_ids(self, count_max: int, now: float) -> tuple[MessageIdAndSize, ...]:
        self._drop_expired(now)
        ids = [self._waiting.popleft() for _ in range(min(count_max, len(self._waiting)))]
        self._announced.extend(ids)
        return tuple(MessageIdAndSize(each, len(self._messages[each].raw)) for each in ids)

    def messages(self, ids: Sequence[MessageId], now: float) -> tuple[DmqMessage, ...]:
        found = (self._messages.get(message_id) for message_id in dict.fromkeys(ids))
        return tuple(message for message in found if message is not None and message.expires_at > now)

    def _drop_expired(self, now: float) -> None:
        """Only what was not announced: an announced id keeps its place until it is acknowledged."""
        for message_id in [each for each in self._waiting if self._messages[each].expires_at <= now]:
            self._waiting.remove(message_id)
            del self._messages[message_id]
