"""The messages for one peer: its place in the mempool, and the messages announced to it that it has not
acknowledged.

`OfferedMessages` serves a supplier without a mempool: a bounded queue of messages, each gone once
acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Protocol

from stagepost.dmq.mempool import MempoolEntry, MessageKey
from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.outcome import ACCEPTED, Accepted, Rejected, rejected
from stagepost.dmq.submission import MESSAGES_BYTES_MAX, MessageIdAndSize
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import MessageId

LIST_HEADS_BYTES = 16
"""Bytes around the messages in a reply."""


class MessagesHeld(Protocol):
    """Mempool as a supplier needs it."""

    @property
    def last_index(self) -> int: ...

    def after(self, index: int, count_max: int, layouts: Collection[MessageLayout]) -> list[MempoolEntry]: ...

    def get(self, key: MessageKey) -> MempoolEntry | None: ...


class SupplyCore:
    """Core for one peer, which sees messages of `layouts` only. The caller has checked the window's rules on
    every request."""

    def __init__(self, held: MessagesHeld, layouts: Collection[MessageLayout]) -> None:
        self._held = held
        self._layouts = layouts
        self._cursor = 0
        self._announced: deque[MessageKey] = deque()
        self._keys: dict[MessageId, MessageKey] = {}

    @property
    def cursor(self) -> int:
        """Index up to which every message was announced, or is not for this peer."""
        return self._cursor

    def acknowledge(self, count: int) -> None:
        for _ in range(count):
            _, message_id = self._announced.popleft()
            del self._keys[message_id]

    def next_ids(self, count_max: int) -> tuple[MessageIdAndSize, ...]:
        """Return the next ids to announce, in order of arrival."""
        entries = self._held.after(self._cursor, count_max, self._layouts)
        ids: list[MessageIdAndSize] = []
        for entry in entries:
            message = entry.message
            if message.message_id in self._keys:
                # Two layouts may share an id. While the peer may request one, it must not learn of the other.
                return tuple(ids)
            self._cursor = entry.index
            self._announced.append(message.key)
            self._keys[message.message_id] = message.key
            ids.append(MessageIdAndSize(message.message_id, len(message.raw)))
        if len(entries) < count_max:
            # The rest is not for this peer, and need not be looked at again.
            self._cursor = max(self._cursor, self._held.last_index)
        return tuple(ids)

    def messages(self, ids: Sequence[MessageId]) -> tuple[DmqMessage, ...]:
        """Return the requested messages that have not expired meanwhile, as many as a reply may hold."""
        found: list[DmqMessage] = []
        room_bytes = MESSAGES_BYTES_MAX - LIST_HEADS_BYTES
        for message_id in dict.fromkeys(ids):
            entry = self._held.get(self._keys[message_id])
            if entry is None:
                continue
            room_bytes -= len(entry.message.raw)
            if room_bytes < 0:
                break
            found.append(entry.message)
        return tuple(found)


class OfferedMessages:
    """Queue in the order in which messages were offered. Times are Unix seconds."""

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
        """Drop expired messages that were not announced: an announced id keeps its place until it is
        acknowledged."""
        for message_id in [each for each in self._waiting if self._messages[each].expires_at <= now]:
            self._waiting.remove(message_id)
            del self._messages[message_id]
