"""Messages that wait for one reader: bounded, in order of arrival, without expired ones."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.outcome import Rejected, rejected
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import MessageId

QUEUE_SIZE_MAX = 100
"""Messages, at most, that an endpoint without a node behind it keeps, as the documents say."""


class MessageQueue:
    """`MessageFeed` for a notification server without a node: a queue from which each message is taken once."""

    def __init__(self, count_max: int, unix_s: Callable[[], float]) -> None:
        self._count_max = count_max
        self._unix_s = unix_s
        self._waiting: OrderedDict[tuple[MessageLayout, MessageId], DmqMessage] = OrderedDict()
        self._is_filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, message: DmqMessage) -> Rejected | None:
        """Queue the message; return None, or the reason why it cannot wait here."""
        if message.key in self._waiting:
            return rejected(ErrorCode.MSG_DUPLICATE, "this message waits here already")
        if len(self._waiting) >= self._count_max:
            self._drop_expired()
        if len(self._waiting) >= self._count_max:
            return rejected(ErrorCode.QUEUE_FULL, f"{self._count_max} messages wait already")
        self._waiting[message.key] = message
        self._is_filled.set()
        return None

    def take(self, count_max: int) -> tuple[tuple[DmqMessage, ...], bool]:
        """Return the next messages, and whether more follow them."""
        self._drop_expired()
        count = min(count_max, len(self._waiting))
        taken = tuple(self._waiting.popitem(last=False)[1] for _ in range(count))
        if not self._waiting:
            self._is_filled.clear()
        return taken, bool(self._waiting)

    async def wait(self) -> None:
        await self._is_filled.wait()

    def _drop_expired(self) -> None:
        now = self._unix_s()
        for key in [key for key, message in self._waiting.items() if message.expires_at <= now]:
            del self._waiting[key]
        if not self._waiting:
            self._is_filled.clear()
