"""Wakes everybody who waits for news, and remembers nothing: who wakes looks for himself."""

from __future__ import annotations

import asyncio


class Bell:
    """Look first, then wait, without another `await` in between: then no ring can be missed."""

    def __init__(self) -> None:
        # A dictionary for its order: who waits longest wakes first, in every run alike.
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ring(self) -> None:
        # The woken take themselves out only when they run, and new waiters may come before that.
        woken, self._waiting = self._waiting, {}
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Until the next ring."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)
