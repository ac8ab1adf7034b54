"""Callers who wait for the end of a message."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from stagepost.delivery.entry import OutboxEntry
from stagepost.delivery.result import DeliveryResult

Waiter: TypeAlias = asyncio.Future[DeliveryResult]


class Waiters:
    """Futures of waiting callers, by the sequence of their entry."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Waiter]] = {}

    def add(self, entry: OutboxEntry) -> Waiter:
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(entry.sequence, []).append(waiter)
        return waiter

    def remove(self, entry: OutboxEntry, waiter: Waiter) -> bool:
        """Remove a caller who has no answer yet; return whether it was the last one of the entry."""
        waiting = self._waiting.get(entry.sequence)
        if waiting is None:
            return False
        waiting.remove(waiter)
        if not waiting:
            del self._waiting[entry.sequence]
        return not waiting

    def wake(self, entry: OutboxEntry, result: DeliveryResult) -> None:
        """Give the result to every caller who waits for the entry."""
        for waiter in self._waiting.pop(entry.sequence, ()):
            if not waiter.done():
                waiter.set_result(result)
